from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.training.data.encode.exact_sums import LARGEST, ExactSum, exact_squares

FINITE = st.floats(-(LARGEST**2), LARGEST**2)


def summed(values: list[float]) -> Fraction:
    total = ExactSum()
    total.add(np.array(values))
    return total.value


@given(st.lists(FINITE, min_size=1, max_size=50))
def test_a_sum_is_that_of_fractions(values: list[float]) -> None:
    assert summed(values) == sum(map(Fraction, values))


@given(st.lists(FINITE, min_size=2, max_size=30), st.data())
def test_cut_and_order_do_not_show(values: list[float], data: st.DataObject) -> None:
    turned = data.draw(st.permutations(values))
    cut = data.draw(st.integers(1, len(values) - 1))
    parts = ExactSum()
    parts.add(np.array(turned[:cut]))
    parts.add(np.array(turned[cut:]))
    assert parts.value == summed(values)


def test_many_numbers_of_one_size_stay_exact() -> None:
    values = np.full(3_000_000, 0.1)
    assert summed(values.tolist()) == Fraction(0.1) * 3_000_000


@given(st.lists(st.floats(-(2.0**200), 2.0**200).filter(lambda value: not 0 < abs(value) < 2.0**-200), min_size=1))
def test_a_square_is_the_sum_of_its_two_doubles(values: list[float]) -> None:
    squares, rests = exact_squares(np.array(values))
    for value, square, rest in zip(values, squares.tolist(), rests.tolist(), strict=True):
        assert Fraction(square) + Fraction(rest) == Fraction(value) ** 2
