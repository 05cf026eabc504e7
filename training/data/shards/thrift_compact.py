"""Thrift's compact protocol, as much of it as writing Parquet's own structures takes.

Source: the Apache Thrift specification, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


class I32Value(NamedTuple):
    value: int


class I64Value(NamedTuple):
    value: int


class ListValue(NamedTuple):
    kind: int
    """Type of the elements, such as `BINARY`."""
    values: Sequence[Value]


class StructValue(NamedTuple):
    fields: Sequence[tuple[int, Value]]
    """Field number and value, in ascending order."""


Value = I32Value | I64Value | bytes | ListValue | StructValue


def encoded(value: Value) -> bytes:
    """A value's bytes, without its type."""
    match value:
        case I32Value() | I64Value():
            return _varint(_zigzag(value.value))
        case bytes():
            return _varint(len(value)) + value
        case ListValue():
            size = len(value.values)
            # Fifteen marks a longer list, whose length follows.
            header = bytes([size << 4 | value.kind]) if size < 15 else bytes([0xF0 | value.kind]) + _varint(size)
            return header + b"".join(map(encoded, value.values))
        case StructValue():
            return _struct(value)


def _struct(struct: StructValue) -> bytes:
    made, last = bytearray(), 0
    for number, value in struct.fields:
        # The short form of a field; none of Parquet's own structures that are written here needs the long one.
        if not 0 < number - last < 16:
            raise ValueError(f"field {number} after {last}")
        made.append((number - last) << 4 | _kind(value))
        made += encoded(value)
        last = number
    return bytes(made) + b"\0"


def _kind(value: Value) -> int:
    match value:
        case I32Value():
            return I32
        case I64Value():
            return I64
        case bytes():
            return BINARY
        case ListValue():
            return LIST
        case StructValue():
            return STRUCT


def _zigzag(value: int) -> int:
    # Small negative numbers get short codes too.
    return value << 1 if value >= 0 else (-value << 1) - 1


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
