"""Divergences are those of the books, and a distribution is compared in the accepted snapshot's bins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.scans.drift import jensen_shannon, population_stability_index

counts = st.lists(st.integers(0, 10**9), min_size=2, max_size=30)


def test_equal_shares_are_no_drift() -> None:
    assert jensen_shannon([10, 20], [100, 200]) == 0
    assert population_stability_index([10, 20], [10, 20]) == 0
    assert population_stability_index([1000, 2000], [100000, 200000]) < 1e-5


def test_known_values() -> None:
    # Shares 0.5, 0.5 against 0.9, 0.1: 0.4 ln 1.8 - 0.4 ln 0.2, and JS by hand.
    expected = 0.4 * math.log(1.8) - 0.4 * math.log(0.2)
    assert population_stability_index([500000, 500000], [900000, 100000]) == pytest.approx(expected, rel=1e-4)
    middle = (0.7, 0.3)
    divergence = 0.5 * sum(0.5 * math.log2(0.5 / m) for m in middle) + 0.5 * (
        0.9 * math.log2(0.9 / 0.7) + 0.1 * math.log2(0.1 / 0.3)
    )
    assert jensen_shannon([50, 50], [90, 10]) == pytest.approx(divergence)


def test_nothing_in_common_is_one_bit_and_a_finite_index() -> None:
    assert jensen_shannon([10, 0], [0, 10]) == 1
    assert 1 < population_stability_index([1000, 0], [0, 1000]) < 100
    assert jensen_shannon([0, 0], [1, 0]) == 1
    assert jensen_shannon([0, 0], [0, 0]) == 0


@given(counts, st.randoms(use_true_random=False))
def test_both_are_symmetric_bounded_and_never_negative(before: list[int], random: object) -> None:
    now = list(reversed(before))
    psi, js = population_stability_index(before, now), jensen_shannon(before, now)
    assert psi >= 0 or math.isclose(psi, 0, abs_tol=1e-12)
    assert 0 <= js <= 1
    assert psi == pytest.approx(population_stability_index(now, before), abs=1e-12)
    assert js == pytest.approx(jensen_shannon(now, before), abs=1e-12)
