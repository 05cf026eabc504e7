"""JSON lines as rows, a block of lines at a time: columns of a whole file, and batches in columns that are known."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from data_contracts.column_types import UnknownType, arrow_type, type_name
from data_contracts.errors import DataError
from data_contracts.source_errors import reading_table, refused_column
from data_contracts.table_schema import check_names
from data_contracts.text_types import guessed

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 20


class Block(NamedTuple):
    first_line: int
    """Counted from 1."""
    data: bytes


def json_columns(path: Path, where: str, declared: Mapping[str, str]) -> dict[str, str]:
    """Names and types of a file's columns: as declared, or the narrowest type that every value of the file has.

    Raises:
        DataError: not JSON lines; nested objects; a column of two types, or without a value.
    """
    found: dict[str, str | None] = dict(declared)
    for block in blocks(path, where):
        for name, kind in _block_types(block, where, declared).items():
            found[name] = _wider(where, name, found.get(name), kind)
    check_names(where, found)
    return {name: guessed(name, kind or "", where, is_known=kind is not None) for name, kind in found.items()}


def json_batches(path: Path, where: str, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """All rows of a file in its order, in these columns; a key that a line lacks is null.

    Raises:
        DataError: a line that is no object, has another key, or a value of another type: named, and never quoted.
    """
    import pyarrow as pa

    wanted = pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
    wire = pa.schema([(field.name, _wire_type(field.type)) for field in wanted])
    for block in blocks(path, where):
        try:
            yield from _parse(block.data, wire, wanted)
        except (pa.ArrowException, UnicodeDecodeError):
            raise _first_fault(block, where, wire, wanted) from None


def blocks(path: Path, where: str) -> Iterator[Block]:
    """Whole lines, `BLOCK_BYTES` at a time; blocks of blank lines are left out."""
    import pyarrow as pa

    line, held = 1, b""
    with reading_table(where), pa.input_stream(path, compression="detect") as stream:
        while True:
            read = stream.read(BLOCK_BYTES)
            data = held + read
            end = data.rfind(b"\n") + 1 if read else len(data)
            block, held = data[:end], data[end:]
            if block.strip():
                yield Block(line, block)
            line += block.count(b"\n")
            if not read:
                return
            if len(held) > MAX_LINE_BYTES:
                raise DataError(f"a line is longer than {MAX_LINE_BYTES:,} bytes.", where=f"{where}, line {line:,}")


def _read(data: bytes, wire: pa.Schema, *, unexpected: str) -> pa.Table:
    from pyarrow import json as arrow_json

    return arrow_json.read_json(
        io.BytesIO(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=arrow_json.ParseOptions(explicit_schema=wire, unexpected_field_behavior=unexpected),
    )


def _parse(data: bytes, wire: pa.Schema, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

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


def _block_types(block: Block, where: str, declared: Mapping[str, str]) -> dict[str, str | None]:
    """Type by name of what one block holds; None where it holds nothing but nulls."""
    import pyarrow as pa

    try:
        block.data.decode()
        return _schema_types(block.data, where, declared)
    except (pa.ArrowException, UnicodeDecodeError):
        return _types_by_line(block, where, declared)


def _schema_types(data: bytes, where: str, declared: Mapping[str, str]) -> dict[str, str | None]:
    import pyarrow as pa

    wire = pa.schema([(name, _wire_type(arrow_type(kind))) for name, kind in declared.items()])
    schema = _read(data, wire, unexpected="infer").schema
    return {field.name: declared.get(field.name) or _inferred(where, field) for field in schema}


def _types_by_line(block: Block, where: str, declared: Mapping[str, str]) -> dict[str, str | None]:
    """The same, slowly: it finds the line that cannot be read, or the one whose type is another.

    Raises:
        DataError: names the line.
    """
    found: dict[str, str | None] = {}
    for line in _lines(block):
        place = f"{where}, line {line.first_line:,}"
        if problem := _not_an_object(line.data):
            raise DataError(f"{problem}.", where=place)
        for name, kind in _line_types(line, place, declared).items():
            found[name] = _wider(place, name, found.get(name), kind)
    return found


def _line_types(line: Block, place: str, declared: Mapping[str, str]) -> dict[str, str | None]:
    import pyarrow as pa

    try:
        return _schema_types(line.data, place, declared)
    except pa.ArrowException:
        wanted = pa.schema([(name, arrow_type(kind)) for name, kind in declared.items()])
        wire = pa.schema([(field.name, _wire_type(field.type)) for field in wanted])
        raise DataError(f"{_bad_column(json.loads(line.data), wire, wanted)}.", where=place) from None


def _lines(block: Block) -> Iterator[Block]:
    for number, line in enumerate(block.data.split(b"\n"), block.first_line):
        if line.strip():
            yield Block(number, line)


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
    raise refused_column(where, name, f"holds {one} in one part and {other} in another")


def _first_fault(block: Block, where: str, wire: pa.Schema, wanted: pa.Schema) -> DataError:
    """The first line of a block that cannot be read, in words that do not quote it."""
    import pyarrow as pa

    for line in _lines(block):
        try:
            list(_parse(line.data, wire, wanted))
        except (pa.ArrowException, UnicodeDecodeError):
            return DataError(
                f"{_fault(line.data, wire, wanted)}.",
                where=f"{where}, line {line.first_line:,}",
                advice="Correct it, or declare the column's type in `source.column_types`.",
            )
    return DataError("not readable as JSON lines.", where=f"{where}, from line {block.first_line:,} on")


def _fault(line: bytes, wire: pa.Schema, wanted: pa.Schema) -> str:
    if problem := _not_an_object(line):
        return problem
    row = json.loads(line)
    if extra := sorted(set(row) - set(wire.names)):
        return f"the key `{ascii(extra[0])[1:-1]}` is none of the columns"
    return _bad_column(row, wire, wanted)


def _not_an_object(line: bytes) -> str:
    """What keeps a line from being one JSON object; empty if it is one."""
    try:
        row: Any = json.loads(line)
    except UnicodeDecodeError:
        return "the line is not UTF-8"
    except (ValueError, RecursionError):
        return "the line is not one JSON value"
    return "" if isinstance(row, dict) else "the line is not an object"


def _bad_column(row: dict[str, Any], wire: pa.Schema, wanted: pa.Schema) -> str:
    import pyarrow as pa

    for field in wanted:
        if field.name not in row:
            continue
        alone = json.dumps({field.name: row[field.name]}).encode()
        try:
            list(_parse(alone, pa.schema([wire.field(field.name)]), pa.schema([field])))
        except pa.ArrowException:
            return f"column `{field.name}`: the value is no {type_name(field.type)}"
    return "the line has a key twice"
