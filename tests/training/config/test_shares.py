"""Who has how much of a batch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.training.config.parallel import shares_of


@given(
    st.lists(st.sampled_from([0.5, 1.0, 1.5, 3.0]), min_size=1, max_size=4).flatmap(
        lambda speeds: st.tuples(st.just(speeds), st.integers(len(speeds), 12))
    )
)
def test_no_other_shares_are_done_earlier_and_each_rank_has_some(drawn):
    speeds, num_units = drawn
    shares = shares_of(num_units, len(speeds), speeds)
    assert sum(shares) == num_units and min(shares) >= 1

    def done(of_ranks):
        return max(share / speed for share, speed in zip(of_ranks, speeds, strict=True))

    others = itertools.product(range(1, num_units + 1), repeat=len(speeds))
    assert done(shares) == min(done(other) for other in others if sum(other) == num_units)


@pytest.mark.parametrize(("num_units", "num_ranks"), [(8, 2), (8, 4), (16, 16), (64, 8)])
def test_equal_ranks_have_equal_shares(num_units, num_ranks):
    assert shares_of(num_units, num_ranks) == (num_units // num_ranks,) * num_ranks


def test_a_rank_of_half_the_speed_has_half_as_much():
    assert shares_of(6, 2, (1.0, 0.5)) == (4, 2)


def test_of_shares_that_are_done_equally_soon_those_are_taken_that_begin_at_large_subtrees():
    assert shares_of(16, 3) == (4, 6, 6)
    assert shares_of(16, 2, (0.2, 0.1)) == (11, 5) and shares_of(64, 3) == (20, 22, 22)


@pytest.mark.parametrize(
    "speeds",
    [
        (1.0, 1.0, 5e-324),
        (1e308, 1.0, 1e-300),
        (
            8.091376123663317e-18,
            1.1106915291620713e27,
            3.8847929381724004e-20,
            1.9300846171449815e21,
            1.6468212552706964e-10,
        ),
    ],
)
def test_speeds_that_are_unlike_beyond_all_counting_still_give_each_rank_some(speeds):
    shares = shares_of(8, len(speeds), speeds)
    assert sum(shares) == 8 and min(shares) >= 1
