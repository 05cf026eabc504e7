"""Families of column types, by name: what may be asked of a value depends on its family. Pure, no pyarrow."""

from __future__ import annotations

import re
from typing import Literal

from headway.data_contracts.types.column_types import INTEGER_NAMES

Family = Literal["bool", "integer", "float", "decimal", "string", "binary", "date", "time", "timestamp", "list"]
ORDERED: tuple[Family, ...] = ("integer", "float", "decimal", "date", "time", "timestamp")
"""Families whose values have a least and a greatest."""
TEMPORAL: tuple[Family, ...] = ("date", "time", "timestamp")
"""Families whose bounds are written as texts, such as `2026-01-31`."""
MEASURED: tuple[Family, ...] = ("string", "binary", "list")
"""Families whose values have a length: characters, bytes or elements."""

_LIST = re.compile(r"(?:fixed_size_)?list<(.+)>(?:\[\d+\])?")
_PREFIXES: dict[str, Family] = {
    "decimal128(": "decimal",
    "fixed_size_binary[": "binary",
    "date32[": "date",
    "time32[": "time",
    "time64[": "time",
    "timestamp[": "timestamp",
}
_NAMES: dict[str, Family] = {
    "bool": "bool",
    "float": "float",
    "double": "float",
    "string": "string",
    "binary": "binary",
    **dict.fromkeys(INTEGER_NAMES, "integer"),
}


def family(type_name: str) -> Family:
    """The family of a type that rows may have (`headway.data_contracts.types.column_types`)."""
    if _LIST.fullmatch(type_name):
        return "list"
    found = _NAMES.get(type_name) or next(
        (each for start, each in _PREFIXES.items() if type_name.startswith(start)), None
    )
    if found is None:
        raise ValueError(f"no column type: {type_name}")
    return found


def element_type(type_name: str) -> str:
    """The type of a list's elements."""
    match = _LIST.fullmatch(type_name)
    if match is None:
        raise ValueError(f"no list type: {type_name}")
    return match[1]


def has_zone(type_name: str) -> bool:
    return type_name.startswith("timestamp[") and ", tz=" in type_name
