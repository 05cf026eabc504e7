"""What ranks say to each other while they train: collectives that run beside computation, counted and timed.

An `Exchange` sums buckets of gradients over the gang. It is the seam for how they travel: one that sends less than it
is given keeps what it held back by bucket, and would hand that to checkpoints as named tensors.
"""

from __future__ import annotations

from typing import Protocol

import torch
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
    """

    def __init__(
        self, process_group: ProcessGroup, group: dist.ProcessGroup | None = None, num_ranks: int | None = None
    ) -> None:
        self._group, self._meter = group, process_group.traffic
        self.num_ranks = num_ranks or (process_group.world_size if group is None else group.size())

    def all_reduce(self, tensor: Tensor) -> dist.Work:
        """Sum of all ranks' tensors, in place; in an order of the backend's choice, which two ranks do not notice."""
        return self._meter.start(
            "all_reduce",
            2 * self._sent_bytes(tensor),
            lambda: dist.all_reduce(tensor, group=self._group, async_op=True),
        )

    def all_to_all(self, received: Tensor, tensor: Tensor) -> dist.Work:
        """Equal parts of `tensor`, one to each rank; `received` holds theirs in rank order."""
        return self._meter.start(
            "all_to_all",
            self._sent_bytes(tensor),
            lambda: dist.all_to_all_single(received, tensor, group=self._group, async_op=True),
        )

    def all_gather(self, gathered: Tensor, tensor: Tensor) -> dist.Work:
        """All ranks' tensors one after another, in rank order."""
        return self._meter.start(
            "all_gather",
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


class Exchange(Protocol):
    """Sums buckets over ranks, in place, while backward goes on."""

    def start(self, bucket: Tensor) -> None:
        """Buckets are flat, a multiple of the ranks long, and come in the same order on every rank, every step."""

    def finish(self) -> None:
        """Return when every bucket that was started holds the sum."""


def tree_exchange(collectives: Collectives) -> Exchange:
    """Adds ranks up in one binary tree, whatever their number: a power of two."""
    # Alone, or with one other, a cheaper exchange has the bits of the tree.
    if collectives.num_ranks == 1:
        return LocalExchange()
    # a + b is b + a: the tree of two needs no order.
    return PairExchange(collectives) if collectives.num_ranks == 2 else TreeExchange(collectives)


class LocalExchange:
    def start(self, bucket: Tensor) -> None: ...

    def finish(self) -> None: ...


class PairExchange:
    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._pending: list[dist.Work] = []

    def start(self, bucket: Tensor) -> None:
        self._pending.append(self._collectives.all_reduce(bucket))

    def finish(self) -> None:
        for pending in self._pending:
            pending.wait()
        self._pending = []


class TreeExchange:
    """Every rank adds up one part of each bucket, in tree order, and hands its sum to all.

    As many bytes as a ring moves. A bucket's second half is issued after the next one's first half, so that one
    travels while the other is added up; never from a callback, whose order differs between ranks.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._received: list[Tensor] = []
        self._handing_in: list[tuple[Tensor, dist.Work]] = []
        self._handing_out: list[dist.Work] = []

    def start(self, bucket: Tensor) -> None:
        number = len(self._handing_in)
        # One buffer for each bucket of a step, made in the first step and kept.
        if number == len(self._received):
            self._received.append(torch.empty_like(bucket))  # kept: fresh memory costs more than the sum
        self._handing_in.append((bucket, self._collectives.all_to_all(self._received[number], bucket)))
        # The one before has most likely arrived by now, and is added up while this one travels.
        if number:
            self._hand_out(number - 1)

    def finish(self) -> None:
        if self._handing_in:
            self._hand_out(len(self._handing_in) - 1)
        for pending in self._handing_out:
            pending.wait()
        self._handing_in, self._handing_out = [], []

    def _hand_out(self, number: int) -> None:
        bucket, pending = self._handing_in[number]
        self._collectives.wait(pending)
        # Every rank adds the same operands in the same tree, each for its own part.
        own = tree_sum(self._received[number].view(self._collectives.num_ranks, -1))
        self._handing_out.append(self._collectives.all_gather(bucket, own))


def tree_sum(rows: Tensor) -> Tensor:
    """Sum of rows (n, ...) in binary-tree order. The rows are used as scratch space."""
    num_rows, distance = rows.shape[0], 1
    while distance < num_rows:
        # In place: rows at twice the distance keep the sums of their subtrees.
        right = rows[distance :: 2 * distance]
        rows[:: 2 * distance][: len(right)].add_(right)
        distance *= 2
    return rows[0]
