"""How far two histograms over the same bins are apart. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

HALF = 0.5
"""Added to each count of the population stability index, so that an empty bin is no infinity (Krichevsky, Trofimov)."""


def population_stability_index(expected: Sequence[int], actual: Sequence[int]) -> float:
    """PSI, the sum of (a - e) ln(a / e) over the bins' shares: symmetric, 0 for equal shares, in nats.

    Source: Siddiqi, "Credit Risk Scorecards" (2006); it is Jeffreys' divergence (1946).

    Args:
        expected, actual: counts in the same bins; bins that are empty in both say nothing.
    """
    pairs = [(before, now) for before, now in zip(expected, actual, strict=True) if before or now]
    num_before = sum(before for before, _ in pairs) + HALF * len(pairs)
    num_now = sum(now for _, now in pairs) + HALF * len(pairs)
    terms = []
    for before, now in pairs:
        share_before, share_now = (before + HALF) / num_before, (now + HALF) / num_now
        terms.append((share_now - share_before) * math.log(share_now / share_before))
    return math.fsum(terms)


def jensen_shannon(expected: Sequence[int], actual: Sequence[int]) -> float:
    """Jensen-Shannon divergence in bits: 0 for equal shares, 1 when no bin is filled in both.

    Source: Lin, "Divergence measures based on the Shannon entropy" (1991). Nothing against something is 1.
    """
    num_before, num_now = sum(expected), sum(actual)
    if not num_before or not num_now:
        return 0.0 if num_before == num_now else 1.0
    terms = []
    for before, now in zip(expected, actual, strict=True):
        for share, other in ((before / num_before, now / num_now), (now / num_now, before / num_before)):
            if share:
                terms.append(HALF * share * math.log2(2 * share / (share + other)))
    # Rounding may carry the sum a little below 0 or above 1.
    return min(1.0, max(0.0, math.fsum(terms)))
