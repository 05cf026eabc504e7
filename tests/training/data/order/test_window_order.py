from __future__ import annotations

import contextlib
import hashlib
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.training.data.load.row_groups import RowGroupTable
from headway.training.data.order.window_order import WindowOrder
from tests.waiting import DEADLINE_S

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=12)
SEEDS = st.integers(0, 2**63)
WINDOWS = st.integers(1, 14)


def order_of(sizes: list[int], seed: int = 0, window: int = 3) -> WindowOrder:
    return WindowOrder(RowGroupTable(sizes), seed=seed, window_row_groups=window)


@given(SIZES, SEEDS, WINDOWS, st.integers(0, 4))
def test_every_epoch_uses_every_row_exactly_once(sizes: list[int], seed: int, window: int, epoch: int) -> None:
    num_rows = sum(sizes)
    rows = order_of(sizes, seed, window).rows(np.arange(epoch * num_rows, (epoch + 1) * num_rows))
    assert sorted(rows.tolist()) == list(range(num_rows))


@given(SIZES, SEEDS, WINDOWS, st.lists(st.integers(0, 900), max_size=40, unique=True))
def test_a_row_depends_on_its_position_alone(sizes: list[int], seed: int, window: int, positions: list[int]) -> None:
    together = order_of(sizes, seed, window).rows(np.array(sorted(positions), dtype=np.int64))
    alone = [order_of(sizes, seed, window).rows(np.array([position]))[0] for position in sorted(positions)]
    assert together.tolist() == alone


@given(SIZES, SEEDS, WINDOWS)
def test_a_window_holds_whole_row_groups_and_mixes_them(sizes: list[int], seed: int, window: int) -> None:
    table = RowGroupTable(sizes)
    row_groups = table.find(order_of(sizes, seed, window).rows(np.arange(table.num_rows)))
    start, seen = 0, set()
    while start < table.num_rows:
        # The window's members are those met before it is full; it ends where all their rows are used.
        members: set[int] = set()
        end = start
        while end < table.num_rows and (not members or end - start < sum(sizes[member] for member in members)):
            members.add(int(row_groups[end]))
            end += 1
        assert len(members) <= window and not members & seen
        seen |= members
        start = end


def test_rows_of_a_window_are_shuffled_and_so_are_row_groups() -> None:
    table = RowGroupTable([100] * 50)
    rows = order_of([100] * 50, window=5).rows(np.arange(5000))
    row_groups = table.find(rows)
    first_window = row_groups[:500]
    assert len(set(first_window[:50])) == 5  # a handful of rows meets all five row groups
    assert abs(np.corrcoef(rows[:500], np.arange(500))[0, 1]) < 0.2
    met = [int(group) for group in dict.fromkeys(row_groups.tolist())]
    assert abs(np.corrcoef(met, np.arange(50))[0, 1]) < 0.4


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = {
        tuple(order_of([10] * 10, seed).rows(np.arange(epoch * 100, epoch * 100 + 100)).tolist())
        for seed in range(10)
        for epoch in range(10)
    }
    assert len(orders) == 100


def test_the_order_is_fixed_for_ever() -> None:
    assert order_of([3, 4, 2], seed=7, window=2).rows(np.arange(12)).tolist() == [8, 7, 2, 0, 1, 3, 6, 4, 5, 7, 1, 0]


def test_the_order_of_a_large_window_is_fixed_for_ever() -> None:
    rows = order_of([4096] * 20, seed=7, window=16).rows(np.arange(5000, 75_000))
    assert hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:16] == "831396c57ca4f566"


def test_rows_handed_out_cannot_change_the_order() -> None:
    order = order_of([50] * 4)
    expected = order.rows(np.arange(100)).copy()
    with contextlib.suppress(ValueError):  # read-only
        order.rows(np.arange(100))[:] = 0
    assert np.array_equal(order.rows(np.arange(100)), expected)


def test_threads_may_share_one_order() -> None:
    sizes, wrong = [50] * 40, []
    order = order_of(sizes, window=4)
    expected = order_of(sizes, window=4).rows(np.arange(8000))

    def ask(offset: int) -> None:
        for first in range(offset, 7900, 400):
            if not np.array_equal(order.rows(np.arange(first, first + 96)), expected[first : first + 96]):
                wrong.append(first)

    threads = [threading.Thread(target=ask, args=(number * 37,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert wrong == []


@pytest.mark.parametrize(("sizes", "window"), [([], 3), ([0], 3), ([5], 0), ([5], -1)])
def test_nonsense_is_refused(sizes: list[int], window: int) -> None:
    with pytest.raises(ValueError, match="no window order"):
        order_of(sizes, window=window)
