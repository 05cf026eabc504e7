"""Figures: aggregates over rows whose values for two sets of rows give the value for both. Exact, in any order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from headway.data_contracts.store.digests import sha256_of

Groups = dict[int, int]
BUCKET_BITS = 32
DOUBLE_BITS = 53
"""One more than the bits behind a double's first: `log2` of a value just below a power of two rounds up to it, and so
puts the value one group too high."""
NAN, PLUS_INFINITY, MINUS_INFINITY = 1000, 1001, 1002
"""Groups of an exact sum beyond all exponents: their weights count values."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number for all rows.

    Args:
        sql: an aggregate that yields an integer, a double or null.
    """

    sql: str
    merge: Literal["sum", "min", "max"] = "sum"

    @property
    def name(self) -> str:
        return sha256_of([self.merge, self.sql])[:24]

    def merged(self, values: Iterable[Any]) -> Any:
        """The value for all rows from the values for parts of them. None: no row had a value."""
        found = [value for value in values if value is not None]
        if self.merge == "sum":
            return sum(found)
        if not found:
            return None
        # DuckDB holds NaN to be above every number.
        numbers = [value for value in found if not _is_nan(value)]
        if self.merge == "max":
            return max(numbers) if len(numbers) == len(found) else math.nan
        return min(numbers) if numbers else math.nan


@dataclass(frozen=True, slots=True)
class Grouped:
    """One integer for each group of rows.

    Args:
        key_sql: an expression that gives an integer, never null, for each row.
        weight_sql: an expression that gives an integer; a row's own weight in its group.
    """

    key_sql: str
    weight_sql: str = "1"

    @property
    def name(self) -> str:
        return sha256_of(["grouped", self.key_sql, self.weight_sql])[:24]

    def merged(self, values: Iterable[Mapping[int, int]]) -> Groups:
        total: Groups = {}
        for groups in values:
            for key, weight in groups.items():
                total[key] = total.get(key, 0) + weight
        return total


Figure = Scalar | Grouped


def exact_sum(column: str) -> Grouped:
    """The sum of doubles without rounding: each is an integer of at most 53 bits times a power of two.

    Values are grouped by 32 binary orders of magnitude; in each group they are integers of the same unit, below 2^86,
    so that 2^40 of them stay within DuckDB's 128 bits. `sum_of` puts the groups together.

    Args:
        column: the quoted column.
    """
    bucket = f"floor(log2(abs({column})) / {BUCKET_BITS})::INT"
    key = (
        f"CASE WHEN {column} IS NULL OR {column} = 0 THEN 0 WHEN isnan({column}) THEN {NAN} "
        f"WHEN isinf({column}) THEN CASE WHEN {column} > 0 THEN {PLUS_INFINITY} ELSE {MINUS_INFINITY} END "
        f"ELSE {bucket} END"
    )
    # Two factors, for 2 to the power of 1,100 is no double.
    unit = f"pow(2.0, ({DOUBLE_BITS} - {BUCKET_BITS} * {bucket}) // 2)"
    rest = f"pow(2.0, ({DOUBLE_BITS} - {BUCKET_BITS} * {bucket}) - ({DOUBLE_BITS} - {BUCKET_BITS} * {bucket}) // 2)"
    weight = (
        f"CASE WHEN {column} IS NULL OR {column} = 0 THEN 0::HUGEINT WHEN NOT isfinite({column}) THEN 1::HUGEINT "
        f"ELSE ({column}::DOUBLE * {unit} * {rest})::HUGEINT END"
    )
    return Grouped(key, weight)


def sum_of(groups: Mapping[int, int]) -> Fraction | float:
    """The exact sum that `exact_sum` grouped; a float when NaN or an infinity is among the values."""
    num_up, num_down = groups.get(PLUS_INFINITY, 0), groups.get(MINUS_INFINITY, 0)
    if groups.get(NAN, 0) or (num_up and num_down):
        return math.nan
    if num_up or num_down:
        return math.inf if num_up else -math.inf
    return sum(
        (Fraction(weight) * Fraction(2) ** (BUCKET_BITS * key - DOUBLE_BITS) for key, weight in groups.items()),
        Fraction(0),
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
