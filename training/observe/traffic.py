"""What collectives cost a rank, counted and timed where they are called.

Torch's dispatcher could pass all of them through Python (`torch.library.get_kernel`), but only with the interpreter's
lock held, on which gloo's threads then wait for ever.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

MAX_UNTAKEN = 100_000
"""Calls that are remembered for their time where nobody asks what they cost."""


@dataclass(slots=True)
class Traffic:
    """What one kind of collective cost a rank."""

    num_calls: int = 0
    sent_bytes: int = 0
    """What a rank has to send at the least, as a ring does: the mean over the ranks of the group."""
    busy_s: float = 0.0
    """From each call to its end, beside computation or not; what a peer was waited for is part of it. 0 for messages to
    one rank, which are only sent off."""


def as_fields(traffic: Mapping[str, Traffic]) -> dict[str, Any]:
    """Fields of a ledger event; none where nothing was said."""
    if not traffic:
        return {}
    kinds = {
        kind: {"num_calls": each.num_calls, "sent_bytes": each.sent_bytes, "busy_s": each.busy_s}
        for kind, each in sorted(traffic.items())
    }
    return {
        "communication_s": sum(each.busy_s for each in traffic.values()),
        "sent_bytes": sum(each.sent_bytes for each in traffic.values()),
        "traffic": kinds,
    }


class TrafficMeter:
    """Counts what this process says to other ranks.

    Args:
        device: where the tensors that travel lie.
    """

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008 - it never changes
        self._is_cuda = device.type == "cuda"
        self._moment: Callable[[], _Moment] = _CudaMoment if self._is_cuda else _HostMoment
        self.stood_still_s = 0.0
        """How long this process has stood still in exchanges so far; 0 on CUDA, where streams do."""
        self._traffic: dict[str, Traffic] = {}
        # Bounded: where nobody takes the figures, calls must not pile up.
        self._unfinished: deque[tuple[_Moment, Traffic]] = deque(maxlen=MAX_UNTAKEN)

    def start(self, kind: str, sent_bytes: int, call: Callable[[], dist.Work | None]) -> dist.Work:
        """Call a collective, asynchronous. Its tensors are not to be touched before `wait` of what is returned."""
        traffic = self._count(kind, sent_bytes)
        moment = self._moment()
        work = call()
        assert work is not None, "this process takes part in the group"
        # By a callback on the host, or an event on the device: nobody waits for the end to be noticed.
        moment.ends_with(work)
        self._unfinished.append((moment, traffic))
        return work

    @contextlib.contextmanager
    def within(self, kind: str, sent_bytes: int) -> Iterator[None]:
        """Around a whole exchange that this rank, or on CUDA its stream, stands still for."""
        ended = self.begin(kind, sent_bytes)
        with self.paused():
            yield
        ended()

    def wait(self, work: dist.Work) -> None:
        """For a collective that was started."""
        with self.paused():
            work.wait()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Around nothing but a wait for an exchange to end."""
        started_s = time.perf_counter()
        yield
        # On CUDA the host does not stand still; the stream does.
        if not self._is_cuda:
            self.stood_still_s += time.perf_counter() - started_s

    def begin(self, kind: str, sent_bytes: int) -> Callable[[], None]:
        """Just before an exchange whose end the caller sees. Returns what to call then, on CUDA in the stream of it."""
        traffic = self._count(kind, sent_bytes)
        moment = self._moment()

        def ended() -> None:
            moment.ends()
            self._unfinished.append((moment, traffic))

        return ended

    def sent(self, size_bytes: int) -> None:
        """A message to one rank, whose end gloo tells to nobody."""
        self._count("send", size_bytes)

    def _count(self, kind: str, sent_bytes: int) -> Traffic:
        traffic = self._traffic.setdefault(kind, Traffic())
        traffic.num_calls += 1
        traffic.sent_bytes += sent_bytes
        return traffic

    def take(self) -> dict[str, Traffic]:
        """What was counted since the last call, by kind of collective. All of it must have been waited for."""
        unfinished, self._unfinished = self._unfinished, deque(maxlen=MAX_UNTAKEN)
        taken, self._traffic = self._traffic, {}
        for moment, traffic in unfinished:
            # All have been waited for, so their ends are known.
            traffic.busy_s += moment.elapsed_s()
        return taken


def size_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Moment(Protocol):
    """When a collective was called, and how long it took."""

    def ends_with(self, work: dist.Work) -> None: ...

    def ends(self) -> None: ...

    def elapsed_s(self) -> float: ...


class _HostMoment:
    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._ended_s: float | None = None

    def ends_with(self, work: dist.Work) -> None:
        # gloo completes in its own thread; the callback runs there, and only reads a clock.
        work.get_future().add_done_callback(lambda _future: self.ends())

    def ends(self) -> None:
        self._ended_s = time.perf_counter()

    def elapsed_s(self) -> float:
        return (self._ended_s or time.perf_counter()) - self._started_s


class _CudaMoment:
    """The end is seen by a stream of its own, so that nothing waits for it before it is asked for."""

    # One stream for all calls: it waits in their order, and costs nothing while it does.
    _watching: torch.cuda.Stream | None = None

    def __init__(self) -> None:
        self._started, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._started.record()

    def ends_with(self, work: dist.Work) -> None:
        stream = _CudaMoment._watching = _CudaMoment._watching or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            work.wait()
            self._ended.record()

    def ends(self) -> None:
        self._ended.record()

    def elapsed_s(self) -> float:
        self._ended.synchronize()
        return float(self._started.elapsed_time(self._ended)) / 1000
