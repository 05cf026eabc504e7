"""The sample order of a run, which mixes datasets by weight.

That is which dataset gives the sample at a position, and the how-manieth of it.

The schedule repeats after as many samples as the weights add up to in whole numbers. Inside a period it is Tijdeman's:
after any number of samples every dataset has given its share to within one, less 1 / (2k - 2) for k datasets, which
no schedule beats. Source: Tijdeman, "The chairman assignment problem" (Discrete Mathematics 32, 1980).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.training.config.order_spec import OrderSpec, whole_shares
from headway.training.data.load.shard_reader import Dataset, ShardReader
from headway.training.data.order.exact_order import ExactOrder, SampleOrder, check_positions
from headway.training.data.order.window_order import WindowOrder
from headway.training.data.splitmix import mix


class Draws(NamedTuple):
    """For each position, the dataset that gives the sample, and how many samples it gave before."""

    datasets: NDArray[np.int64]
    ordinals: NDArray[np.int64]


class MixingSchedule:
    """Draws by position alone: two look-ups each, at any position.

    Args:
        weights: relative, one a dataset; taken as the decimal numbers they print as.

    Raises:
        ValueError: a weight is not positive, or their proportions need too long a period.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        # As the decimal numbers that weights print as: 0.1 in binary would make periods of billions.
        self.shares = np.array(whole_shares(weights), dtype=np.int64)
        # Whole shares make a period, and a period makes the schedule a look-up at any position.
        self.period = int(self.shares.sum())
        self._datasets = _tijdeman(self.shares.tolist())
        self._ordinals = np.empty(self.period, dtype=np.int64)
        for dataset in range(self.shares.size):
            self._ordinals[self._datasets == dataset] = np.arange(self.shares[dataset])

    def draws(self, positions: NDArray[np.int64]) -> Draws:
        cycles, places = np.divmod(positions, self.period)
        datasets = self._datasets.take(places)
        return Draws(datasets, cycles * self.shares.take(datasets) + self._ordinals.take(places))


class MixedOrder:
    """One sample order out of several, whose rows are numbered one dataset after another.

    Args:
        orders: one a dataset, each with epochs of its own.
        first_rows: the number of each dataset's first row.
    """

    def __init__(self, schedule: MixingSchedule, orders: Sequence[SampleOrder], first_rows: Sequence[int]) -> None:
        self._schedule, self._orders, self._first_rows = schedule, tuple(orders), tuple(first_rows)

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        check_positions(positions)
        draws = self._schedule.draws(positions)
        rows = np.empty(positions.size, dtype=np.int64)
        for dataset, (order, first_row) in enumerate(zip(self._orders, self._first_rows, strict=True)):
            # Each dataset's own positions ascend with the mixture's, as its order asks for.
            chosen = draws.datasets == dataset
            rows[chosen] = order.rows(draws.ordinals[chosen]) + first_row
        return rows


def _tijdeman(shares: Sequence[int]) -> NDArray[np.int64]:
    """One period: the earliest deadline first among those whose time has come.

    With n = 2k - 2 and period T, dataset i may give its j-th sample (from 0) at place p once (p + 1) w / T >= j + 1/n,
    and must before (p + 1) w / T > j + 1 - 1/n.
    """
    period, margin = sum(shares), max(2 * len(shares) - 2, 1)
    waiting = [(0, dataset, 0) for dataset in range(len(shares))]  # first place, dataset, ordinal
    ready: list[tuple[Fraction, int, int]] = []  # deadline, dataset, ordinal
    order = np.empty(period, dtype=np.int64)
    for dataset, share in enumerate(shares):
        waiting[dataset] = (_first_place(share, 0, period, margin), dataset, 0)
    # A heap for those whose time has come, and one for those who wait: a period costs n log n.
    heapq.heapify(waiting)
    for place in range(period):
        while waiting and waiting[0][0] <= place:
            _, dataset, ordinal = heapq.heappop(waiting)
            heapq.heappush(ready, (_deadline(shares[dataset], ordinal, period, margin), dataset, ordinal))
        _, dataset, ordinal = heapq.heappop(ready)
        order[place] = dataset
        if ordinal + 1 < shares[dataset]:
            heapq.heappush(waiting, (_first_place(shares[dataset], ordinal + 1, period, margin), dataset, ordinal + 1))
    return order


def _first_place(share: int, ordinal: int, period: int, margin: int) -> int:
    # Whole numbers throughout: rounding here could let a dataset fall behind by one in long runs.
    return -(-(ordinal * margin + 1) * period // (margin * share)) - 1


def _deadline(share: int, ordinal: int, period: int, margin: int) -> Fraction:
    return Fraction(((ordinal + 1) * margin - 1) * period, margin * share)


def sample_order(spec: OrderSpec, reader: ShardReader, *, seed: int) -> SampleOrder:
    """A pure function of the spec, the seed and the reader's row groups.

    Args:
        reader: of the pipeline's manifest and, in the spec's order, those of `spec.mix`.
    """
    orders = [
        _dataset_order(spec, dataset, seed if number == 0 else mix(seed, number))
        for number, dataset in enumerate(reader.datasets)
    ]
    if not spec.mix:
        return orders[0]
    schedule = MixingSchedule(spec.weights)
    return MixedOrder(schedule, orders, [dataset.first_row for dataset in reader.datasets])


def _dataset_order(spec: OrderSpec, dataset: Dataset, seed: int) -> SampleOrder:
    if spec.shuffle == "window":
        return WindowOrder(dataset.row_groups, seed=seed, window_row_groups=spec.window_row_groups)
    return ExactOrder(dataset.row_groups.num_rows, seed=seed)
