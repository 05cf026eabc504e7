"""The type of a column of texts: the narrowest that all of its values have, asked batch by batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.types.column_types import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

CANDIDATES = ("int64", "double", "bool", "date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]")
"""From narrow to wide; a column that is none of these is a string."""
CODES = r"^[+-]?0[0-9]|^[+-]?[0-9]{19,}$"
"""Digits that are no number: a leading zero (a post code), or more than an int64 holds."""

VALUELESS = "null"
"""Of a draft: no value was seen, in this file."""
WIDER = {frozenset(("int64", "double")): "double", frozenset(("date32[day]", "timestamp[us]")): "timestamp[us]"}
"""Two types to the one that the values of both have."""

DIRECTIVES = ("d", "m", "b", "B", "Y", "y", "H", "I", "p", "M", "S")
"""Of strptime. With `%z` among its formats Arrow reads ISO 8601 no longer where a column has no zone."""


class TypeGuess:
    """Watches the texts of one column.

    Args:
        decimal: what stands before the fraction of a number.
        timestamp_formats: how dates and times are written, besides ISO 8601.
    """

    def __init__(self, name: str, decimal: str = ".", timestamp_formats: Sequence[str] = ()) -> None:
        self._name, self._decimal, self._formats = name, decimal, timestamp_formats
        self._left = list(CANDIDATES)
        self._has_value = False

    def see(self, texts: pa.Array) -> None:
        values = texts.drop_null()
        self._has_value = self._has_value or len(values) > 0
        self._left = [kind for kind in self._left if _are(values, kind, self._decimal, self._formats)]

    def type_name(self, where: str, valueless: str = "") -> str:
        """Arguments and errors as of `guessed`."""
        kind = self._left[0] if self._left else "string"
        return guessed(self._name, kind, where, is_known=self._has_value, valueless=valueless)


def guessed(name: str, kind: str, where: str, *, is_known: bool, valueless: str = "") -> str:
    """The type of a column.

    Args:
        is_known: whether a value was seen.
        valueless: the type of a column without any value; empty: it is refused.

    Raises:
        DataError: no value was seen.
    """
    if not is_known:
        if valueless:
            return valueless
        raise DataError(
            f"column `{name}` holds no value, so its type is not known.",
            where=where,
            advice=f"Declare it: `source.column_types: {{{name}: string}}`, or what it is.",
        )
    return kind


def common_type(types: Sequence[str], format_name: str) -> str:
    """The type of a column for which several files were asked; the first file's where JSON lines have none for all.

    Args:
        types: of each file, `VALUELESS` where it has no value.
    """
    seen = {each for each in types if each != VALUELESS}
    if len(seen) <= 1:
        return next(iter(seen), "string")
    first = next(each for each in types if each != VALUELESS)
    return WIDER.get(frozenset(seen), "string" if format_name == "csv" else first)


def format_problem(text: str) -> str:
    """What keeps a text from saying how dates are written; empty where nothing does."""
    directives = re.findall("%(.?)", text)
    if (unknown := next((each for each in directives if each not in DIRECTIVES), None)) is not None:
        return f"has %{unknown}, which is not read; there are {', '.join(f'%{each}' for each in DIRECTIVES)}"
    if any(len([each for each in directives if each in part]) != 1 for part in ("d", "mbB", "Yy")):
        return "needs a day, a month and a year, once each: such as %d.%m.%Y"
    return ""


def _are(values: pa.Array, kind: str, decimal: str, timestamp_formats: Sequence[str]) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind in ("int64", "double") and pc.any(pc.match_substring_regex(values, CODES)).as_py():
        return False
    if kind == "double" and decimal != ".":
        # A dot would part thousands then, and is in no number that the reader takes.
        if pc.any(pc.match_substring(values, ".")).as_py():
            return False
        values = pc.replace_substring(values, decimal, ".")
    if kind == "timestamp[us]":
        for each in timestamp_formats:
            values = values.filter(pc.strptime(values, format=each, unit="us", error_is_null=True).is_null())
    try:
        values.cast(arrow_type(kind))
    except pa.ArrowException:
        return False
    return True
