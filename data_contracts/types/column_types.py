"""Column types: which Arrow types a row may have, under which names contracts and snapshots speak of them.

Several Arrow types that hold the same values count as one, so that a file written with a dictionary and a file written
without one agree. What has no name here is refused, with what to do instead.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

INTEGER_NAMES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
PLAIN_NAMES = (
    *("bool", *INTEGER_NAMES, "float", "double", "string", "binary"),
    *("date32[day]", "time32[ms]", "time64[us]", "time64[ns]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]"),
)
"""Names without parameters. Besides these: `timestamp[us, tz=UTC]` (any unit and zone), `fixed_size_binary[16]`,
`decimal128(18, 2)` (up to 38 digits), and `list<int32>` and `fixed_size_list<int32>[256]` of any type but a list."""
COMMON_NAMES = {
    **dict.fromkeys(("int", "integer", "long", "bigint"), "int64"),
    **dict.fromkeys(("float64", "real", "number", "numeric"), "double"),
    **dict.fromkeys(("float32", "single"), "float"),
    **dict.fromkeys(("str", "text", "object", "category", "varchar", "char", "large_string"), "string"),
    **dict.fromkeys(("boolean",), "bool"),
    **dict.fromkeys(("date", "date32"), "date32[day]"),
    **dict.fromkeys(("datetime", "datetime64", "datetime64[ns]", "timestamp"), "timestamp[us]"),
    "decimal": "decimal128(18, 2)",
}
"""What people call a type in Python, pandas and SQL, and its name here."""
MAX_SIZE = (1 << 31) - 1
"""Bytes or items of a value, as Arrow counts them."""
MAX_DECIMAL_DIGITS = 38

_ZONED = re.compile(r"timestamp\[(ms|us|ns), tz=([^\]]+)\]")
_DECIMAL = re.compile(r"decimal128\((\d{1,10}), (-?\d{1,10})\)")
_FIXED_BINARY = re.compile(r"fixed_size_binary\[(\d{1,10})\]")
_LIST = re.compile(r"list<(.+)>")
_FIXED_LIST = re.compile(r"fixed_size_list<(.+)>\[(\d{1,10})\]")


class UnknownType(ValueError):
    """A type that rows cannot have; its text says what to do instead."""


def type_name(arrow_type: pa.DataType) -> str:
    """The name of an Arrow type, one for all types that hold the same values.

    Raises:
        UnknownType: rows cannot have it.
    """
    return _name(_normal(arrow_type))


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type that rows of this name have.

    Raises:
        UnknownType: nothing has this name.
    """
    import pyarrow as pa

    if name in PLAIN_NAMES:
        return pa.type_for_alias(name)
    if match := _ZONED.fullmatch(name):
        return pa.timestamp(match[1], tz=match[2])
    if (match := _FIXED_BINARY.fullmatch(name)) and int(match[1]) <= MAX_SIZE:
        return pa.binary(int(match[1]))
    if (match := _DECIMAL.fullmatch(name)) and 0 <= int(match[2]) <= int(match[1]) <= MAX_DECIMAL_DIGITS:
        return pa.decimal128(int(match[1]), int(match[2]))
    if (match := _FIXED_LIST.fullmatch(name)) and "list<" not in match[1] and int(match[2]) <= MAX_SIZE:
        return pa.list_(arrow_type(match[1]), int(match[2]))
    if (match := _LIST.fullmatch(name)) and "list<" not in match[1]:
        return pa.list_(arrow_type(match[1]))
    raise UnknownType(f"{name!r} is no column type; there are {', '.join(PLAIN_NAMES)}, decimal128(18, 2), list<int32>")


def _name(normal: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(normal):
        return f"fixed_size_list<{normal.value_type}>[{normal.list_size}]"
    # Arrow spells out what the list's elements are called, which says nothing about the values.
    return f"list<{normal.value_type}>" if pa.types.is_list(normal) else str(normal)


def _normal(given: pa.DataType) -> pa.DataType:
    """The type that stands for all types with the same values."""
    import pyarrow as pa

    types = pa.types
    if isinstance(given, pa.BaseExtensionType):
        return _normal(given.storage_type)
    if types.is_dictionary(given) or types.is_run_end_encoded(given):
        return _normal(given.value_type)
    if types.is_fixed_size_list(given):
        return pa.list_(_element(given), given.list_size)
    if (
        types.is_list(given)
        or types.is_large_list(given)
        or types.is_list_view(given)
        or types.is_large_list_view(given)
    ):
        return pa.list_(_element(given))
    return _normal_scalar(given)


def _element(given: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    element = _normal(given.value_type)
    if pa.types.is_list(element) or pa.types.is_fixed_size_list(element):
        raise UnknownType("lists of lists have no place in a row: write one flat list, and its lengths as a column")
    return element


def _normal_scalar(given: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    types = pa.types
    if types.is_large_string(given) or types.is_string_view(given):
        return pa.string()
    if types.is_large_binary(given) or types.is_binary_view(given):
        return pa.binary()
    if types.is_float16(given):
        return pa.float32()
    if types.is_date64(given):
        return pa.date32()
    if types.is_timestamp(given) and given.unit == "s":
        # Parquet has no seconds.
        return pa.timestamp("ms", tz=given.tz)
    if types.is_time32(given):
        return pa.time32("ms")
    if types.is_decimal(given):
        return _normal_decimal(given)
    if str(given) in PLAIN_NAMES or types.is_timestamp(given) or types.is_fixed_size_binary(given):
        return given
    raise UnknownType(_advice(given))


def _normal_decimal(given: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if given.precision > MAX_DECIMAL_DIGITS or not 0 <= given.scale <= given.precision:
        raise UnknownType(f"{given} holds more than {MAX_DECIMAL_DIGITS} digits: cast it to decimal128 or double")
    return pa.decimal128(given.precision, given.scale)


def _advice(given: pa.DataType) -> str:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(given):
        return "structs have no place in a row: write each field as a column of its own"
    if types.is_map(given):
        return "maps have no place in a row: write the keys you need as columns"
    if types.is_null(given):
        return "it holds nothing but nulls and has no type: write it with the type it would have"
    if types.is_duration(given) or types.is_interval(given):
        return f"{given} has no place in a row: write an integer with its unit in the name, such as wait_ms"
    return f"{given} has no place in a row: cast it to a number, string or list"
