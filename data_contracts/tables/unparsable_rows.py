"""Rows of text files that cannot be read as their columns' types: found one by one, while all others are read.

Only a file in which a row was refused is read this way, which is slow and names every such row.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.store.quarantine_limit import limit_advice
from headway.data_contracts.tables.csv_files import csv_names, csv_texts, is_written, read_written, row_number
from headway.data_contracts.tables.json_files import json_batches, json_columns
from headway.data_contracts.tables.source_spec import CsvOptions, SourceSpec
from headway.data_contracts.types.column_types import arrow_type
from headway.data_contracts.types.text_types import TypeGuess

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

MAX_UNPARSABLE_ROWS = 10_000
"""Of one file. A file with more is not one with a few bad rows."""
MAX_NAMED_ROWS = 5


class Unparsable(NamedTuple):
    row: int
    """In its file, from 0."""
    number: int
    """What the row is called in messages: a CSV row with all that stands before it, or a line of JSON lines; from 1."""
    column: str
    """Empty where the row as a whole cannot be read."""


def tolerant_batches(
    spec: SourceSpec, path: Path, where: str, columns: Mapping[str, str], found: list[Unparsable]
) -> Iterator[pa.RecordBatch]:
    """All rows of a CSV or JSON lines file; what cannot be read is null, and its row is added to `found`.

    Raises:
        DataError: what is no matter of single rows; more than `MAX_UNPARSABLE_ROWS` of them.
    """

    def on_bad(row: int, number: int, column: str) -> None:
        found.append(Unparsable(row, number, column))
        if len(found) > MAX_UNPARSABLE_ROWS:
            raise too_many(where, found)

    match spec.format:
        case "csv":
            names = csv_names(path, where, spec.csv)
            held = {name: columns[name] for name in names if name in columns}
            yield from _Csv(spec, held, on_bad).batches(path, where)
        case "json-lines":
            yield from json_batches(path, where, columns, on_bad)
        case "parquet" | "text-files":
            raise AssertionError(f"rows of format {spec.format} are not parsed")


def tolerant_columns(
    spec: SourceSpec, path: Path, where: str, declared: Mapping[str, str], valueless: str = ""
) -> dict[str, str]:
    """Types of a CSV or JSON lines file's columns, from the rows that can be read.

    Args:
        valueless: the type of a column without a value, in place of a refusal.

    Raises:
        DataError: what is no matter of single rows.
    """
    import pyarrow as pa

    if spec.format != "csv":
        return json_columns(path, where, declared, lambda *_: None, valueless)
    names = csv_names(path, where, spec.csv)
    guesses = {
        name: TypeGuess(name, spec.csv.numbers(name), spec.csv.timestamp_formats)
        for name in names
        if name not in declared
    }
    for batch in csv_texts(path, where, spec.csv, names, lambda _: None):
        for name, guess in guesses.items():
            guess.see(_read_values(name, batch.column(name), pa.string(), spec.csv)[0])
    return {name: declared[name] if name in declared else guesses[name].type_name(where, valueless) for name in names}


def too_many(where: str, found: Sequence[Unparsable]) -> DataError:
    return DataError(
        f"more than {MAX_UNPARSABLE_ROWS:,} values cannot be read as their columns' types; {_named(found)}.",
        where=where,
        advice="Check `source.column_types`, `source.csv` and the contract's types: this is no matter of a few rows.",
    )


def refused(error: DataError, found: Sequence[Unparsable], num_rows: int, unit: str) -> DataError:
    """The refusal of a file's first such row, with what there is to know of all of them.

    Args:
        unit: what is counted by `Unparsable.number`, `row` or `line`.
    """
    num_bad = len({each.row for each in found})
    if not num_bad:
        return error
    how = (
        "To leave such rows out, write `unparsable_rows: quarantine` in the contract, and "
        f"{limit_advice(num_bad, num_rows)} or more, the share that may go: they are listed."
    )
    every = f"Of {num_rows:,} rows, {num_bad:,} cannot be read: {_named(found, unit)}."
    return DataError(f"{error.what} {every}", where=error.where, advice=f"{error.advice} {how}")


def _named(found: Sequence[Unparsable], unit: str = "row") -> str:
    """The first rows by number, with their columns; never a value."""
    columns: dict[int, list[str]] = {}
    for each in sorted(found):
        columns.setdefault(each.number, []).append(each.column)
    named = [
        f"{number:,}" + (f" ({', '.join(f'`{name}`' for name in names[:3])})" if any(names) else "")
        for number, names in list(columns.items())[:MAX_NAMED_ROWS]
    ]
    more = f" and {len(columns) - len(named):,} more" if len(columns) > len(named) else ""
    return f"{unit}{'' if len(columns) == 1 else 's'} {', '.join(named)}{more}"


class _Csv:
    def __init__(self, spec: SourceSpec, columns: Mapping[str, str], on_bad: Callable[[int, int, str], None]) -> None:
        self._options, self._on_bad = spec.csv, on_bad
        self._types = {name: arrow_type(kind) for name, kind in columns.items()}
        self._num_rows = 0
        self._irregular: list[int] = []

    def batches(self, path: Path, where: str) -> Iterator[pa.RecordBatch]:
        for batch in csv_texts(path, where, self._options, list(self._types), self._irregular.append):
            yield self._typed(batch)
        # Irregular rows at the file's end have no batch after them that would carry them.
        if self._irregular:
            yield self._typed(_empty(list(self._types)))

    def _typed(self, texts: pa.RecordBatch) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        places = self._places(texts.num_rows, is_last=not texts.num_rows)
        rows = np.flatnonzero(places >= 0)
        bad: dict[int, list[str]] = {int(row): [""] for row in np.flatnonzero(places < 0)}
        arrays = []
        for name, kind in self._types.items():
            array, is_bad = _read_values(name, texts.column(name), kind, self._options)
            for place in np.flatnonzero(is_bad):
                bad.setdefault(int(rows[place]), []).append(name)
            arrays.append(array.take(pa.array(places, mask=places < 0)))
        for row, names in sorted(bad.items()):
            number = self._num_rows + row
            for name in names:
                self._on_bad(number, row_number(self._options, number), name)
        self._num_rows += len(places)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(self._types.items())))

    def _places(self, num_rows: int, *, is_last: bool) -> NDArray[np.int64]:
        """For each row of the file that comes next, its place among these; -1 for a row with another number of
        values."""
        import numpy as np

        num_irregular = 0
        for row in self._irregular:
            if row - self._num_rows >= num_rows + num_irregular and not is_last:
                break
            num_irregular += 1
        missing = np.array(self._irregular[:num_irregular], np.int64) - self._num_rows
        del self._irregular[:num_irregular]
        places = np.zeros(num_rows + num_irregular, np.int64)
        places[missing] = -1
        places[places == 0] = np.arange(num_rows)
        return places


def _empty(names: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], pa.binary()) for _ in names], names=list(names))


def _read_values(
    column: str, texts: pa.Array, kind: pa.DataType, options: CsvOptions
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Values of a type out of their texts, and which of them are none: those are null."""
    import numpy as np
    import pyarrow as pa

    encoded = texts.dictionary_encode()
    values, is_bad = _halved(column, encoded.dictionary, kind, options)
    indices = encoded.indices
    of_rows = np.zeros(len(texts), bool)
    known = indices.is_valid().to_numpy(zero_copy_only=False)
    of_rows[known] = is_bad[indices.drop_null().to_numpy()]
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.take(indices), of_rows


def _halved(column: str, texts: pa.Array, kind: pa.DataType, options: CsvOptions) -> tuple[pa.Array, NDArray[np.bool_]]:
    import numpy as np
    import pyarrow as pa

    # Arrow refuses all values for one bad one, without its place; halves find each in few readings.
    try:
        return _parsed(column, texts, kind, options), np.zeros(len(texts), bool)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, kind), np.ones(1, bool)
    middle = len(texts) // 2
    halves = texts.slice(0, middle), texts.slice(middle)
    (first, bad), (second, more) = (_halved(column, half, kind, options) for half in halves)
    return pa.concat_arrays([first, second]), np.concatenate([bad, more])


def _parsed(column: str, texts: pa.Array, kind: pa.DataType, options: CsvOptions) -> pa.Array:
    """Read by the CSV reader itself, so that what is a value here is one there."""
    import pyarrow as pa
    from pyarrow import csv

    if not len(texts):
        return pa.array([], kind)
    if is_written(column, kind, options):
        return read_written(column, texts.cast(pa.string()), kind, options)
    lines = b"".join(b'"%s",\n' % value.replace(b'"', b'""') for value in texts.to_pylist())
    table = csv.read_csv(
        io.BytesIO(lines),
        read_options=csv.ReadOptions(use_threads=False, column_names=["value", ""], block_size=len(lines) + 1),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types={"value": kind},
            include_columns=["value"],
            null_values=[],
            decimal_point=options.decimal,
        ),
    )
    return table.column(0).combine_chunks()
