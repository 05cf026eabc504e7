"""What ranks say to each other while they train: collectives that run beside computation, counted and timed.

An `Exchange` sums buckets of gradients over the gang. It is the seam for how they travel: one that sends less than it
is given keeps what it held back by bucket, and would hand that to checkpoints as named tensors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from training.distributed import Gang

MAX_UNTAKEN = 100_000
"""Calls that are remembered for their time where nobody asks what they cost."""


@dataclass(slots=True)
class Traffic:
    """What one kind of collective cost a rank."""

    num_calls: int = 0
    sent_bytes: int = 0
    """What this rank has to send at the least, as a ring does."""
    busy_s: float = 0.0
    """From each call to its end, beside computation or not."""
    waited_s: float = 0.0
    """The part of it that this rank stood still for. On CUDA only its stream waits, and this is next to nothing."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Pending:
    """A collective under way. Its tensors are not to be touched before `wait` returns."""

    def __init__(self, work: dist.Work, traffic: Traffic) -> None:
        self._work, self._traffic = work, traffic

    def wait(self) -> None:
        began_s = time.perf_counter()
        self._work.wait()
        self._traffic.waited_s += time.perf_counter() - began_s


class Collectives:
    """A gang's collectives, asynchronous. All ranks must call the same ones in the same order.

    Args:
        group: the ranks that take part; all by default.
        num_ranks: how many they are; a rank that is alone needs no group.
    """

    def __init__(self, gang: Gang, group: dist.ProcessGroup | None = None, num_ranks: int | None = None) -> None:
        self.gang, self._group = gang, group
        self.num_ranks = num_ranks or (gang.world_size if group is None else group.size())
        self._moment: Callable[[], _Moment] = _CudaMoment if gang.device.type == "cuda" else _HostMoment
        self._traffic: dict[str, Traffic] = {}
        self._unfinished: deque[tuple[_Moment, Traffic]] = deque(maxlen=MAX_UNTAKEN)

    def all_reduce(self, tensor: Tensor) -> Pending:
        """Sum of all ranks' tensors, in place; in an order of the backend's choice, which two ranks do not notice."""
        return self._counted(
            "all_reduce",
            tensor,
            2 * (self.num_ranks - 1),
            lambda: dist.all_reduce(tensor, group=self._group, async_op=True),
        )

    def all_to_all(self, received: Tensor, tensor: Tensor) -> Pending:
        """Equal parts of `tensor`, one to each rank; `received` holds theirs in rank order."""
        return self._counted(
            "all_to_all",
            tensor,
            self.num_ranks - 1,
            lambda: dist.all_to_all_single(received, tensor, group=self._group, async_op=True),
        )

    def all_gather(self, gathered: Tensor, tensor: Tensor) -> Pending:
        """All ranks' tensors one after another, in rank order."""
        return self._counted(
            "all_gather",
            gathered,
            self.num_ranks - 1,
            lambda: dist.all_gather_single(gathered, tensor, group=self._group, async_op=True),
        )

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (n, ...) of all ranks, (ranks * n, ...), in rank order; on the gang's device, as the rows are."""
        if self.num_ranks == 1:
            return rows
        gathered = rows.new_empty((self.num_ranks * rows.shape[0], *rows.shape[1:]))
        self.all_gather(gathered, rows).wait()
        return gathered

    def take_traffic(self) -> dict[str, Traffic]:
        """What was counted since the last call, by kind of collective. All of it must have been waited for."""
        for moment, traffic in self._unfinished:
            traffic.busy_s += moment.elapsed_s()
        taken, self._traffic, self._unfinished = self._traffic, {}, deque(maxlen=MAX_UNTAKEN)
        return taken

    def _counted(self, kind: str, whole: Tensor, rounds: int, call: Callable[[], dist.Work | None]) -> Pending:
        """`rounds` parts of `whole`, cut by ranks, leave this rank."""
        traffic = self._traffic.setdefault(kind, Traffic())
        traffic.num_calls += 1
        traffic.sent_bytes += whole.numel() * whole.element_size() * rounds // self.num_ranks
        moment = self._moment()
        work = call()
        assert work is not None, "this process takes part in the group"
        moment.ends_with(work)
        self._unfinished.append((moment, traffic))
        return Pending(work, traffic)


class Exchange(Protocol):
    """Sums buckets over ranks, in place, while backward goes on."""

    def start(self, bucket: Tensor) -> None:
        """Buckets are flat, a multiple of the ranks long, and come in the same order on every rank, every step."""

    def finish(self) -> None:
        """Return when every bucket that was started holds the sum."""


def tree_exchange(collectives: Collectives) -> Exchange:
    """Adds ranks up in one binary tree, whatever their number: a power of two."""
    if collectives.num_ranks == 1:
        return AloneExchange()
    # a + b is b + a: the tree of two needs no order.
    return PairExchange(collectives) if collectives.num_ranks == 2 else TreeExchange(collectives)


class AloneExchange:
    def start(self, bucket: Tensor) -> None: ...

    def finish(self) -> None: ...


class PairExchange:
    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._pending: list[Pending] = []

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
        self._handing_in: list[tuple[Tensor, Pending]] = []
        self._handing_out: list[Pending] = []

    def start(self, bucket: Tensor) -> None:
        number = len(self._handing_in)
        if number == len(self._received):
            self._received.append(torch.empty_like(bucket))  # kept: fresh memory costs more than the sum
        self._handing_in.append((bucket, self._collectives.all_to_all(self._received[number], bucket)))
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
        pending.wait()
        own = tree_sum(self._received[number].view(self._collectives.num_ranks, -1))
        self._handing_out.append(self._collectives.all_gather(bucket, own))


def tree_sum(rows: Tensor) -> Tensor:
    """Sum of rows (n, ...) in binary-tree order. The rows are used as scratch space."""
    num_rows, distance = rows.shape[0], 1
    while distance < num_rows:
        right = rows[distance :: 2 * distance]
        rows[:: 2 * distance][: len(right)].add_(right)
        distance *= 2
    return rows[0]


class _Moment(Protocol):
    """When a collective was called, and how long it took."""

    def ends_with(self, work: dist.Work) -> None: ...

    def elapsed_s(self) -> float: ...


class _HostMoment:
    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._ended_s: float | None = None

    def ends_with(self, work: dist.Work) -> None:
        work.get_future().add_done_callback(self._end)

    def _end(self, _future: object) -> None:
        self._ended_s = time.perf_counter()

    def elapsed_s(self) -> float:
        return (self._ended_s or time.perf_counter()) - self._began_s


class _CudaMoment:
    """The end is seen by a stream of its own, so that nothing waits for it before it is asked for."""

    _watching: torch.cuda.Stream | None = None

    def __init__(self) -> None:
        self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._began.record()

    def ends_with(self, work: dist.Work) -> None:
        stream = _CudaMoment._watching = _CudaMoment._watching or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            work.wait()
            self._ended.record()

    def elapsed_s(self) -> float:
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1000
