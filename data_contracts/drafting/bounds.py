"""Bounds for a draft: what was seen, widened by a margin and rounded outwards to figures a person would write."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

MARGIN_RATIO = 0.1
"""Of the width of what was seen, on either side."""
GREATEST = sys.float_info.max
ROWS_RATIO = 2
"""Half as many rows are too few."""


class Bounds(NamedTuple):
    low: int | float
    high: int | float


def widened(low: int | float, high: int | float) -> Bounds:
    """Bounds around what was seen; a bound never crosses zero when nothing seen did.

    A single value is widened by a share of itself.
    """
    if isinstance(low, int) and isinstance(high, int):
        least, greatest = _widened_integers(low, high)
    else:
        least, greatest = _widened_floats(low, high)
    return Bounds(max(least, 0) if low >= 0 else least, min(greatest, 0) if high <= 0 else greatest)


def _widened_integers(low: int, high: int) -> Bounds:
    # Integers stay integers: a float would lose digits beyond 2**53.
    width = high - low or abs(high) or 1
    margin, step = math.ceil(width * MARGIN_RATIO), max(1, int(_round_step(width)))
    return Bounds((low - margin) // step * step, -(-(high + margin) // step) * step)


def _widened_floats(low: float, high: float) -> Bounds:
    width = high - low or abs(high) or 1.0
    if math.isinf(width):
        return Bounds(-GREATEST, GREATEST)
    margin, step = width * MARGIN_RATIO, _round_step(width)
    least, greatest = max(low - margin, -GREATEST), min(high + margin, GREATEST)
    # Rounding the last digit of a huge bound could leave it inside of what was seen, or beyond any number.
    return Bounds(
        max(min(low, _rounded(math.floor(least / step) * step, step)), -GREATEST),
        min(max(high, _rounded(math.ceil(greatest / step) * step, step)), GREATEST),
    )


def _round_step(width: int | float) -> float:
    """A hundredth to a tenth of the width, a power of ten."""
    return float(10.0 ** max(math.floor(math.log10(width)) - 1, -300))


def _rounded(value: float, step: float) -> float:
    digits = -round(math.log10(step))
    return round(value, digits) if abs(digits) < 300 else value


def longest(max_length: int) -> int:
    """A bound for lengths: twice what was seen, rounded up to one leading digit."""
    doubled = max(2 * max_length, 1)
    step: int = 10 ** (len(str(doubled)) - 1)
    return -(-doubled // step) * step


def fewest_rows(num_rows: int) -> int:
    return max(1, num_rows // ROWS_RATIO)
