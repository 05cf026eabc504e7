"""The share of rows that a contract lets go, as its key `quarantine_limit_ratio` says it."""

from __future__ import annotations

import math
from typing import Final

DEFAULT_LIMIT_RATIO: Final = 0.01


def sufficient_ratio(num_bad: int, num_rows: int) -> float:
    """The least ratio of two digits under which so many of the rows may be quarantined."""
    share = num_bad / max(num_rows, num_bad) if num_bad else 0.0
    if not share:
        return 0.0
    digits = 1 - math.floor(math.log10(share))
    ratio = round(math.ceil(round(share * 10.0**digits, 6)) / 10.0**digits, digits)
    # A product of floats may fall just short of the whole number that it stands for.
    while int(num_rows * ratio) < num_bad and ratio < 1:
        ratio = round(ratio + 10.0**-digits, digits)
    return min(ratio, 1.0)


def limit_advice(num_bad: int, num_rows: int) -> str:
    """The key with a value that suffices."""
    return f"`quarantine_limit_ratio: {sufficient_ratio(num_bad, num_rows):g}`"
