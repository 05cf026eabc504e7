from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.training.data.order.exact_order import ExactOrder
from headway.training.data.order.mixing import MixedOrder, MixingSchedule

WEIGHTS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(WEIGHTS)
def test_after_any_number_of_samples_each_dataset_has_its_share_within_one(weights: list[int]) -> None:
    schedule = MixingSchedule(weights)
    num_samples = np.arange(1, 2 * schedule.period + 1)
    datasets = schedule.draws(num_samples - 1).datasets
    given_so_far = np.cumsum(datasets[:, None] == np.arange(len(weights)), axis=0)
    excess = np.abs(given_so_far * sum(weights) - num_samples[:, None] * np.array(weights))
    bound = Fraction(1) - Fraction(1, 2 * len(weights) - 2) if len(weights) > 1 else Fraction(0)
    assert int(excess.max()) <= bound * sum(weights)  # Tijdeman's bound, which is below one


@given(WEIGHTS, st.lists(st.integers(0, 10**12), min_size=1, max_size=30))
def test_a_draw_depends_on_its_position_alone(weights: list[int], positions: list[int]) -> None:
    schedule = MixingSchedule(weights)
    together = schedule.draws(np.array(sorted(positions)))
    for place, position in enumerate(sorted(positions)):
        alone = MixingSchedule(weights).draws(np.array([position]))
        assert (together.datasets[place], together.ordinals[place]) == (alone.datasets[0], alone.ordinals[0])


@given(WEIGHTS, st.integers(0, 1000))
def test_ordinals_count_a_datasets_samples(weights: list[int], first: int) -> None:
    schedule = MixingSchedule(weights)
    draws = schedule.draws(np.arange(first + 300))
    for dataset in range(len(weights)):
        ordinals = draws.ordinals[draws.datasets == dataset]
        assert np.array_equal(ordinals, np.arange(ordinals.size))


def test_weights_are_the_decimal_numbers_they_print_as() -> None:
    assert MixingSchedule([0.7, 0.2, 0.1]).shares.tolist() == [7, 2, 1]
    assert MixingSchedule([2, 4, 6]).shares.tolist() == [1, 2, 3]
    assert MixingSchedule([1e-3, 2.5e-3]).shares.tolist() == [2, 5]


@pytest.mark.parametrize("weights", [[], [0.0, 1.0], [-1.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_that_are_no_shares_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be positive numbers"):
        MixingSchedule(weights)


def test_proportions_that_take_for_ever_are_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"repeat only after 1,000,000 samples.*small whole numbers"):
        MixingSchedule([0.333333, 0.666667])


def test_each_dataset_has_epochs_of_its_own() -> None:
    sizes, first_rows = [7, 50], [0, 7]
    order = MixedOrder(MixingSchedule([1, 2]), [ExactOrder(size, seed=3) for size in sizes], first_rows)
    rows = order.rows(np.arange(3 * 50))
    small, large = rows[rows < 7], rows[rows >= 7]
    assert large.size == 100 and small.size == 50
    assert all(sorted(epoch) == list(range(7)) for epoch in small[:49].reshape(7, 7).tolist())
    assert all(sorted(epoch) == list(range(7, 57)) for epoch in large.reshape(2, 50).tolist())
