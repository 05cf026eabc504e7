"""What ranks say to each other while they train: collectives that run beside computation, counted and timed.

An `Exchange` sums buckets of gradients over the gang. It is the seam for how they travel: in one tree, level by level
(`TreeExchange`), or as whole numbers (`integer_exchange.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from headway.training.observe.traffic import size_bytes
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.tree_plan import LevelPlan, Subtree


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
        self.rank = 0 if self.num_ranks == 1 else process_group.rank if group is None else group.rank()
        """This one's place among them."""

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

    def all_to_all(self, received: Tensor, tensor: Tensor, rows: Sequence[int] = ()) -> dist.Work:
        """Equal parts of `tensor`, one to each rank; `received` holds theirs in rank order.

        Args:
            rows: how many rows of equal length each rank's parts have; as many each where it is empty.
        """
        sizes = [received.numel() // sum(rows) * each for each in rows] or None
        equal = [tensor.numel() // self.num_ranks] * self.num_ranks if rows else None
        return self._meter.start(
            f"all_to_all{self._suffix}",
            self._sent_bytes(tensor),
            lambda: dist.all_to_all_single(received, tensor, sizes, equal, group=self._group, async_op=True),
        )

    def all_gather(self, gathered: Tensor, tensor: Tensor) -> dist.Work:
        """All ranks' tensors one after another, in rank order."""
        return self._meter.start(
            f"all_gather{self._suffix}",
            self._sent_bytes(gathered),
            lambda: dist.all_gather_single(gathered, tensor, group=self._group, async_op=True),
        )

    def broadcast(self, tensor: Tensor, source: int) -> dist.Work:
        """The tensor of that rank of all, in place."""
        is_source = dist.get_rank() == source
        return self._meter.start(
            f"broadcast{self._suffix}",
            size_bytes(tensor) * is_source,
            lambda: dist.broadcast(tensor, src=source, group=self._group, async_op=True),
        )

    def wait(self, pending: dist.Work) -> None:
        """For one that was begun, where nothing else is left to do."""
        self._meter.wait(pending)

    def gather(self, rows: Tensor, num_rows: Sequence[int] = ()) -> Tensor:
        """The rows (n, ...) of all ranks, one rank's after another's; on the gang's device, as the rows are.

        Args:
            num_rows: that each rank has; as many as this one where it is empty.
        """
        if self.num_ranks == 1:
            return rows
        most = max(num_rows, default=rows.shape[0])
        is_even = not num_rows or min(num_rows) == most
        # Of one length, since backends gather nothing else.
        own = rows if is_even else torch.cat((rows, rows.new_zeros((most - rows.shape[0], *rows.shape[1:]))))
        gathered = rows.new_empty((self.num_ranks * most, *rows.shape[1:]))
        self.wait(self.all_gather(gathered, own))
        if is_even:
            return gathered
        return torch.cat([gathered[rank * most : rank * most + each] for rank, each in enumerate(num_rows)])

    def move_rows(
        self, kept: Tensor, before: range, after: range, owners: Sequence[int], new_owners: Sequence[int]
    ) -> Tensor:
        """The rows (n, ...) of a table that this rank is to have, of which each rank has a stretch; all ranks call it.

        Args:
            kept: those that it has had.
            before, after: which of the table they were, and which they are to be.
            owners, new_owners: the rank that has each row of all, before and after.
        """
        # A new one: a save may still read those of before.
        rows = kept.new_zeros((len(after), *kept.shape[1:]))
        for number, (owner, new_owner) in enumerate(zip(owners, new_owners, strict=True)):
            if owner == new_owner and number in after:
                rows[number - after.start].copy_(kept[number - before.start])
            elif owner != new_owner:
                row = kept[number - before.start] if number in before else kept.new_empty(kept.shape[1:])
                self.wait(self.broadcast(row, owner))
                if number in after:
                    rows[number - after.start].copy_(row)
        return rows

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
        """Sum flat buckets, one of each of this rank's subtrees, over all ranks. The last row is to hold the sum.

        Rows are a multiple of the ranks long, and come in the same order on every rank, every step.
        """

    def finish(self) -> None:
        """Return when the last row of everything that was started holds its sum."""


class TreeExchange:
    """Adds ranks up in one binary tree, level by level: those of a host first, then hosts among each other.

    On each level a rank adds up its part of what came from the level below, in tree order, and on the way back the
    level's ranks hand their parts to each other. So a host sends each sum once, however many ranks it has. One level
    moves as many bytes as a ring. Levels of two ranks each are recursive halving and doubling (Thakur et al., 2005).
    Ranks whose stretch of the tree is several subtrees hand in as many rows.

    A bucket goes on by one collective whenever a later one starts, so that one travels while another is added up; never
    from a callback, whose order differs between ranks.

    Args:
        levels: innermost first. Ranks next to each other in the tree share a level.
        plans: of each level, what is added up there; None: the tree of ranks, one row each, as many as a power of two.
    """

    def __init__(self, levels: Sequence[Collectives], plans: Sequence[LevelPlan] | None = None) -> None:
        self._all_levels = levels
        self._scratch: list[list[_Scratch]] = []
        self._num_started = 0
        self._on_their_way: list[_Travelling] = []
        # Apart, since every start looks through the others, and a large model has thousands of buckets.
        self._arriving: list[_Travelling] = []
        self.follow(
            [LevelPlan.of([[Subtree(rank, 0)] for rank in range(each.num_ranks)]) for each in levels]
            if plans is None
            else plans
        )

    def follow(self, plans: Sequence[LevelPlan]) -> None:
        """Add up by other plans from the next step on, the same on every rank."""
        assert not self._num_started, "a step is over"
        self._levels = [_Level(*each) for each in zip(self._all_levels, plans, strict=True) if each[0].num_ranks > 1]
        assert not self._levels or len(self._levels[-1].plan.kept) == 1, "the last level leaves one sum"
        self._scratch = []

    def start(self, rows: Sequence[Tensor]) -> None:
        if not self._levels:
            # A rank that is alone has the whole tree, but where it is measured as one of several.
            for other in rows[:-1]:
                rows[-1].add_(other)
            return
        # Of each bucket of a step, made in the first step and kept: fresh memory costs more than the sum.
        if self._num_started == len(self._scratch):
            self._scratch.append(_scratch(rows, self._levels))
        started = _Travelling(rows, self._levels, self._scratch[self._num_started])
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


class _Level(NamedTuple):
    ranks: Collectives
    plan: LevelPlan


class _Scratch(NamedTuple):
    """Of a bucket on a level."""

    packed: Tensor
    """What is handed in, rank by rank; empty where that lies in a row already."""
    received: Tensor


class _Travelling:
    """One bucket on its way up the levels and down again; its first collective is issued."""

    def __init__(self, rows: Sequence[Tensor], levels: Sequence[_Level], scratch: Sequence[_Scratch]) -> None:
        self._levels, self._scratch = levels, scratch
        self._rows = [list(rows)]
        """On each level, what this rank hands in there; the last row is where the level's sum goes on the way back."""
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
            plan, received = self._levels[self._level].plan, self._scratch[self._level].received
            parts = received.view(plan.num_received, -1).unbind()
            for row, added in plan.additions:
                parts[row].add_(parts[added])
            self._rows.append([parts[row] for row in plan.kept])
            self._rises = self._level + 1 < len(self._levels)
            self._level += self._rises
        else:
            self._rises = False
            self._level -= 1
        self._issue()

    def arrive(self) -> None:
        if self._pending is not None:
            self._levels[self._level].ranks.wait(self._pending)

    def _issue(self) -> None:
        (ranks, plan), rows, scratch = self._levels[self._level], self._rows[self._level], self._scratch[self._level]
        self._pending: dist.Work | None = None
        if plan.are_copies and self._rises:
            scratch.received.copy_(rows[-1].view(ranks.num_ranks, -1)[ranks.rank])
        elif not self._rises:
            self._pending = ranks.all_gather(rows[-1], self._rows[self._level + 1][-1])
        elif not _is_scattered(self._levels, self._level):
            self._pending = ranks.all_reduce(rows[-1])
        elif plan.is_one_row_each:
            self._pending = ranks.all_to_all(scratch.received, rows[-1])
        else:
            handed_in = scratch.packed.view(ranks.num_ranks, len(rows), -1)
            for number, row in enumerate(rows):
                handed_in[:, number].copy_(row.view(ranks.num_ranks, -1))
            self._pending = ranks.all_to_all(scratch.received, scratch.packed, plan.rows_of_members)


def _is_scattered(levels: Sequence[_Level], level: int) -> bool:
    # a + b is b + a: the tree of two needs no order, and where nothing lies above it no parts.
    ranks, plan = levels[level]
    return level + 1 < len(levels) or ranks.num_ranks > 2 or not plan.is_one_row_each or plan.are_copies


def _scratch(rows: Sequence[Tensor], levels: Sequence[_Level]) -> list[_Scratch]:
    """What each level hands in and receives of a bucket, where ranks hand in parts."""
    scratch, num_rows, length = [], len(rows), rows[-1].numel()
    for level, (ranks, plan) in enumerate(levels):
        part = length // ranks.num_ranks
        is_scattered = _is_scattered(levels, level)
        packed = 0 if plan.is_one_row_each or not is_scattered else num_rows * length
        received = plan.num_received * part if is_scattered else 0
        scratch.append(_Scratch(rows[-1].new_empty(packed), rows[-1].new_empty(received)))
        num_rows, length = len(plan.kept), part
    return scratch


def tree_sum(rows: Tensor) -> Tensor:
    """Sum of rows (n, ...) in binary-tree order. The rows are used as scratch space."""
    num_rows, distance = rows.shape[0], 1
    while distance < num_rows:
        # In place: rows at twice the distance keep the sums of their subtrees.
        right = rows[distance :: 2 * distance]
        rows[:: 2 * distance][: len(right)].add_(right)
        distance *= 2
    return rows[0]
