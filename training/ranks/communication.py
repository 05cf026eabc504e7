"""What ranks say to each other while they train: collectives that run beside computation, counted and timed.

An `Exchange` sums buckets of gradients over the gang. It is the seam for how they travel: in one tree, level by level
(`TreeExchange`), or as whole numbers (`integer_exchange.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from headway.training.observe.traffic import size_bytes
from headway.training.ranks.distributed import ProcessGroup


class Collectives:
    """A gang's collectives, asynchronous. All ranks must call the same ones in the same order.

    Their tensors are not to be touched before `wait` of what they return.

    Args:
        group: the ranks that take part; all by default.
        num_ranks: how many they are; a rank that is alone needs no group.
        place: the level on which they are counted apart, such as `host`.
    """

    def __init__(
        self,
        process_group: ProcessGroup,
        group: dist.ProcessGroup | None = None,
        num_ranks: int | None = None,
        place: str = "",
    ) -> None:
        self._group, self._meter = group, process_group.traffic
        self._suffix = f"/{place}" if place else ""
        self.num_ranks = num_ranks or (process_group.world_size if group is None else group.size())

    def all_reduce(self, tensor: Tensor) -> dist.Work:
        """Sum of all ranks' tensors, in place; in an order of the backend's choice, which two ranks do not notice."""
        return self._meter.start(
            f"all_reduce{self._suffix}",
            2 * self._sent_bytes(tensor),
            lambda: dist.all_reduce(tensor, group=self._group, async_op=True),
        )

    def maximum(self, tensor: Tensor) -> dist.Work:
        """The largest of all ranks' values, in place. None may be NaN: whether one stays depends on whose it is."""
        return self._meter.start(
            f"all_reduce{self._suffix}",
            2 * self._sent_bytes(tensor),
            lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group, async_op=True),
        )

    def all_to_all(self, received: Tensor, tensor: Tensor) -> dist.Work:
        """Equal parts of `tensor`, one to each rank; `received` holds theirs in rank order."""
        return self._meter.start(
            f"all_to_all{self._suffix}",
            self._sent_bytes(tensor),
            lambda: dist.all_to_all_single(received, tensor, group=self._group, async_op=True),
        )

    def all_gather(self, gathered: Tensor, tensor: Tensor) -> dist.Work:
        """All ranks' tensors one after another, in rank order."""
        return self._meter.start(
            f"all_gather{self._suffix}",
            self._sent_bytes(gathered),
            lambda: dist.all_gather_single(gathered, tensor, group=self._group, async_op=True),
        )

    def wait(self, pending: dist.Work) -> None:
        """For one that was begun, where nothing else is left to do."""
        self._meter.wait(pending)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (n, ...) of all ranks, (ranks * n, ...), in rank order; on the gang's device, as the rows are."""
        if self.num_ranks == 1:
            return rows
        gathered = rows.new_empty((self.num_ranks * rows.shape[0], *rows.shape[1:]))
        self.wait(self.all_gather(gathered, rows))
        return gathered

    def _sent_bytes(self, whole: Tensor) -> int:
        """All ranks' parts of it but the own."""
        # What a rank keeps of its own does not cross the network.
        return size_bytes(whole) * (self.num_ranks - 1) // self.num_ranks


def gang_levels(process_group: ProcessGroup) -> list[Collectives]:
    """Those of the ranks of a host, and of hosts; where one level does, all ranks'."""
    if not process_group.levels:
        return [Collectives(process_group)]
    return [Collectives(process_group, level.group, level.num_ranks, level.place) for level in process_group.levels]


class Exchange(Protocol):
    """Sums buckets over ranks while backward goes on."""

    def start(self, rows: Sequence[Tensor]) -> None:
        """Sum flat buckets, one of each of this rank's islands, over all ranks. The last row is to hold the sum.

        Rows are a multiple of the ranks long, and come in the same order on every rank, every step.
        """

    def finish(self) -> None:
        """Return when the last row of everything that was started holds its sum."""


class TreeExchange:
    """Adds ranks up in one binary tree, level by level: those of a host first, then hosts among each other.

    On each level a rank adds up its part of what came from the level below, in tree order, and on the way back the
    level's ranks hand their parts to each other. So a host sends each sum once, however many ranks it has. One level
    moves as many bytes as a ring. Levels of two ranks each are recursive halving and doubling (Thakur et al., 2005).

    A bucket goes on by one collective whenever a later one starts, so that one travels while another is added up; never
    from a callback, whose order differs between ranks.

    Args:
        levels: innermost first; each a power of two of ranks. Ranks next to each other in the tree share a level.
    """

    def __init__(self, levels: Sequence[Collectives]) -> None:
        self._levels = [level for level in levels if level.num_ranks > 1]
        self._scratch: list[list[Tensor]] = []
        self._num_started = 0
        self._on_their_way: list[_Travelling] = []
        # Apart, since every start looks through the others, and a large model has thousands of buckets.
        self._arriving: list[_Travelling] = []

    def start(self, rows: Sequence[Tensor]) -> None:
        (bucket,) = rows
        if not self._levels:
            return
        # Of each bucket of a step, made in the first step and kept: fresh memory costs more than the sum.
        if self._num_started == len(self._scratch):
            self._scratch.append(_scratch(bucket, self._levels))
        started = _Travelling(bucket, self._levels, self._scratch[self._num_started])
        self._num_started += 1
        self._go_on()
        (self._arriving if started.is_last else self._on_their_way).append(started)

    def finish(self) -> None:
        while self._on_their_way:
            self._go_on()
        for each in self._arriving:
            each.arrive()
        self._arriving, self._num_started = [], 0

    def _go_on(self) -> None:
        """Let all that are on their way issue their next collective."""
        for each in self._on_their_way:
            each.go_on()
        # The last collective of each is waited for by `finish` alone: nothing else depends on it.
        self._arriving += [each for each in self._on_their_way if each.is_last]
        self._on_their_way = [each for each in self._on_their_way if not each.is_last]


class _Travelling:
    """One bucket on its way up the levels and down again; its first collective is issued."""

    def __init__(self, bucket: Tensor, levels: Sequence[Collectives], scratch: Sequence[Tensor]) -> None:
        self._levels, self._scratch = levels, scratch
        self._parts = [bucket]
        """On each level, what this rank sums of the level below."""
        self._level, self._rises = 0, True
        self._issue()

    @property
    def is_last(self) -> bool:
        return self._level == 0 and not (self._rises and _is_scattered(self._levels, 0))

    def go_on(self) -> None:
        """Wait for its last collective and issue the next."""
        self.arrive()
        if self._rises and _is_scattered(self._levels, self._level):
            # Every rank adds the same operands in the same tree, each for its own part.
            self._parts.append(tree_sum(self._scratch[self._level].view(self._levels[self._level].num_ranks, -1)))
            self._rises = self._level + 1 < len(self._levels)
            self._level += self._rises
        else:
            self._rises = False
            self._level -= 1
        self._issue()

    def arrive(self) -> None:
        self._levels[self._level].wait(self._pending)

    def _issue(self) -> None:
        level, part = self._levels[self._level], self._parts[self._level]
        if not self._rises:
            self._pending = level.all_gather(part, self._parts[self._level + 1])
        elif _is_scattered(self._levels, self._level):
            self._pending = level.all_to_all(self._scratch[self._level], part)
        else:
            self._pending = level.all_reduce(part)


def _is_scattered(levels: Sequence[Collectives], level: int) -> bool:
    # a + b is b + a: the tree of two needs no order, and where nothing lies above it no parts.
    return level + 1 < len(levels) or levels[level].num_ranks > 2


def _scratch(bucket: Tensor, levels: Sequence[Collectives]) -> list[Tensor]:
    """What each level receives of a bucket: as much as the level hands in, where ranks hand in parts."""
    received, length = [], bucket.numel()
    for level in range(len(levels)):
        received.append(bucket.new_empty(length if _is_scattered(levels, level) else 0))
        length //= levels[level].num_ranks
    return received


def tree_sum(rows: Tensor) -> Tensor:
    """Sum of rows (n, ...) in binary-tree order. The rows are used as scratch space."""
    num_rows, distance = rows.shape[0], 1
    while distance < num_rows:
        # In place: rows at twice the distance keep the sums of their subtrees.
        right = rows[distance :: 2 * distance]
        rows[:: 2 * distance][: len(right)].add_(right)
        distance *= 2
    return rows[0]
