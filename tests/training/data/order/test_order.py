from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.training.data.order.exact_order import BLOCK_ROWS, MAX_POSITION, MAX_ROWS, ExactOrder

ROWS = st.integers(1, 400)
SEEDS = st.integers(0, 2**63)


def rows_at(num_rows: int, seed: int, first: int, count: int) -> NDArray[np.int64]:
    return ExactOrder(num_rows, seed=seed).rows(np.arange(first, first + count))


@given(ROWS, SEEDS, st.integers(0, 5))
def test_every_epoch_uses_every_row_exactly_once(num_rows: int, seed: int, epoch: int) -> None:
    assert sorted(rows_at(num_rows, seed, epoch * num_rows, num_rows).tolist()) == list(range(num_rows))


@given(ROWS, SEEDS, st.lists(st.integers(0, 3 * BLOCK_ROWS), max_size=40))
def test_a_row_depends_on_its_position_alone(num_rows: int, seed: int, positions: list[int]) -> None:
    order = ExactOrder(num_rows, seed=seed)
    together = order.rows(np.array(sorted(positions), dtype=np.int64))
    assert together.tolist() == [order.rows(np.array([position]))[0] for position in sorted(positions)]


@given(ROWS, SEEDS, st.integers(1, 3), st.integers(1, 400))
def test_a_range_that_ends_just_past_an_epoch_is_no_exception(
    num_rows: int, seed: int, epoch: int, before: int
) -> None:
    border = epoch * num_rows
    together = rows_at(num_rows, seed, max(0, border - before), min(before, border) + 1)
    assert together[-1] == rows_at(num_rows, seed, border, 1)[0]


def test_blocks_never_show() -> None:
    parts = [rows_at(10_007, 5, first, 96) for first in range(0, 3 * BLOCK_ROWS, 96)]
    assert np.array_equal(np.concatenate(parts), rows_at(10_007, 5, 0, 3 * BLOCK_ROWS))


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = {tuple(rows_at(1000, seed, epoch * 1000, 1000).tolist()) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_the_order_is_fixed_for_ever() -> None:
    assert rows_at(10, 7, 3, 12).tolist() == [7, 5, 0, 8, 6, 2, 4, 1, 7, 6, 5, 3]
    far = rows_at(3_000_000_000, 7, 10**15, 4)
    assert far.tolist() == [1063344318, 1853339051, 2845512031, 1382916136]


def test_orders_look_random() -> None:
    num_rows, num_seeds = 997, 400
    orders = np.stack([rows_at(num_rows, seed, 0, num_rows) for seed in range(num_seeds)])
    fixed = (orders == np.arange(num_rows)).sum(axis=1).mean()
    neighbours = (np.abs(np.diff(orders, axis=1)) == 1).sum(axis=1).mean()
    correlation = np.mean([np.corrcoef(order, np.arange(num_rows))[0, 1] ** 2 for order in orders]) * (num_rows - 1)
    assert fixed == pytest.approx(1, abs=0.2)  # Poisson(1) a seed: 0.05 standard error
    assert neighbours == pytest.approx(2, abs=0.3)  # Poisson(2): 0.07
    assert correlation == pytest.approx(1, abs=0.3)  # chi-square(1): 0.07


@pytest.mark.parametrize("num_rows", [0, -1, MAX_ROWS + 1])
def test_an_order_of_nothing_or_too_much_is_refused(num_rows: int) -> None:
    with pytest.raises(ValueError, match="no sample order"):
        ExactOrder(num_rows, seed=0)


@pytest.mark.parametrize("positions", [[-1, 0], [0, MAX_POSITION]])
def test_positions_out_of_range_are_refused(positions: list[int]) -> None:
    with pytest.raises(ValueError, match="no sample at positions"):
        ExactOrder(5, seed=0).rows(np.array(positions))
