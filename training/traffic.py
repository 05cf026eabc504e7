"""What collectives cost a rank: every one, whoever calls it, counted and timed where torch hands it to the backend.

The engine's own exchanges, those of FSDP2 and of DTensor, and what stages of a pipeline send each other all become
operators named `c10d`. For as long as a `TrafficMeter` is open, torch's dispatcher passes these, and no others, through
it; tensors, groups and results stay what they are. That costs tens of microseconds a call.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self

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
    """From each call to its end, beside computation or not; what a peer was waited for is part of it.

    gloo tells no end of `UNTOLD` kinds: these count what this rank waited for them.
    """


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


class _Operator(NamedTuple):
    kind: str
    group: int
    """Which argument is the process group."""
    counted: int
    """Which argument is counted: a tensor, a list, or a list of lists."""
    sent: Callable[[int], float]
    """How much of it a rank sends, by the number of ranks."""


def _once(num_ranks: int) -> float:
    return (num_ranks - 1) / num_ranks


def _there_and_back(num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks


def _all(_num_ranks: int) -> float:
    return 1.0


def _nothing(_num_ranks: int) -> float:
    return 0.0


OPERATORS = {
    "allreduce_": _Operator("all_reduce", 1, 0, _there_and_back),
    "allreduce_coalesced_": _Operator("all_reduce", 1, 0, _there_and_back),
    "_allgather_base_": _Operator("all_gather", 2, 0, _once),
    "allgather_": _Operator("all_gather", 2, 0, _once),
    "allgather_coalesced_": _Operator("all_gather", 2, 0, _once),
    "allgather_into_tensor_coalesced_": _Operator("all_gather", 2, 0, _once),
    "_reduce_scatter_base_": _Operator("reduce_scatter", 2, 1, _once),
    "reduce_scatter_": _Operator("reduce_scatter", 2, 1, _once),
    "reduce_scatter_tensor_coalesced_": _Operator("reduce_scatter", 2, 1, _once),
    "alltoall_base_": _Operator("all_to_all", 2, 1, _once),
    "alltoall_": _Operator("all_to_all", 2, 1, _once),
    "broadcast_": _Operator("broadcast", 1, 0, _once),
    "reduce_": _Operator("reduce", 1, 0, _once),
    "gather_": _Operator("gather", 2, 1, _once),
    "scatter_": _Operator("scatter", 2, 0, _once),
    "send": _Operator("send", 1, 0, _all),
    "recv_": _Operator("recv", 1, 0, _nothing),
    "recv_any_source_": _Operator("recv", 1, 0, _nothing),
    "barrier": _Operator("barrier", 1, 0, _nothing),
}


UNTOLD = frozenset({"reduce_scatter", "send", "recv"})
"""Kinds of which gloo tells no end but to who waits."""
ASYNC_OP = 4
"""Which argument of an untold collective says that the caller waits by itself; left out where it does."""


class TrafficMeter:
    """Counts the collectives of this process while it is open; a context manager, one at a time.

    Args:
        device: where the tensors that travel lie.
    """

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008 - it never changes
        self._on_cuda = device.type == "cuda"
        self._traffic: dict[str, Traffic] = {}
        self._unfinished: deque[tuple[_Moment, Traffic]] = deque(maxlen=MAX_UNTAKEN)
        self._awaited: dict[int, Traffic] = {}
        """By the address of what an untold functional collective returned."""
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        library = self._open.enter_context(torch.library._scoped_library("c10d", "IMPL"))
        key = "CUDA" if self._on_cuda else "CPU"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
            for name, operator in OPERATORS.items():
                library.impl(name, self._metered(f"c10d::{name}", operator, key), key, with_keyset=True)
            if not self._on_cuda:
                functional = self._open.enter_context(torch.library._scoped_library("_c10d_functional", "IMPL"))
                functional.impl("wait_tensor", self._timed_wait(), key, with_keyset=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def take(self) -> dict[str, Traffic]:
        """What was counted since the last call, by kind of collective. All of it must have been waited for."""
        self._awaited.clear()
        unfinished, self._unfinished = self._unfinished, deque(maxlen=MAX_UNTAKEN)
        taken, self._traffic = self._traffic, {}
        for moment, traffic in unfinished:
            traffic.busy_s += moment.elapsed_s()
        return taken

    @contextlib.contextmanager
    def waiting(self, kind: Literal["send", "recv"]) -> Iterator[None]:
        """Around the wait for one that has been called, or is called within."""
        began_s = time.perf_counter()
        yield
        if not self._on_cuda and (traffic := self._traffic.get(kind)) is not None:
            traffic.busy_s += time.perf_counter() - began_s

    def _metered(self, name: str, operator: _Operator, key: str) -> Callable[..., Any]:
        """What stands in for an operator, around its own kernel."""
        call_boxed = torch.library.get_kernel(name, key).call_boxed
        is_untold = not self._on_cuda and operator.kind in UNTOLD
        make_moment = _CudaMoment if self._on_cuda else _HostMoment

        def call(keys: torch.DispatchKeySet, *arguments: Any) -> Any:
            traffic = self._traffic.setdefault(operator.kind, Traffic())
            traffic.num_calls += 1
            num_ranks = dist.ProcessGroup.unbox(arguments[operator.group]).size()
            traffic.sent_bytes += round(sum(_sizes_bytes(arguments[operator.counted])) * operator.sent(num_ranks))
            moment = make_moment()
            result = call_boxed(keys, *arguments)
            work = dist.Work.unbox(result[-1] if isinstance(result, tuple | list) else result)
            if not is_untold:
                moment.ends_with(work)
                self._unfinished.append((moment, traffic))
            elif len(arguments) > ASYNC_OP and arguments[ASYNC_OP] is False:
                work.wait()  # as the caller will, who finds it done
                traffic.busy_s += moment.elapsed_s()
            elif isinstance(arguments[0], Tensor):
                self._awaited[arguments[0].data_ptr()] = traffic
            return result

        return call

    def _timed_wait(self) -> Callable[..., Any]:
        """What stands in for the wait for a functional collective, which DTensor calls."""
        call_boxed = torch.library.get_kernel("_c10d_functional::wait_tensor", "CPU").call_boxed

        def call(keys: torch.DispatchKeySet, tensor: Tensor) -> Any:
            traffic = self._awaited.pop(tensor.data_ptr(), None)
            began_s = time.perf_counter()
            result = call_boxed(keys, tensor)
            if traffic is not None:
                traffic.busy_s += time.perf_counter() - began_s
            return result

        return call


def _sizes_bytes(value: Any) -> Iterator[int]:
    if isinstance(value, Tensor):
        yield value.numel() * value.element_size()
    else:
        for each in value:
            yield from _sizes_bytes(each)


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
