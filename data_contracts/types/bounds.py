"""Bounds as a contract writes them, read by the type of the column, so that they compare as its values do. Pure."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from headway.data_contracts.types.type_families import TEMPORAL, Family, family, has_zone

_READERS: dict[Family, type[datetime.date] | type[datetime.time]] = {
    "date": datetime.date,
    "time": datetime.time,
    "timestamp": datetime.datetime,
}
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}(\d+)")


def read_bound(bound: int | float | str, type_name: str) -> Any:
    """What a bound means: a number, or a pair of a date or time and its part below a microsecond, in microseconds.

    Raises:
        ValueError: it is no bound of the type; the message is the end of a sentence.
    """
    kind = family(type_name)
    if kind in TEMPORAL:
        return _read_temporal(str(bound), type_name)
    if not isinstance(bound, str):
        return bound
    if kind != "decimal":
        raise ValueError(f"{bound!r} is no number")
    try:
        number = Decimal(bound)
    except InvalidOperation:
        raise ValueError(f"{bound!r} is no decimal number") from None
    if not number.is_finite():
        raise ValueError(f"{bound} is no decimal number")
    return number


def _read_temporal(text: str, type_name: str) -> tuple[datetime.date | datetime.time, Decimal]:
    reader = _READERS[family(type_name)]
    try:
        read = reader.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {reader.__name__} such as 2026-01-31T12:00:00") from None
    if has_zone(type_name) and isinstance(read, datetime.datetime) and read.tzinfo is None:
        raise ValueError(f"{text!r} needs its offset from UTC, such as +00:00, for {type_name}")
    # `fromisoformat` drops what is below a microsecond; a column of nanoseconds does not.
    rest = _BELOW_MICROSECONDS.search(text)
    return read, Decimal(f"0.{rest[1]}" if rest else 0)


def compare_bounds(low: int | float | str, high: int | float | str, type_name: str) -> int:
    """-1, 0 or 1: whether the first is below, at or above the second.

    Args:
        type_name: the column's type; empty: both are numbers.

    Raises:
        ValueError: they cannot be compared, such as a time with an offset and one without.
    """
    first: Any = read_bound(low, type_name) if type_name else low
    second: Any = read_bound(high, type_name) if type_name else high
    try:
        return int(first > second) - int(first < second)
    except TypeError:
        raise ValueError(f"{low} and {high} cannot be compared: give both an offset from UTC, or neither") from None
