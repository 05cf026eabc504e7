"""How a delimited text file is written: as a person says, else as its first lines show."""

from __future__ import annotations

import codecs
import contextlib
import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, get_args

import fsspec
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.tables.source_spec import MAX_SKIP_ROWS, CsvOptions
from headway.data_contracts.types.text_types import format_problem
from headway.data_contracts.types.written_numbers import (
    NumberFormat,
    NumbersFound,
    guess_number_format,
    python_pattern,
)

DELIMITERS = (",", ";", "\t", "|")
SPELLED = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
"""Words for delimiters that a shell takes for something else."""
ENCODINGS: dict[str, str] = {
    codecs.lookup(name).name: name for name in get_args(CsvOptions.model_fields["encoding"].annotation)
}
"""Each codec's own name to the one that a pipeline file has: `latin1` and `iso-8859-1` are one."""
SNIFFED_BYTES, SNIFFED_LINES = 1 << 16, 50
DATE = re.compile(
    r"(?P<first>\d{1,2})(?P<mark>[./-])(?P<then>\d{1,2})(?P=mark)\d{4}"
    r"(?P<time> \d{1,2}:\d{2}(?P<second>:\d{2})?)?"
)
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")
"""Read whatever other format is said."""
DATE_OR_ISO = (
    rf"\d{{1,2}}(\.\d{{1,2}}\.|/\d{{1,2}}/|-\d{{1,2}}-)\d{{4}}( \d{{1,2}}:\d{{2}}(:\d{{2}})?)?|{ISO_DATE.pattern}"
)
"""The same dates as a pattern without references back, which DuckDB's engine has not."""
GAPS = ("NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "none", "?", "-", ".")
"""What programs write where a value is missing, besides nothing at all: `NA` is R's, `NULL` a database's, `.` SAS's."""
NAN = re.compile(r"(?i)[+-]?(nan|inf|infinity)")
TIMES = {(False, False): "", (True, False): " %H:%M", (True, True): " %H:%M:%S"}
LAST_MONTH = 12
MIN_COLUMNS = 2
"""Of a table in which a title shows."""
VALUE = re.compile(r"[^\w]*\d(?:[^\w]|\d|[TZeE_](?=[\W\d]|\Z))*")
"""A number, an amount or a date: digits and marks, without words."""


class CsvChoice(NamedTuple):
    """What a person says of delimited text; what is empty is found in the first lines."""

    delimiter: str = ""
    encoding: str = ""
    decimal: str = ""
    timestamp_format: str = ""
    null: tuple[str, ...] = ()
    """Spellings of a missing value, besides those that are found."""
    skip_rows: int | None = None
    """Lines before the header; None: found."""

    @property
    def options(self) -> str:
        """As on a command line; empty where nothing is said."""
        given = [name for name, value in self._asdict().items() if value not in ("", (), None)]
        return " ".join(f"--{name.replace('_', '-')}" for name in given)


FOUND = CsvChoice()


class WrittenAs(NamedTuple):
    """How a file is to be read, and what its first lines are taken for."""

    csv: CsvOptions
    has_index: bool
    """Whether a first column without a name is passed over."""
    also: tuple[str, ...]
    """Other delimiters that each of the first lines has as often; empty where a person says which it is."""
    unclear_dates: tuple[str, ...]
    """The formats that dates may have whose day may be their month."""
    unclear_numbers: tuple[str, ...] = ()
    """Columns that may be numbers, in a format that the file does not tell."""
    grouped: tuple[str, ...] = ()
    """Columns whose numbers have a mark between thousands, which is taken out."""


def csv_choice(
    delimiter: str,
    encoding: str,
    decimal: str,
    timestamp_format: str = "",
    null: Sequence[str] = (),
    skip_rows: int | None = None,
) -> CsvChoice:
    """The words of a command line, checked before any file is opened.

    Raises:
        ConfigError: one of them is none, or delimiter and decimal are the same.
    """
    given = CsvChoice(
        SPELLED.get(delimiter.lower(), delimiter),
        _encoding(encoding) if encoding else "",
        decimal,
        timestamp_format,
        tuple(null),
        skip_rows,
    )
    if timestamp_format and (problem := format_problem(timestamp_format)):
        raise ConfigError(f"{problem}.", where=f"--timestamp-format {timestamp_format!r}")
    for text in given.null:
        if not text or '"' in text or text.splitlines() != [text] or text == given.delimiter:
            raise ConfigError(
                "is no cell of a CSV file.",
                where=f"--null {text!r}",
                advice="Name a text that stands for a gap, without its quotes; empty cells are gaps anyway.",
            )
    if (skip_rows or 0) > MAX_SKIP_ROWS:
        raise ConfigError(f"is more than {MAX_SKIP_ROWS:,} lines.", where=f"--skip-rows {skip_rows}")
    if decimal not in ("", ".", ","):
        raise ConfigError("is neither `.` nor `,`.", where=f"--decimal {decimal!r}")
    if given.delimiter and given.delimiter == decimal:
        raise ConfigError("delimiter and decimal are the same character.", where=f"--decimal {decimal!r}")
    if given.delimiter:
        try:
            CsvOptions(delimiter=given.delimiter)
        except ValidationError:
            raise ConfigError(
                "is no delimiter: one ASCII character, no quote and no end of a line.",
                where=f"--delimiter {delimiter!r}",
                advice=f"{', '.join(SPELLED)} may be written as words.",
            ) from None
    return given


def _encoding(name: str) -> str:
    with contextlib.suppress(LookupError):
        # `utf-8-sig` is UTF-8 whose byte order mark is passed over, as it is everywhere here.
        found = codecs.lookup(name).name.removesuffix("-sig")
        if found in ENCODINGS:
            return ENCODINGS[found]
    raise ConfigError(
        "is no encoding that is read.",
        where=f"--encoding {name!r}",
        advice=f"There are {', '.join(ENCODINGS.values())}.",
    )


def written_as(place: str, given: CsvChoice, *, is_tabs: bool) -> WrittenAs:
    """How the file is written.

    Args:
        place: its path or URI.
        is_tabs: whether its name says that tabs part the values.

    Raises:
        ConfigError: a decimal comma is said, and nothing but commas parts the values.
        DataError: the first lines are not written in the encoding that is said.
    """
    encoding, head = _decoded(_head(place), given.encoding, place)
    fitting = [given.delimiter] if given.delimiter else ["\t"] if is_tabs else _delimiters(head, given.skip_rows)
    if given.decimal == "," and not given.delimiter:
        fitting = [each for each in fitting if each != ","]
        if not fitting:
            raise ConfigError(
                "nothing but commas parts the values of the first lines.",
                where="--decimal ','",
                advice="Say what does, such as `--delimiter ';'`.",
            )
    delimiter, *also = fitting or [","]
    skipped = _lines_above(head, delimiter) if given.skip_rows is None else given.skip_rows
    head = "".join(_lines(head)[skipped:])
    columns = [
        [name, *("" if value in given.null else value for value in values)]
        for name, *values in _columns(head, delimiter)
    ]
    formats, unclear = ([given.timestamp_format], []) if given.timestamp_format else date_formats(columns)
    numbers = _numbers(columns, delimiter, given.decimal)

    def names(places: Iterable[int]) -> tuple[str, ...]:
        return tuple(name for place in places if (name := columns[place][0]))

    units = {columns[place][0]: unit for place, unit in numbers.units.items()}
    found = {
        "delimiter": delimiter,
        "encoding": encoding,
        "decimal": numbers.written.decimal,
        "thousands": numbers.written.thousands,
        "units": units,
        "timestamp_formats": formats,
        "skip_rows": skipped,
    }
    if gaps := [*_gaps(columns, numbers.written, units), *given.null]:
        found["nulls"] = [*dict.fromkeys(["", *gaps])]
    has_index = head.startswith((delimiter, f'""{delimiter}'))
    options = CsvOptions.model_validate(found)
    return WrittenAs(options, has_index, tuple(also), tuple(unclear), names(numbers.unclear), names(numbers.grouped))


def _head(place: str) -> bytes:
    """The beginning of a file; empty where it cannot be read, for whoever reads the rows says why."""
    try:
        with fsspec.open(place, "rb", compression="infer") as stream:
            return bytes(stream.read(SNIFFED_BYTES))
    except Exception:  # each codec has errors of its own for bytes that it cannot read
        return b""


def _decoded(head: bytes, given: str, place: str) -> tuple[str, str]:
    """How the first lines are written, and what they say: UTF-8, unless they are none."""
    if given:
        try:
            return given, _text(head, given)
        except UnicodeError:  # not of its subclass for decoding alone: UTF-16 without its mark raises the other
            raise DataError(
                f"its first lines are not written in {given}.",
                where=place,
                advice="Say another --encoding, or none: it is found by the bytes then.",
            ) from None
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16", head.decode("utf-16", errors="replace")
    for encoding in ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return encoding, _text(head, encoding)
    return "latin-1", head.decode("latin-1")


def _text(head: bytes, encoding: str) -> str:
    # The last character may be cut off, which a decoder that expects more does not mind.
    return codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)().decode(head)


def _numbers(columns: Sequence[Sequence[str]], delimiter: str, decimal: str) -> NumbersFound:
    """How numbers are written.

    Args:
        decimal: as a person says; empty: as it shows.
    """
    values = [[text for value in values if (text := value.strip()) and text not in GAPS] for _, *values in columns]
    return guess_number_format(values, decimal or ("." if delimiter == "," else ".,"), is_given=bool(decimal))


def date_formats(columns: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """How dates whose year comes last are written, and the formats of which nothing tells one from the other.

    Each column is its name, and then its values. Others than such dates, gaps and dates in ISO 8601 say nothing.

    The day comes first where points part, and where a first number is no month. Dates that one mark parts are written
    alike in all columns.
    """
    times: dict[str, set[str]] = {}
    says_day_first: dict[str, set[bool]] = {}
    for _, *values in columns:
        dates = [DATE.fullmatch(value) for value in values if value and not ISO_DATE.fullmatch(value)]
        kinds = {(date["mark"], TIMES[date["time"] is not None, date["second"] is not None]) for date in dates if date}
        if None in dates or len(kinds) != 1:
            continue
        ((mark, time),) = kinds
        no_month = [any(int(date[name]) > LAST_MONTH for date in dates if date) for name in ("first", "then")]
        if all(no_month):
            continue
        times.setdefault(mark, set()).add(time)
        if any(no_month) or mark == ".":
            says_day_first.setdefault(mark, set()).add(not no_month[1])
    formats: list[str] = []
    unclear: list[str] = []
    for mark in sorted(times):
        orders = [f"%d{mark}%m{mark}%Y", f"%m{mark}%d{mark}%Y"]
        if len(says := says_day_first.get(mark, set())) == 1:
            formats += [f"{orders[says == {False}]}{time}" for time in sorted(times[mark])]
        else:
            unclear += [f"{order}{time}" for time in sorted(times[mark]) for order in orders]
    return formats, unclear


def _gaps(columns: Sequence[Sequence[str]], numbers: NumberFormat, units: Mapping[str, str]) -> list[str]:
    """Spellings that stand among nothing but numbers: read as texts they would make a text of each number."""
    found: set[str] = set()
    for name, *values in columns:
        number = python_pattern(numbers._replace(unit=units.get(name, "")))
        gaps = {*values} & {*GAPS}
        others = [value.strip() for value in values if value.strip() and value not in gaps]
        # What has no digits, such as NaN, is a number to the reader.
        if gaps and others and all(number.match(value) or NAN.fullmatch(value) for value in others):
            found |= gaps
    return [each for each in GAPS if each in found]


def _columns(head: str, delimiter: str) -> list[list[str]]:
    """The values of the first lines by column, its name first."""
    columns: dict[int, list[str]] = {}
    with contextlib.suppress(csv.Error):
        for row in csv.reader(_whole(_lines(head), head), delimiter=delimiter):
            for place, value in enumerate(row):
                columns.setdefault(place, []).append(value)
    return list(columns.values())


def _lines_above(head: str, delimiter: str) -> int:
    """Titles and comments before the header: lines that fill at most half of the columns.

    Where anything speaks against it there are none, for a header that is passed over takes its columns along.
    """
    rows = _rows(head, delimiter)
    num_columns = _usual([len(row.cells) for row in rows if row.cells])
    if num_columns < MIN_COLUMNS:
        return 0
    for place, row in enumerate(rows):
        is_comment = bool(row.cells) and row.cells[0].startswith("#") and len(row.cells) != num_columns
        # The first of all columns may have no name, as pandas writes row numbers.
        names = row.cells[1:] if row.cells[:1] == [""] else row.cells
        has_index = len(names) < len(row.cells) == num_columns and all(map(str.strip, names))
        if has_index or (not is_comment and 2 * sum(bool(cell.strip()) for cell in row.cells) > num_columns):
            below = [each.cells for each in rows[place + 1 :] if len(each.cells) == num_columns]
            is_header = len(row.cells) == num_columns and _are_names(names) and _has_values(below)
            # A reader that passes over lines knows no quotes.
            is_whole = all(each.num_lines == 1 and not each.has_open_quote for each in rows[:place])
            return row.first_line if is_header and is_whole else 0
    return 0


class _Row(NamedTuple):
    first_line: int
    """Lines before it."""
    num_lines: int
    has_open_quote: bool
    cells: list[str]


def _rows(head: str, delimiter: str) -> list[_Row]:
    """Of the first lines, empty ones included."""
    lines = _whole(_lines(head), head)[:SNIFFED_LINES]
    reader = csv.reader(lines, delimiter=delimiter)
    rows: list[_Row] = []
    first = 0
    with contextlib.suppress(csv.Error):
        for cells in reader:
            quotes = "".join(lines[first : reader.line_num]).count('"')
            rows.append(_Row(first, reader.line_num - first, quotes % 2 == 1, cells))
            first = reader.line_num
    return rows


def _lines(text: str) -> list[str]:
    """As a CSV reader counts them, which knows no other ends of lines."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)


def _are_names(cells: Sequence[str]) -> bool:
    """Whether a line can be a header: each of its cells names another column."""
    names = [cell.strip() for cell in cells]
    return all(names) and len({*names}) == len(names) and not any(map(VALUE.fullmatch, names))


def _has_values(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a column has numbers or dates alone, which tells its header from them."""
    columns = [[cell.strip() for cell in column if cell.strip()] for column in zip(*rows, strict=True)]
    return any(column and all(map(VALUE.fullmatch, column)) for column in columns)


def _usual(counts: Sequence[int]) -> int:
    """The commonest count, of equally common ones the greatest; 0 where there is none."""
    return max(Counter(counts).items(), key=lambda each: (each[1], each[0]), default=(0, 0))[0]


def _whole(lines: list[str], head: str) -> list[str]:
    """Without the last line where it may be cut off."""
    return lines[:-1] if len(head) >= SNIFFED_BYTES and len(lines) > 1 else lines


def _delimiters(head: str, skip_rows: int | None) -> list[str]:
    """What may stand between the values of a file's first lines: of which each line has as many.

    Args:
        skip_rows: lines before the header, as a person says; None: as it shows.
    """
    # Quoted values may hold any of them.
    found: dict[str, int] = {}
    for delimiter in DELIMITERS:
        skipped = _lines_above(head, delimiter) if skip_rows is None else skip_rows
        below = "".join(_lines(head)[skipped:])
        lines = re.sub(r'"[^"]*"', "", below).splitlines()[:SNIFFED_LINES]
        counts = {line.count(delimiter) for line in _whole([line for line in lines if line], head)}
        if len(counts) == 1 and counts != {0}:
            found[delimiter] = skipped
    # What would pass over the header as well is not what parts it.
    return [delimiter for delimiter, skipped in found.items() if skipped == min(found.values())]
