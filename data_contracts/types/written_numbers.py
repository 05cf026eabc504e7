"""Numbers as people and spreadsheets write them: `1,234.50`, `€ 12`, `45 %`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

EXPONENT = "(?:[eE][+-]?[0-9]+)?"
NO_DIGITS = r"(?i)\A[+-]?(?:nan|inf|infinity)\z"
"""Written alike in every format."""


class NumberFormat(NamedTuple):
    """How numbers are written, besides plain digits with a point before the fraction."""

    decimal: str = "."
    thousands: str = ""
    """What stands between groups of three digits; empty: nothing."""
    units: tuple[str, ...] = ()
    """Signs before or after a number, which are passed over."""

    @property
    def is_plain(self) -> bool:
        """Whether the CSV reader takes them as they are."""
        return not self.thousands and not self.units

    def pattern(self, *, fraction: str = "?") -> str:
        """A whole text that is such a number, as RE2 and Python's `re` read it."""
        unit = f"(?:{'|'.join(map(re.escape, self.units))})?" if self.units else ""
        space = r"[ \x{a0}\x{202f}]*" if self.units else ""
        # No number begins with a zero and a mark: `0.125` is a fraction, `00,123` a code.
        grouped = f"[1-9][0-9]{{0,2}}(?:{re.escape(self.thousands)}[0-9]{{3}})+|" if self.thousands else ""
        decimal = re.escape(self.decimal)
        digits = f"(?:(?P<whole>{grouped}[0-9]+)(?:{decimal}(?P<part>[0-9]*)){fraction}|{decimal}(?P<only>[0-9]+))"
        number = f"{digits}(?P<exponent>{EXPONENT})"
        sign = f"(?P<outer>[+-]?){space}(?P<before>{unit}){space}(?P<inner>[+-]?)"
        return rf"\A{sign}{number}{space}(?P<after>{unit})\z"


PLAIN = NumberFormat()


def has_number_format(kind: pa.DataType, written: NumberFormat) -> bool:
    """Whether values of a type are to be read by `read_numbers`."""
    import pyarrow as pa

    return not written.is_plain and (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def read_numbers(texts: pa.Array, kind: pa.DataType, written: NumberFormat) -> pa.Array:
    """Raises `pa.ArrowInvalid`: a text is no number."""
    return plain_numbers(texts, written).cast(kind)


def plain_numbers(texts: pa.Array, written: NumberFormat) -> pa.Array:
    """Numbers as Arrow reads them.

    Raises:
        pa.ArrowInvalid: a text is no number so written. Arrow may take it for another: `1.234`, beside decimal commas.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = pc.extract_regex(texts, written.pattern())
    is_read = pc.or_(pc.is_valid(parts), pc.match_substring_regex(texts, NO_DIGITS))
    if not pc.all(is_read).as_py():  # a null is neither
        raise pa.ArrowInvalid("a text is no number so written")
    part = {name: pc.struct_field(parts, name) for name in ("outer", "inner", "whole", "part", "only", "exponent")}
    whole = pc.replace_substring(part["whole"], written.thousands, "") if written.thousands else part["whole"]
    sign = pc.replace_substring(pc.binary_join_element_wise(part["outer"], part["inner"], ""), "+", "")
    digits = pc.binary_join_element_wise(sign, whole, "")
    fraction = pc.binary_join_element_wise(part["part"], part["only"], "")
    has_fraction = pc.greater(pc.binary_length(fraction), 0)
    # Whole numbers stay whole: `1,234` is an integer.
    plain = pc.if_else(has_fraction, pc.binary_join_element_wise(digits, ".", fraction, ""), digits)
    plain = pc.binary_join_element_wise(plain, part["exponent"], "")
    return pc.if_else(pc.is_valid(parts), plain, texts)


def units_of(texts: pa.Array, written: NumberFormat) -> set[str]:
    """The units of the numbers among these texts, an empty one where a number has none."""
    import pyarrow.compute as pc

    parts = pc.extract_regex(texts, written.pattern()).drop_null()
    both = pc.binary_join_element_wise(pc.struct_field(parts, "before"), pc.struct_field(parts, "after"), "")
    return set(pc.unique(both).to_pylist())


def python_pattern(written: NumberFormat) -> re.Pattern[str]:
    text = written.pattern().replace(r"\x{a0}", "\u00a0").replace(r"\x{202f}", "\u202f").replace(r"\z", r"\Z")
    return re.compile(text)


SIGNS = ("$", "€", "£", "¥", "₹", "%")
FORMATS = (
    *((".", ""), (",", "")),
    *((".", ","), (",", "."), (".", "'"), (".", "’"), (",", "\u00a0"), (",", "\u202f"), (",", " "), (".", " ")),
)
"""Decimal and thousands, the commonest first."""


def guess_number_format(columns: Sequence[Sequence[str]], decimals: Sequence[str]) -> NumberFormat:
    """How the numbers of some columns are written: as most columns allow, of equals the commonest.

    Args:
        columns: values of each column, as texts; those without a value say nothing.
        decimals: what may stand before a fraction.
    """
    formats = [NumberFormat(decimal, thousands, SIGNS) for decimal, thousands in FORMATS if decimal in decimals]
    numbers: dict[NumberFormat, list[int]] = {}
    for each in formats:
        pattern = python_pattern(each)
        numbers[each] = [
            place
            for place, values in enumerate(columns)
            if values and all(found := [pattern.match(value) for value in values]) and _is_one_number(found, each)
        ]
    best = max(formats, key=lambda each: len(numbers[each]))
    units = {
        unit
        for place in numbers[best]
        for value in columns[place]
        if (number := python_pattern(best).match(value)) and (unit := number["before"] or number["after"])
    }
    return best._replace(units=tuple(each for each in SIGNS if each in units))


def _is_one_number(found: Sequence[re.Match[str] | None], written: NumberFormat) -> bool:
    """Dollars and euros are not; nor are 45 % and 0.45."""
    units = {each["before"] + each["after"] for each in found if each}
    # Blanks alone part telephone numbers as well as thousands.
    is_clear = written.thousands != " " or any(units) or any(each["part"] for each in found if each)
    return len(units) <= 1 and is_clear
