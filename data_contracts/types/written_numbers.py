"""Numbers as people and spreadsheets write them: `1,234.50`, `€ 12`, `45 %`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
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
    has_two_signs = pc.and_(*(pc.not_equal(pc.struct_field(parts, name), "") for name in ("outer", "inner")))
    is_number = pc.fill_null(pc.and_(has_unit, pc.invert(has_two_signs)), False)
    is_read = pc.or_(is_number, pc.match_substring_regex(texts, NO_DIGITS))
    if pc.any(pc.invert(is_read)).as_py():  # a null is neither
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


def groups_of(texts: pa.Array, written: NumberFormat) -> tuple[set[int], bool]:
    """How many marks between thousands these numbers have, and whether one has a fraction."""
    import pyarrow.compute as pc

    parts = pc.extract_regex(pc.utf8_trim_whitespace(texts), written.pattern()).drop_null()
    marks = pc.count_substring(pc.struct_field(parts, "whole"), written.thousands)
    has_fraction = pc.any(pc.greater(pc.binary_length(pc.struct_field(parts, "part")), 0)).as_py()
    return set(pc.unique(marks).to_pylist()), bool(has_fraction)


def python_pattern(written: NumberFormat, units: Sequence[str] = ()) -> re.Pattern[str]:
    text = written.pattern(units).replace(r"\x{a0}", "\u00a0").replace(r"\x{202f}", "\u202f").replace(r"\z", r"\Z")
    return re.compile(text)


SIGNS = ("$", "€", "£", "¥", "₹", "%")
FORMATS = (
    *((".", ""), (",", "")),
    *((".", ","), (",", "."), (".", "'"), (".", "’"), (",", "\u00a0"), (",", "\u202f"), (",", " "), (".", " ")),
)
"""Decimal and thousands, the commonest first."""


class NumbersFound(NamedTuple):
    """What the values of some columns show of how numbers are written; columns by place."""

    written: NumberFormat
    units: dict[int, str]
    """Of columns that have one."""
    grouped: list[int]
    """Columns whose numbers have the mark between thousands."""
    unclear: list[int]
    """Columns that may be numbers, and are texts until somebody says: `1,234` is one of two."""


class _Reading(NamedTuple):
    """The values of a column in one format."""

    plain: tuple[tuple[str, ...], ...]
    unit: str
    is_grouped: bool
    is_constant: bool
    """Whether all values have as many marks between thousands: counts seldom do, and codes and coordinates do."""
    is_evident: bool
    """Whether a value has its mark between thousands and no other meaning: with a fraction, a unit or two groups."""


def guess_number_format(
    columns: Sequence[Sequence[str]], decimals: Sequence[str], *, is_given: bool = False
) -> NumbersFound:
    """How the numbers of some columns are written.

    The mark before fractions is that of most columns which allow but one, of equals the point. A mark between
    thousands needs evidence: codes and lists of them look alike.

    Args:
        columns: values of each column, as texts; those without a value say nothing.
        decimals: what may stand before a fraction.
        is_given: whether a person says so, and one group of three digits is evidence.
    """
    formats = [NumberFormat(decimal, thousands) for decimal, thousands in FORMATS if decimal in decimals]
    readings = [{each: read for each in formats if (read := _reading(values, each))} for values in columns]
    votes = Counter(
        each for found in readings if len(marks := {written.decimal for written in found}) == 1 for each in marks
    )
    decimal = max(votes, key=lambda each: (votes[each], each == "."), default="")
    if decimal:
        formats = [each for each in formats if each.decimal == decimal]
    readings_left = [{each: found[each] for each in formats if each in found} for found in readings]
    clear = [found if len({read.plain for read in found.values()}) == 1 else {} for found in readings_left]
    candidates = [
        each
        for each in formats
        if (not each.thousands and each.decimal == (decimal or "."))
        or any(found[each].is_evident or (is_given and found[each].is_grouped) for found in clear if each in found)
    ]
    best = max(candidates, key=lambda each: sum(each in found for found in clear))
    taken = {
        place: read
        for place, found in enumerate(clear)
        if (read := found.get(best)) and (is_given or read.is_evident or not (read.is_grouped and read.is_constant))
    }
    return NumbersFound(
        best,
        {place: read.unit for place, read in taken.items() if read.unit},
        [place for place, read in taken.items() if read.is_grouped],
        [place for place, found in enumerate(readings) if found and place not in taken],
    )


def _reading(values: Sequence[str], written: NumberFormat) -> _Reading | None:
    """None: one is no number so written, or they are not one number: dollars and euros, 45 % and 0.45."""
    pattern = python_pattern(written, SIGNS)
    found = [match for value in values if (match := pattern.match(value))]
    if not values or len(found) < len(values):
        return None
    units = {each["before"] + each["after"] for each in found}
    unit = next(iter(units))
    if len(units) > 1 or unit not in ("", *SIGNS):
        return None
    wholes = [each["whole"] or "" for each in found]
    groups = [whole.count(written.thousands) if written.thousands else 0 for whole in wholes]
    has_fraction = [bool(each["part"]) for each in found]
    if not are_amounts(written._replace(unit=unit), {*groups}, has_fraction=any(has_fraction)):
        return None
    is_evident = any(number and (unit or part or number > 1) for number, part in zip(groups, has_fraction, strict=True))
    plain = tuple(
        (whole.replace(written.thousands, "") if written.thousands else whole, each["part"] or "", each["only"] or "")
        for whole, each in zip(wholes, found, strict=True)
    )
    return _Reading(plain, unit, any(groups), len({*groups}) == 1, bool(is_evident))


def are_amounts(written: NumberFormat, groups: Collection[int], *, has_fraction: bool) -> bool:
    """Whether the numbers of a column are none that part telephones or computers, such as 555 123 or 10.100.100.100.

    Args:
        groups: how many marks its numbers have.
    """
    if written.thousands not in (" ", ".") or written.unit or has_fraction or {*groups} <= {0}:
        return True
    return written.thousands == "." and (len({*groups}) > 1 or {*groups} == {1})
