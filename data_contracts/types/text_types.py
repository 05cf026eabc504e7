"""The type of a column of texts: the narrowest that all of its values have, asked batch by batch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.types.column_types import arrow_type
from headway.data_contracts.types.written_numbers import PLAIN, NumberFormat, are_amounts, groups_of, plain_numbers

if TYPE_CHECKING:
    import pyarrow as pa

CANDIDATES = ("int64", "double", "bool", "date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]")
"""From narrow to wide; a column that is none of these is a string."""
NUMBER_TYPES = ("int64", "double")
CODES = r"^[+-]?0[0-9]|^[+-]?[0-9]{19,}$"
"""Digits that are no number: a leading zero (a post code), or more than an int64 holds."""

VALUELESS = "null"
"""Of a draft: no value was seen, in this file."""
WIDER = {frozenset(("int64", "double")): "double", frozenset(("date32[day]", "timestamp[us]")): "timestamp[us]"}
"""Two types to the one that the values of both have."""

DIRECTIVES = ("d", "m", "b", "B", "Y", "y", "H", "I", "p", "M", "S")
"""Of strptime."""
NUMBERS = {"d": r" *(?P<day>[0-9]{1,2})", "Y": "[0-9]{4}", "y": "[0-9]{2}", "S": "[0-5]?[0-9]"}
"""What strptime has to be told of, that takes the 31st of February, the year 25 and a second 61 for moments."""
ANY_NUMBER, ANY_WORD = " *[0-9]{1,2}", r"\pL+"


class TypeGuess:
    """Watches the texts of one column.

    Args:
        numbers: how its numbers are written.
        timestamp_formats: how dates and times are written, besides ISO 8601.
    """

    def __init__(self, name: str, numbers: NumberFormat = PLAIN, timestamp_formats: Sequence[str] = ()) -> None:
        self._name, self._numbers, self._formats = name, numbers, timestamp_formats
        self._left = list(CANDIDATES)
        self._has_value, self._has_fraction = False, False
        self._groups: set[int] = set()

    def see(self, texts: pa.Array) -> None:
        values = texts.drop_null()
        self._has_value = self._has_value or len(values) > 0
        self._left = [kind for kind in self._left if _are(values, kind, self._numbers, self._formats)]
        if self._numbers.thousands and {*NUMBER_TYPES} & {*self._left}:
            groups, has_fraction = groups_of(values, self._numbers)
            self._groups |= groups
            self._has_fraction = self._has_fraction or has_fraction

    def type_name(self, where: str, valueless: str = "") -> str:
        """Arguments and errors as of `guessed`."""
        are_numbers = are_amounts(self._numbers, self._groups, has_fraction=self._has_fraction)
        left = [kind for kind in self._left if are_numbers or kind not in NUMBER_TYPES]
        kind = left[0] if left else "string"
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


def has_formats(kind: pa.DataType, timestamp_formats: Sequence[str]) -> bool:
    """Whether values of a type may be written in one of these; a moment with a zone is always in ISO 8601."""
    import pyarrow as pa

    return bool(timestamp_formats) and pa.types.is_timestamp(kind) and kind.tz is None


def read_timestamps(texts: pa.Array, kind: pa.DataType, timestamp_formats: Sequence[str]) -> pa.Array:
    """Moments of a type without a zone, written in one of these formats or in ISO 8601.

    Raises:
        pa.ArrowInvalid: a text is none, or of a day that there is not.
    """
    import pyarrow.compute as pc

    read = _in_formats(texts, timestamp_formats)
    rest = pc.if_else(pc.is_valid(read), None, texts)
    return pc.coalesce(read.cast(kind), rest.cast(kind))


def _in_formats(texts: pa.Array, timestamp_formats: Sequence[str]) -> pa.Array:
    """The moment of each text that is written in one of these, else null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.nulls(len(texts), pa.timestamp("us"))
    for each in timestamp_formats:
        parts = pc.extract_regex(texts, _pattern(each))
        read = pc.strptime(pc.if_else(pc.is_valid(parts), texts, None), format=each, unit="us", error_is_null=True)
        # What overflows its month is another day of the next.
        is_there = pc.equal(pc.day(read), pc.struct_field(parts, "day").cast(pa.int64()))
        found = pc.coalesce(found, pc.if_else(is_there, read, None))
    return found


def _pattern(text_format: str) -> str:
    parts = re.split("%(.)", text_format)
    literals = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in parts[::2])
    values = (ANY_WORD if each in "bBp" else NUMBERS.get(each, ANY_NUMBER) for each in parts[1::2])
    return rf"\A{''.join(itertools.chain(*itertools.zip_longest(literals, values, fillvalue='')))}\z"


def _are(values: pa.Array, kind: str, numbers: NumberFormat, timestamp_formats: Sequence[str]) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind in NUMBER_TYPES and not numbers.is_plain:
        try:
            values = plain_numbers(values, numbers)
        except pa.ArrowInvalid:
            return False
    if kind in NUMBER_TYPES and pc.any(pc.match_substring_regex(values, CODES)).as_py():
        return False
    if kind == "double" and numbers.decimal != "." and numbers.is_plain:
        # A dot would part thousands then, and is in no number that the reader takes.
        if pc.any(pc.match_substring(values, ".")).as_py():
            return False
        values = pc.replace_substring(values, numbers.decimal, ".")
    if kind == "timestamp[us]":
        values = values.filter(_in_formats(values, timestamp_formats).is_null())
    try:
        values.cast(arrow_type(kind))
    except pa.ArrowException:
        return False
    return True
