from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.order import BLOCK_ROWS, SampleOrder, sample_rows

ROWS = st.integers(1, 400)
SEEDS = st.integers(0, 2**63)


@given(ROWS, SEEDS, st.integers(0, 5))
def test_every_epoch_uses_every_row_exactly_once(num_rows: int, seed: int, epoch: int) -> None:
    rows = sample_rows(num_rows, seed=seed, first_position=epoch * num_rows, count=num_rows)
    assert sorted(rows.tolist()) == list(range(num_rows))


@given(ROWS, SEEDS, st.integers(0, 900), st.integers(0, 900), st.integers(0, 900))
def test_a_range_is_its_parts_put_together(num_rows: int, seed: int, first: int, one: int, two: int) -> None:
    def part(start: int, count: int) -> list[int]:
        return list(sample_rows(num_rows, seed=seed, first_position=start, count=count))

    assert part(first, one) + part(first + one, two) == part(first, one + two)


@given(ROWS, SEEDS, st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 200)), max_size=6))
def test_the_blockwise_order_never_shows_its_blocks(num_rows: int, seed: int, asked: list[tuple[int, int]]) -> None:
    order = SampleOrder(num_rows, seed=seed)
    for first, count in asked:
        expected = sample_rows(num_rows, seed=seed, first_position=first, count=count)
        assert np.array_equal(order.rows(first, count), expected)


def test_batches_cut_at_block_borders_are_the_same() -> None:
    order = SampleOrder(10_007, seed=5)
    batches = np.concatenate([order.rows(first, 96) for first in range(0, 3 * BLOCK_ROWS, 96)])
    assert np.array_equal(batches, sample_rows(10_007, seed=5, first_position=0, count=batches.size))


def test_threads_may_share_one_order() -> None:
    order, wrong = SampleOrder(999, seed=1), []

    def ask(offset: int) -> None:
        for first in range(offset, 200_000, 40_000):
            expected = sample_rows(999, seed=1, first_position=first, count=50)
            if not np.array_equal(order.rows(first, 50), expected):
                wrong.append(first)

    threads = [threading.Thread(target=ask, args=(number * 7919,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = {
        tuple(sample_rows(1000, seed=seed, first_position=epoch * 1000, count=1000).tolist())
        for seed in range(10)
        for epoch in range(10)
    }
    assert len(orders) == 100


def test_the_order_is_fixed_for_ever() -> None:
    assert sample_rows(10, seed=7, first_position=3, count=12).tolist() == [4, 3, 2, 5, 8, 1, 9, 4, 2, 9, 1, 8]
    far = sample_rows(3_000_000_000, seed=7, first_position=10**15, count=4)
    assert far.tolist() == [2747929425, 2912928686, 2346167786, 1084320087]


def test_orders_look_random() -> None:
    num_rows, num_seeds = 997, 400
    orders = np.stack([sample_rows(num_rows, seed=seed, first_position=0, count=num_rows) for seed in range(num_seeds)])
    fixed = (orders == np.arange(num_rows)).sum(axis=1).mean()
    neighbours = (np.abs(np.diff(orders, axis=1)) == 1).sum(axis=1).mean()
    correlation = np.mean([np.corrcoef(order, np.arange(num_rows))[0, 1] ** 2 for order in orders]) * (num_rows - 1)
    assert fixed == pytest.approx(1, abs=0.2)  # Poisson(1) a seed: 0.05 standard error
    assert neighbours == pytest.approx(2, abs=0.3)  # Poisson(2): 0.07
    assert correlation == pytest.approx(1, abs=0.3)  # chi-square(1): 0.07


@pytest.mark.parametrize(("num_rows", "first", "count"), [(0, 0, 1), (5, -1, 1), (5, 0, -1)])
def test_nonsense_is_refused(num_rows: int, first: int, count: int) -> None:
    with pytest.raises(ValueError, match="no sample order"):
        sample_rows(num_rows, seed=0, first_position=first, count=count)
