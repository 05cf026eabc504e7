"""JSON lines as rows, a block of lines at a time: columns of a whole file, and batches in columns that are known."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.decompressed import opened
from headway.data_contracts.tables.schema import check_names
from headway.data_contracts.tables.source_errors import UnparsableRow, reading_table, refused_column
from headway.data_contracts.types.column_types import UnknownType, arrow_type, type_name
from headway.data_contracts.types.text_types import guessed

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 20
MAX_DEPTH = 64
"""Brackets within brackets on one line. A row holds flat lists, so that two are enough."""
MAX_KEYS = 10_000
"""Of all lines together: each is a column, and each row has every column."""
MAX_CELLS = 1 << 24
"""Rows times columns that are parsed at once."""
MAX_LINES_TO_INFER = 1024
"""Lines whose keys are looked at together: Arrow gives each line a place for every key of them."""

Bad = Callable[[int, int, str], None]
"""Called for each line that cannot be read: its row, from 0, its line, from 1, and the column, empty if it is none."""


_STRING = re.compile(rb'"(?:[^"\\\n]|\\.)*"')


class JsonBlock(NamedTuple):
    first_line: int
    """Counted from 1."""
    data: bytes


def json_columns(
    path: Path, where: str, declared: Mapping[str, str], on_bad: Bad | None = None, valueless: str = ""
) -> dict[str, str]:
    """Names and types of a file's columns: as declared, or the narrowest type that every value of the file has.

    Args:
        on_bad: called for lines that are passed over; without it, the first is refused.
        valueless: the type of a column without a value, in place of a refusal.

    Raises:
        DataError: not JSON lines; nested objects; a column of two types, or without a value; too many keys.
    """
    types = _Types(where, declared, on_bad)
    for block in blocks(path, where):
        lines = _lines(block)
        for start in range(0, len(lines), MAX_LINES_TO_INFER):
            types.see(lines[start : start + MAX_LINES_TO_INFER])
            if len(types.found) > MAX_KEYS:
                raise DataError(
                    f"its lines have more than {MAX_KEYS:,} different keys, and each is a column.",
                    where=f"{where}, up to line {lines[start].first_line + MAX_LINES_TO_INFER - 1:,}",
                    advice="Write values that vary as values: a list, or rows of their own with the key as a text.",
                )
    check_names(where, types.found)
    return {
        name: guessed(name, kind or "", where, is_known=kind is not None, valueless=valueless)
        for name, kind in types.found.items()
    }


def json_batches(
    path: Path, where: str, columns: Mapping[str, str], on_bad: Bad | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of a file in its order, in these columns; a key that a line lacks is null.

    Args:
        on_bad: called for lines that cannot be read, which are rows of nulls then; without it, the first is refused.

    Raises:
        DataError: a line that is no object, has another key, or a value of another type: named, and never quoted.
    """
    import pyarrow as pa

    wanted = pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
    rows = _Rows(where, wanted, on_bad)
    max_lines = max(1, MAX_CELLS // max(1, len(wanted)))
    for block in blocks(path, where):
        # Most blocks fit as they are, and need not be split into lines.
        if block.data.count(b"\n") < max_lines:
            yield from rows.parse(block)
            continue
        lines = _lines(block)
        for start in range(0, len(lines), max_lines):
            part = lines[start : start + max_lines]
            yield from rows.parse(JsonBlock(part[0].first_line, _joined(part)), part)


def blocks(path: Path, where: str) -> Iterator[JsonBlock]:
    """Whole lines, `BLOCK_BYTES` at a time; blocks of blank lines are left out."""
    line, held = 1, b""
    with reading_table(where), opened(path, where) as stream:
        while True:
            read = stream.read(BLOCK_BYTES)
            data = held + read
            # At the file's end, a last line without a line feed is whole.
            end = data.rfind(b"\n") + 1 if read else len(data)
            block, held = data[:end], data[end:]
            if block.strip():
                yield JsonBlock(line, block)
            line += block.count(b"\n")
            if not read:
                return
            if len(held) > MAX_LINE_BYTES:
                raise DataError(
                    f"a line is longer than {MAX_LINE_BYTES:,} bytes.",
                    where=f"{where}, line {line:,}",
                    advice="Is it JSON lines, one object on each? Split what is longer into rows.",
                )


class _Types:
    """The types of all keys seen so far; where lines do not go together, halves of them tell which."""

    def __init__(self, where: str, declared: Mapping[str, str], on_bad: Bad | None) -> None:
        self.found: dict[str, str | None] = dict(declared)
        self._where, self._declared, self._on_bad = where, declared, on_bad
        self._num_rows = 0

    def see(self, lines: list[JsonBlock]) -> None:
        """Raises `DataError`: names the first line that cannot be read, or whose type is another."""
        self._fold(lines)
        self._num_rows += len(lines)

    def _fold(self, lines: list[JsonBlock], offset: int = 0) -> None:
        import pyarrow as pa

        place = self._where if len(lines) > 1 else f"{self._where}, line {lines[0].first_line:,}"
        data = _joined(lines)
        try:
            _refuse_deep(data)
            data.decode()
            types = _schema_types(data, self._where, self._declared)
            widened = {name: _wider(place, name, self.found.get(name), kind) for name, kind in types.items()}
        except (pa.ArrowException, UnicodeDecodeError, _NoRows, _TwoTypes) as error:
            if len(lines) > 1:
                middle = len(lines) // 2
                self._fold(lines[:middle], offset)
                self._fold(lines[middle:], offset + middle)
                return
            fault = error if isinstance(error, _TwoTypes) else self._fault(lines[0], place)
            if self._on_bad is None:
                raise fault from None
            self._on_bad(self._num_rows + offset, lines[0].first_line, "")
            return
        self.found.update(widened)

    def _fault(self, line: JsonBlock, place: str) -> DataError:
        import pyarrow as pa

        if problem := _not_an_object(line.data):
            return UnparsableRow(f"{problem}.", where=place)
        wanted = pa.schema([(name, arrow_type(kind)) for name, kind in self._declared.items()])
        wire = pa.schema([(field.name, _wire_type(field.type)) for field in wanted])
        return UnparsableRow(f"{_bad_column(line.data, wire, wanted)[1]}.", where=place)


class _Rows:
    """Batches out of blocks of lines, whose faulty lines are found by halves."""

    def __init__(self, where: str, wanted: pa.Schema, on_bad: Bad | None) -> None:
        import pyarrow as pa

        self._where, self._wanted, self._on_bad = where, wanted, on_bad
        self._wire = pa.schema([(field.name, _wire_type(field.type)) for field in wanted])
        self._num_rows = 0

    def parse(self, block: JsonBlock, lines: list[JsonBlock] | None = None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            found = list(_parse(block.data, self._wire, self._wanted))
        except (pa.ArrowException, UnicodeDecodeError, _NoRows):
            whole = lines or _lines(block)
            places = self._bad_places(whole)
            if not places:
                where = f"{self._where}, from line {block.first_line:,} on"
                raise DataError("not readable as JSON lines.", where=where) from None
            for place in places:
                # An empty object is a row of nulls, so that the rows after it keep their numbers.
                whole[place] = JsonBlock(whole[place].first_line, b"{}")
            found = list(_parse(_joined(whole), self._wire, self._wanted))
        for batch in found:
            self._num_rows += batch.num_rows
            yield batch

    def _bad_places(self, lines: list[JsonBlock], offset: int = 0) -> list[int]:
        """Raises `DataError`: the first line that cannot be read, where nobody wants to know of all."""
        import pyarrow as pa

        try:
            for _ in _parse(_joined(lines), self._wire, self._wanted):
                pass
            return []
        except (pa.ArrowException, UnicodeDecodeError, _NoRows):
            if len(lines) > 1:
                middle = len(lines) // 2
                first = self._bad_places(lines[:middle], offset)
                return first + self._bad_places(lines[middle:], offset + middle)
        line = lines[0]
        column, message, is_row = _fault(line.data, self._wire, self._wanted)
        if self._on_bad is None or not is_row:
            raise (UnparsableRow if is_row else DataError)(
                f"{message}.",
                where=f"{self._where}, line {line.first_line:,}",
                advice="Correct it, or declare the column's type in `source.column_types`.",
            )
        self._on_bad(self._num_rows + offset, line.first_line, column)
        return [offset]


class _NoRows(ValueError):
    """Lines that Arrow is not to be given, or of which it made something else than a row of each."""


class _TwoTypes(DataError):
    pass


def _refuse_deep(data: bytes) -> None:
    """Raises `_NoRows`: a line with more than `MAX_DEPTH` open brackets, which parsers meet by recursion."""
    import numpy as np

    array = np.frombuffer(data, np.uint8)
    opening = np.flatnonzero((array == ord("[")) | (array == ord("{")))
    if not len(opening):
        return
    # A line of few brackets cannot be deep, and to find that out is quick.
    num_by_line = np.bincount(np.searchsorted(np.flatnonzero(array == ord("\n")), opening))
    if num_by_line.max() > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise _NoRows


def _depth(data: bytes) -> int:
    """The most brackets that are open at once on a line, texts aside."""
    import numpy as np

    array = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    if not len(array):
        return 0
    steps = ((array == ord("[")) | (array == ord("{"))).astype(np.int64)
    steps -= (array == ord("]")) | (array == ord("}"))
    starts = np.concatenate(([0], np.flatnonzero(array[:-1] == ord("\n")) + 1))
    depth = steps.cumsum()
    return int((np.maximum.reduceat(depth, starts) - (depth - steps)[starts]).max())


def _num_lines(data: bytes) -> int:
    """How many lines are not blank.

    Raises:
        _NoRows: one of them begins with something else than an object. Arrow takes `null` for a row, or crashes.
    """
    import numpy as np

    data = data.removeprefix(codecs.BOM_UTF8)
    array = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(array == ord("\n")) + 1))
    starts = starts[starts < len(array)]
    # Nearly always, and quick to see.
    if (array[starts] == ord("{")).all():
        return len(starts)
    lines = [line for each in data.split(b"\n") if (line := each.strip())]
    if not all(line.startswith(b"{") for line in lines):
        raise _NoRows
    return len(lines)


def _joined(lines: list[JsonBlock]) -> bytes:
    return b"\n".join(line.data for line in lines)


def _read(data: bytes, wire: pa.Schema, *, unexpected: str) -> pa.Table:
    """Raises `_NoRows`: not each line is a row; `pa.ArrowException`, too."""
    from pyarrow import json as arrow_json

    num_lines = _num_lines(data)
    table = arrow_json.read_json(
        io.BytesIO(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=arrow_json.ParseOptions(explicit_schema=wire, unexpected_field_behavior=unexpected),
    )
    # Arrow reads one value after the other wherever lines end: rows would have other numbers than their lines.
    if table.num_rows != num_lines:
        raise _NoRows
    return table


def _parse(data: bytes, wire: pa.Schema, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    _refuse_deep(data)
    data.decode()  # Arrow takes any bytes for text
    table = _read(data, wire, unexpected="error")
    for batch in table.select(wanted.names).combine_chunks().to_batches():
        arrays = [column.cast(field.type) for column, field in zip(batch.columns, wanted, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _wire_type(wanted: pa.DataType) -> pa.DataType:
    """The type in which Arrow's JSON reader takes values of a type that it does not know itself."""
    import pyarrow as pa

    types = pa.types
    if types.is_fixed_size_list(wanted):
        return pa.list_(_wire_type(wanted.value_type))
    if types.is_list(wanted):
        return pa.list_(_wire_type(wanted.value_type))
    if types.is_date(wanted) or types.is_time(wanted):
        return pa.string()
    return pa.binary() if types.is_fixed_size_binary(wanted) else wanted


def _schema_types(data: bytes, where: str, declared: Mapping[str, str]) -> dict[str, str | None]:
    import pyarrow as pa

    wire = pa.schema([(name, _wire_type(arrow_type(kind))) for name, kind in declared.items()])
    schema = _read(data, wire, unexpected="infer").schema
    return {field.name: declared.get(field.name) or _inferred(where, field) for field in schema}


def _lines(block: JsonBlock) -> list[JsonBlock]:
    lines = enumerate(block.data.split(b"\n"), block.first_line)
    return [JsonBlock(number, line) for number, line in lines if line.strip()]


def _inferred(where: str, field: pa.Field) -> str | None:
    import pyarrow as pa

    kind = field.type
    if pa.types.is_null(kind) or (pa.types.is_list(kind) and pa.types.is_null(kind.value_type)):
        return None
    try:
        # JSON knows no moments: a text that looks like one is a text until its type is declared.
        return re.sub(r"timestamp\[[^\]]*\]", "string", type_name(kind))
    except UnknownType as error:
        raise refused_column(where, field.name, str(error)) from error


def _wider(where: str, name: str, one: str | None, other: str | None) -> str | None:
    """The type that holds values of both."""
    if one is None or other is None or one == other:
        return one or other
    pair = {one, other}
    if pair == {"int64", "double"} or pair == {"list<int64>", "list<double>"}:
        return "double" if "double" in pair else "list<double>"
    message = refused_column(where, name, f"holds {one} in one part and {other} in another")
    raise _TwoTypes(message.what, where=message.where, advice=message.advice)


def _fault(line: bytes, wire: pa.Schema, wanted: pa.Schema) -> tuple[str, str, bool]:
    """The column, if it is one, words that do not quote the line, and whether it is a matter of this row alone."""
    if problem := _not_an_object(line):
        return "", problem, True
    # A key that is no column is a matter of the source's columns, so it is not left to quarantine.
    if extra := sorted(set(json.loads(line)) - set(wire.names)):
        return "", f"the key `{ascii(extra[0])[1:-1]}` is none of the columns", False
    return (*_bad_column(line, wire, wanted), True)


def _not_an_object(line: bytes) -> str:
    """What keeps a line from being one JSON object; empty if it is one."""
    if (depth := _depth(line)) > MAX_DEPTH:
        return f"the line nests {depth:,} deep, and no row needs more than {MAX_DEPTH}"
    try:
        row: Any = json.loads(line)
    except UnicodeDecodeError:
        return "the line is not UTF-8"
    except (ValueError, RecursionError):
        return "the line is not one JSON value"
    if isinstance(row, list):
        return "the line is an array and not an object: each row is an object on a line of its own"
    return "" if isinstance(row, dict) else "the line is not an object"


def _bad_column(line: bytes, wire: pa.Schema, wanted: pa.Schema) -> tuple[str, str]:
    """The column whose value cannot be read, and words for it."""
    import pyarrow as pa

    # As pairs: a dict would hide a key that occurs twice, for which Arrow refuses the line.
    pairs: list[tuple[str, Any]] = json.loads(line, object_pairs_hook=list)
    row = dict(pairs)
    if len(row) < len(pairs):
        return "", "the line has a key twice"
    for field in wanted:
        if field.name not in row:
            continue
        alone = json.dumps({field.name: json.loads(line)[field.name]}).encode()
        try:
            list(_parse(alone, pa.schema([wire.field(field.name)]), pa.schema([field])))
        except pa.ArrowException:
            return field.name, f"column `{field.name}`: the value is no {type_name(field.type)}"
    return "", "the line holds a value that no column can hold, such as half a Unicode character"
