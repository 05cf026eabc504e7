"""Made-up rows of a source, as its contract lists them: for trying an encoder before any are read."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any, Final

from headway.data_contracts.rules.contract import Column, Contract
from headway.data_contracts.tables.text_rows import TEXT_COLUMNS
from headway.data_contracts.types.column_types import arrow_type
from headway.data_contracts.types.type_families import element_type, family

if TYPE_CHECKING:
    import pyarrow as pa

NUM_ROWS: Final = 16
TEXTS: Final = ("alpha beta", "gamma", "delta epsilon zeta", "beta")
FIXED_BINARY: Final = re.compile(r"fixed_size_binary\[(\d+)\]")
FIRST_DAY: Final = datetime.date(2026, 1, 1)


def synthetic_rows(contract: Contract, *, is_table: bool) -> pa.RecordBatch:
    """Rows without nulls, whose values keep to the contract's bounds and lists; patterns and rules are not kept."""
    import pyarrow as pa

    columns = contract.columns if is_table else {name: Column(type=kind) for name, kind in TEXT_COLUMNS.items()}
    return pa.record_batch({name: _values(column) for name, column in columns.items()})


def num_label_values(contract: Contract, label: str | None) -> int | None:
    """How many values the label may have; None where the contract lists none."""
    column = None if label is None else contract.columns.get(label)
    if column is None:
        return None
    if column.one_of is not None:
        return len(set(column.one_of))
    if column.type == "bool":
        return 2
    if family(column.type) == "integer" and isinstance(column.min, int) and isinstance(column.max, int):
        return column.max - column.min + 1
    return None


def _values(column: Column) -> pa.Array:
    import pyarrow as pa

    kind = arrow_type(column.type)
    if column.one_of is not None:
        given = [column.one_of[row % len(column.one_of)] for row in range(NUM_ROWS)]
        return pa.array(given).cast(kind)
    if family(column.type) == "list":
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else max(4, column.min_length or 0)
        elements = column.elements
        low = 0 if elements is None or elements.min is None else elements.min
        inner = [_value(element_type(column.type), row, low) for row in range(length)]
        return pa.array([inner] * NUM_ROWS, kind)
    low = _lowest(column)
    values = pa.array([_value(column.type, row, low, column) for row in range(NUM_ROWS)])
    return pa.array(values.to_pylist(), kind) if pa.types.is_fixed_size_binary(kind) else values.cast(kind)


def _lowest(column: Column) -> Any:
    """A number within the bounds; 1 where there are none, which may be divided by."""
    if isinstance(column.min, int | float) and not isinstance(column.min, bool):
        return column.min
    return min(1, column.max) if isinstance(column.max, int | float) else 1


def _value(type_name: str, row: int, low: Any, column: Column | None = None) -> Any:
    most = column.max if column is not None and isinstance(column.max, int | float) else None
    match family(type_name):
        case "bool":
            return row % 2 == 0
        case "integer":
            return int(min(low + row % 4, most)) if most is not None else int(low + row % 4)
        case "float" | "decimal":
            value = float(low + row / NUM_ROWS)
            return min(value, float(most)) if most is not None else value
        case "date":
            return FIRST_DAY + datetime.timedelta(days=row)
        case "time":
            return datetime.time(hour=row)
        case "timestamp":
            return datetime.datetime.combine(FIRST_DAY, datetime.time(hour=row), tzinfo=datetime.UTC)
        case "binary":
            fixed = FIXED_BINARY.fullmatch(type_name)
            least = 4 if column is None or column.min_length is None else column.min_length
            return bytes([row]) * (int(fixed[1]) if fixed else least)
    text = TEXTS[row % len(TEXTS)]
    least, longest = (0, None) if column is None else (column.min_length or 0, column.max_length)
    return (text * (1 + least // len(text)))[:longest]
