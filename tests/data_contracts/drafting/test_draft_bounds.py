"""Drafted bounds hold what was seen with room to spare, and are figures a person would write."""

from __future__ import annotations

import math

import yaml
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.drafting.bounds import fewest_rows, longest, widened
from headway.data_contracts.drafting.columns import scalar

INTEGERS = st.integers(-(2**63), 2**64)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(INTEGERS, INTEGERS)
def test_integer_bounds_hold_what_was_seen_and_stay_integers(first: int, second: int) -> None:
    low, high = sorted((first, second))
    bounds = widened(low, high)
    assert bounds.low <= low <= high <= bounds.high
    assert isinstance(bounds.low, int) and isinstance(bounds.high, int)


@given(FLOATS, FLOATS)
def test_float_bounds_hold_what_was_seen(first: float, second: float) -> None:
    low, high = sorted((first, second))
    bounds = widened(low, high)
    assert bounds.low <= low <= high <= bounds.high
    assert math.isfinite(bounds.low) and math.isfinite(bounds.high)


@given(FLOATS, FLOATS)
def test_no_bound_crosses_zero_when_nothing_seen_did(first: float, second: float) -> None:
    low, high = sorted((first, second))
    bounds = widened(low, high)
    assert low < 0 or bounds.low >= 0
    assert high > 0 or bounds.high <= 0


def test_the_margin_is_a_tenth_of_the_width_rounded_outwards() -> None:
    assert widened(13.91, 89.65) == (6.0, 98.0)
    assert widened(18, 90) == (10, 98)
    assert widened(0.0, 0.3) == (0.0, 0.33)
    assert widened(5, 5) == (4, 6)


def test_lengths_have_room_for_twice_what_was_seen() -> None:
    assert [longest(length) for length in (0, 3, 17, 250)] == [1, 6, 40, 500]


def test_at_least_one_row_is_asked_for() -> None:
    assert [fewest_rows(number) for number in (1, 2, 1000)] == [1, 1, 500]


def test_what_an_editor_would_not_show_as_itself_is_escaped() -> None:
    for odd in ("a\u202eb", "a\u2028b", "a\x85b", "a\nb"):
        assert scalar(odd).isprintable() and yaml.safe_load(scalar(odd)) == odd
    assert scalar("Größe") == "Größe"
