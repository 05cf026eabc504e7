"""CSV files as rows, a block at a time: the columns of a whole file, and batches in columns that are known."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.decompressed import opened
from headway.data_contracts.tables.open_quotes import QuoteCount, refuse_lost_rows
from headway.data_contracts.tables.schema import check_names
from headway.data_contracts.tables.source_errors import UnparsableRow, reading_table
from headway.data_contracts.tables.source_spec import CsvOptions
from headway.data_contracts.types.column_types import arrow_type
from headway.data_contracts.types.text_types import TypeGuess, has_formats, read_timestamps
from headway.data_contracts.types.written_numbers import has_number_format, read_numbers

if TYPE_CHECKING:
    import pyarrow as pa

_ROW, _COLUMN = re.compile(r"Row #(\d+)"), re.compile(r"CSV column #(\d+)")
_KIND = re.compile(r"conversion error to ([^:]+):")
ENCODED = "Say how it is written, such as `source.csv.encoding: cp1252`, or write the file in UTF-8."
TYPE = "type in `source.column_types`; nulls are spelt as in `source.csv.nulls`."


def csv_columns(
    path: Path, where: str, options: CsvOptions, declared: Mapping[str, str], valueless: str = ""
) -> dict[str, str]:
    """Names and types of a file's columns: as declared, or the narrowest type that every value of the file has.

    Args:
        valueless: the type of a column without a value, in place of a refusal.

    Raises:
        DataError: not CSV; a column without a value, whose type must be declared.
    """
    guesses = {
        name: TypeGuess(name, options.numbers(name), options.timestamp_formats)
        for name in csv_names(path, where, options)
        if name not in declared
    }
    if guesses:
        for batch in csv_batches(path, where, options, dict.fromkeys(guesses, "string")):
            for name, guess in guesses.items():
                guess.see(batch.column(name))
    names = csv_names(path, where, options)
    return {name: declared[name] if name in declared else guesses[name].type_name(where, valueless) for name in names}


def csv_names(path: Path, where: str, options: CsvOptions) -> list[str]:
    """The columns' names, as the header or the options say.

    Raises:
        DataError: no header, or names that rows cannot have.
    """
    # Only the header is asked for here: a row with more or fewer values has its own time.
    with _unheard_where_undecodable(), _opened(path, where, options, {}, lambda _: "skip") as reader:
        try:
            names: list[str] = reader.schema.names
        except UnicodeDecodeError:
            raise DataError("the header is not UTF-8.", where=where, advice=ENCODED) from None
    # What pandas writes before the first column: the number of each row, under no name. No rule could speak of it.
    named = names[1:] if options.has_header and len(names) > 1 and names[0] == "" else names
    check_names(where, named)
    return named


@contextlib.contextmanager
def _unheard_where_undecodable() -> Iterator[None]:
    """Arrow decodes a row of more or fewer values for its handler, and prints a traceback where it is no UTF-8."""
    hook = sys.unraisablehook

    def print_others(event: sys.UnraisableHookArgs) -> None:
        if not isinstance(event.exc_value, UnicodeDecodeError):
            hook(event)

    sys.unraisablehook = print_others
    try:
        yield
    finally:
        sys.unraisablehook = hook


def csv_batches(path: Path, where: str, options: CsvOptions, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """All rows of a file in its order; of its columns those in `columns`, in these types.

    Raises:
        DataError: a row with more or fewer values, a value that is not of its column's type, or bytes that are no
            UTF-8: named, and never quoted.
    """
    import pyarrow as pa

    types = {name: arrow_type(kind) for name, kind in columns.items()}
    written = [name for name, kind in types.items() if is_written(name, kind, options)]
    num_rows = 0
    with _opened(path, where, options, {**types, **dict.fromkeys(written, pa.string())}) as reader:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            batch = batch.select(list(types))
            for name in written:
                place, texts = list(types).index(name), batch.column(name)
                try:
                    values = read_written(name, texts, types[name], options)
                except pa.ArrowInvalid:
                    row = num_rows + _first_refused(name, texts, types[name], options)
                    place_of_row = _place_of(where, row_number(options, row))
                    detail = f"a value is no {types[name]}{_form(str(types[name]), options)}"
                    raise _refused_value(name, detail, place_of_row) from None
                batch = batch.set_column(place, name, values)
            num_rows += batch.num_rows
            yield batch


def is_written(column: str, kind: pa.DataType, options: CsvOptions) -> bool:
    """Whether a column's values of a type are written as the options say, and not as the CSV reader takes them."""
    return has_formats(kind, options.timestamp_formats) or has_number_format(kind, options.numbers(column))


def read_written(column: str, texts: pa.Array, kind: pa.DataType, options: CsvOptions) -> pa.Array:
    """Raises `pa.ArrowInvalid`: a text is no value of this type, for which `is_written` holds."""
    if has_formats(kind, options.timestamp_formats):
        return read_timestamps(texts, kind, options.timestamp_formats)
    return read_numbers(texts, kind, options.numbers(column))


def _first_refused(column: str, texts: pa.Array, kind: pa.DataType, options: CsvOptions) -> int:
    """The place of the first text that is no value, where there is one."""
    import pyarrow as pa

    first, end = 0, len(texts)
    while end - first > 1:
        middle = (first + end) // 2
        try:
            read_written(column, texts[first:middle], kind, options)
        except pa.ArrowInvalid:
            end = middle
        else:
            first = middle
    return first


def csv_texts(
    path: Path, where: str, options: CsvOptions, names: Collection[str], on_irregular: Callable[[int], object]
) -> Iterator[pa.RecordBatch]:
    """The same rows with their values as bytes, whatever they are; rows with more or fewer values are left out.

    Args:
        names: columns of the file.
        on_irregular: given the number of each row that is left out, from 0, before the batch that follows it.
    """
    import pyarrow as pa

    # Arrow counts rows from 1, with the header and skipped lines; who is called counts from 0.
    first_row = row_number(options, 0)

    def skip(row: Any) -> str:
        on_irregular(row.number - first_row)
        return "skip"

    with _opened(path, where, options, dict.fromkeys(names, pa.binary()), skip) as reader:
        yield from reader


def row_number(options: CsvOptions, row: int) -> int:
    """What a row of this number, from 0, is called in messages: counted from 1, with all that stands before it."""
    return row + 1 + options.has_header + options.skip_rows


@contextlib.contextmanager
def _opened(
    path: Path,
    where: str,
    options: CsvOptions,
    types: Mapping[str, pa.DataType],
    on_irregular: Callable[[Any], str] | None = None,
) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv

    irregular: list[Any] = []

    def keep(row: Any) -> str:
        irregular.append(row)
        return "error"

    # What is in the file's end may be inferred from the types of its start: without types, only names are asked for.
    convert = csv.ConvertOptions(
        column_types=dict(types),
        null_values=list(options.nulls),
        strings_can_be_null=True,
        # A quoted empty value is an empty text, and only an unquoted one is a null.
        quoted_strings_can_be_null=False,
        include_columns=list(types),
        decimal_point=options.decimal,
    )
    parse = csv.ParseOptions(
        delimiter=options.delimiter,
        quote_char=options.quote,
        newlines_in_values=True,
        invalid_row_handler=on_irregular or keep,
    )
    read = csv.ReadOptions(
        # One thread, so that an error knows its row.
        use_threads=False,
        encoding=options.encoding,
        block_size=options.max_row_bytes,  # text parsed at a time; a row must fit in
        skip_rows=options.skip_rows,
        column_names=list(options.column_names) or None,
        autogenerate_column_names=not options.has_header and not options.column_names,
    )
    try:
        with reading_table(where), opened(path, where) as stream:
            quotes = QuoteCount(stream, options)
            with pa.PythonFile(quotes, mode="r") as counted:
                yield csv.open_csv(counted, read_options=read, parse_options=parse, convert_options=convert)
        # Of names alone, and where nobody reads on, the end is not reached.
        if types and quotes.may_take_rows:
            refuse_lost_rows(path, where, options)
    except UnicodeError:
        # Raised by the decoder of encodings other than UTF-8, for a block of which no row is known yet.
        raise DataError(f"it is not {options.encoding} to its end.", where=where, advice=ENCODED) from None
    except pa.ArrowException as error:
        # `from None`, because Arrow's message quotes the value, and a traceback would show it.
        names = _all_names(path, where, options) if types and _COLUMN.search(str(error)) else []
        raise _refused(where, str(error), irregular, names, options) from None


def _all_names(path: Path, where: str, options: CsvOptions) -> list[str]:
    """As the file has them; empty where its header cannot be read."""
    opening = _opened(path, where, options, {}, lambda _: "skip")
    with contextlib.suppress(DataError, UnicodeDecodeError), _unheard_where_undecodable(), opening as reader:
        return list(reader.schema.names)
    return []


def _form(kind: str, options: CsvOptions) -> str:
    """How values of this Arrow type are written, where that is for people to know; empty of others."""
    if kind.startswith("date"):
        return ", such as 2026-01-31"
    if not kind.startswith("timestamp"):
        return ""
    if "tz=" in kind:
        return ", such as 2026-01-31T14:30:00Z"
    formats = "".join(f", or as `{each}` writes it" for each in options.timestamp_formats)
    return f", such as 2026-01-31 or 2026-01-31T14:30:00, without a zone{formats}"


def _refused(where: str, message: str, irregular: list[Any], names: list[str], options: CsvOptions) -> DataError:
    """What Arrow says without the value it quotes.

    Args:
        names: of all columns of the file, the ones that are not read among them: so Arrow counts.
    """
    row = _ROW.search(message)
    place = _place_of(where, int(row[1])) if row else where
    if irregular:
        expected, found = irregular[0].expected_columns, irregular[0].actual_columns
        return UnparsableRow(
            f"the row has {found:,} values, not {expected:,}.",
            where=place,
            advice="Correct it, or check source.csv: delimiter, quote, skip_rows.",
        )
    if column := _COLUMN.search(message):
        kind = _KIND.search(message)
        name = names[int(column[1])] if int(column[1]) < len(names) else f"number {column[1]}"
        if "invalid UTF8" in message:
            encoding = "encoding in `source.csv.encoding`, such as cp1252."
            return _refused_value(name, "a value is not UTF-8", place, encoding)
        detail = f"a value is no {kind[1]}{_form(kind[1], options)}" if kind else "a value cannot be read"
        return _refused_value(name, detail, place)
    if "straddl" in message:
        return DataError(
            f"a row is longer than {options.max_row_bytes:,} bytes, or a quote is never closed.",
            where=where,
            advice="Close the quote, or raise source.csv.max_row_bytes.",
        )
    if "Could not skip" in message:
        return DataError(
            f"the file has no header or row below {options.skip_rows:,} lines.",
            where=where,
            advice="Correct `source.csv.skip_rows`, the lines above the header; of a draft it is `--skip-rows`.",
        )
    if "Empty CSV" in message:
        return DataError("the file is empty: not even a header.", where=where, advice="Exclude it, or write it again.")
    return DataError("not readable as CSV.", where=place, advice="Correct it, or check source.csv.")


def _place_of(where: str, number: int) -> str:
    """The row's line, unless a value before it spans several."""
    return f"{where}, row {number:,} of all, header included"


def _refused_value(name: str, detail: str, place: str, another: str = TYPE) -> UnparsableRow:
    return UnparsableRow(
        f"column `{name}`: {detail}.",
        where=place,
        advice="Look at it there (no message quotes a value: it may be personal). Correct it, or declare another "
        f"{another}",
    )
