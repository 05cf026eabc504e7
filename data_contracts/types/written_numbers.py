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
    """How the numbers of a column are written, besides plain digits with a point before the fraction."""

    decimal: str = "."
    thousands: str = ""
    """What stands between groups of three digits; empty: nothing."""
    unit: str = ""
    """A sign before or after each number; empty: none has one."""

    @property
    def is_plain(self) -> bool:
        """Whether the CSV reader takes them as they are."""
        return not self.thousands and not self.unit

    def pattern(self, units: Sequence[str] = ()) -> str:
        """A whole text that is such a number, as RE2 and Python's `re` read it.

        Args:
            units: which there may be, in place of the one there is.
        """
        units = [each for each in (self.unit, *units) if each]
        unit = f"(?:{'|'.join(map(re.escape, units))})?" if units else ""
        space = r"[ \x{a0}\x{202f}]*" if units else ""
        # No number begins with a zero and a mark: `0.125` is a fraction, `00,123` a code.
        grouped = f"[1-9][0-9]{{0,2}}(?:{re.escape(self.thousands)}[0-9]{{3}})+|" if self.thousands else ""
        decimal = re.escape(self.decimal)
        digits = f"(?:(?P<whole>{grouped}[0-9]+)(?:{decimal}(?P<part>[0-9]*))?|{decimal}(?P<only>[0-9]+))"
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

    texts = pc.utf8_trim_whitespace(texts)  # as the CSV reader does
    parts = pc.extract_regex(texts, written.pattern())
    has_unit = pc.equal(
        pc.binary_join_element_wise(pc.struct_field(parts, "before"), pc.struct_field(parts, "after"), ""), written.unit
    )
    is_number = pc.fill_null(has_unit, False)
    is_read = pc.or_(is_number, pc.match_substring_regex(texts, NO_DIGITS))
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
    return pc.if_else(is_number, plain, texts)


def python_pattern(written: NumberFormat, units: Sequence[str] = ()) -> re.Pattern[str]:
    text = written.pattern(units).replace(r"\x{a0}", "\u00a0").replace(r"\x{202f}", "\u202f").replace(r"\z", r"\Z")
    return re.compile(text)


SIGNS = ("$", "€", "£", "¥", "₹", "%")
FORMATS = (
    *((".", ""), (",", "")),
    *((".", ","), (",", "."), (".", "'"), (".", "’"), (",", "\u00a0"), (",", "\u202f"), (",", " "), (".", " ")),
)
"""Decimal and thousands, the commonest first."""


def guess_number_format(
    columns: Sequence[Sequence[str]], decimals: Sequence[str]
) -> tuple[NumberFormat, dict[int, str]]:
    """How the numbers of some columns are written, and the unit of those that have one, by place.

    It is as most columns allow, of equals the commonest.

    Args:
        columns: values of each column, as texts; those without a value say nothing.
        decimals: what may stand before a fraction.
    """
    formats = [NumberFormat(decimal, thousands) for decimal, thousands in FORMATS if decimal in decimals]
    units: dict[NumberFormat, dict[int, str]] = {}
    for each in formats:
        pattern = python_pattern(each, SIGNS)
        units[each] = {
            place: found[0]["before"] + found[0]["after"]
            for place, values in enumerate(columns)
            if values
            and (found := [match for value in values if (match := pattern.match(value))])
            and len(found) == len(values)
            and _is_one_number(found, each)
        }
    best = max(formats, key=lambda each: len(units[each]))
    return best, {place: unit for place, unit in units[best].items() if unit}


def _is_one_number(found: Sequence[re.Match[str]], written: NumberFormat) -> bool:
    """Dollars and euros are not; nor are 45 % and 0.45."""
    units = {each["before"] + each["after"] for each in found}
    # Blanks alone part telephone numbers as well as thousands.
    is_clear = written.thousands != " " or any(units) or any(each["part"] for each in found)
    return len(units) <= 1 and units <= {"", *SIGNS} and is_clear
