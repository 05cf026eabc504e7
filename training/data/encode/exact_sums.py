"""Sums of floating-point numbers without any rounding: the same for every order, thread and batch.

Numbers are cut into layers, each a whole multiple of one power of two and at most 27 bits high, so that a double holds
the sum of 2**25 of them exactly (the idea of Demmel and Nguyen, 2013); Python's integers add the layers.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MAX_VALUES = 1 << 25
LAYER_BITS = 27
SMALLEST_EXPONENT = -1074
SPLITTER = float((1 << 27) + 1)
"""Veltkamp's constant: cuts a double into two of 26 bits."""
LARGEST = 2.0**480
"""Squares of larger numbers come too near the end of the doubles."""

F64 = NDArray[np.float64]


class ExactSum:
    """A sum in units of the smallest double, 2**-1074."""

    def __init__(self, units: int = 0) -> None:
        self.units = units

    def add(self, values: F64) -> None:
        """Add numbers of at most `LARGEST` squared."""
        for first in range(0, len(values), MAX_VALUES):
            # In pieces, so that a layer's sum stays below 53 bits.
            self.units += _units(values[first : first + MAX_VALUES])

    @property
    def value(self) -> Fraction:
        return Fraction(self.units, 1 << -SMALLEST_EXPONENT)


def _units(values: F64) -> int:
    units, rest = 0, values
    # Layer by layer, until nothing is left: each takes the highest bits of all values.
    while largest := max(float(rest.max()), -float(rest.min())):
        exponent = max(math.frexp(largest)[1] - LAYER_BITS, SMALLEST_EXPONENT)
        # Adding and taking away 1.5 * 2**52 units rounds to whole units.
        rounder = math.ldexp(1.5, 52 + exponent)
        layer = (rest + rounder) - rounder
        # Exact: whole multiples of one unit, whose sum fits a double. Python's integers hold any size.
        units += int(math.ldexp(float(layer.sum()), -exponent)) << (exponent - SMALLEST_EXPONENT)
        rest = rest - layer
    return units


def exact_squares(values: F64) -> tuple[F64, F64]:
    """Squares as two doubles each, whose sum is the square itself (Dekker, 1971), for numbers up to `LARGEST`.

    Where a square is below 2**-900 the second double may be rounded: by a rule of the number alone.
    """
    squares = values * values
    scaled = SPLITTER * values
    high = scaled - (scaled - values)
    low = values - high
    return squares, ((high * high - squares) + 2 * high * low) + low * low
