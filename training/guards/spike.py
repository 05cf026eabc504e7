"""How far a loss lies above the recent ones, in robust standard deviations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations (Rousseeuw and Croux, 1993)."""
LEAST_RELATIVE = 0.01
"""Least deviation taken for real, of the median: recent losses that hardly differ must not make noise a spike."""


def robust_z(value: float, recent: Sequence[float]) -> float:
    """Negative below the median of the recent values. A pure function of the numbers, with no torch in it."""
    middle = statistics.median(recent)
    deviation = NORMAL_MAD * statistics.median(abs(each - middle) for each in recent)
    return (value - middle) / max(deviation, LEAST_RELATIVE * abs(middle), 1e-12)
