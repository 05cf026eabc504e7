"""What DTensor and FSDP2 exchange by themselves, counted and timed: the same collectives that they would call.

FSDP2 takes ways to communicate (`Comm`) for its shards. Where torch offers no seam of its own, the functions that are
looked up at every call are replaced, once a process: DTensor's three collectives with the wait for their results, and
the sum among replicas of shards. What `torch.compile` traces is passed by, and so is DTensor's exchange of shards by
other dimensions on CUDA, which no plan of ours asks for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.distributed_c10d import _get_group_size_by_name
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from headway.training.observe.traffic import TrafficMeter, size_bytes

KINDS = {"all_reduce": "all_reduce", "all_gather_single": "all_gather", "reduce_scatter_single": "reduce_scatter"}
"""Of DTensor's collectives."""


class _MeteredTensors:
    """The functions, around those of torch.

    A result is waited for by whoever first looks at it, through whatever view: calls are known by where it is stored.
    """

    def __init__(self) -> None:
        self.meter = TrafficMeter()
        self._under_way: dict[int, Callable[[], None]] = {}
        self._wait_tensor: Callable[[Tensor], Any] = functional.wait_tensor

    def install(self) -> None:
        for name, kind in KINDS.items():
            setattr(functional, name, self._metered(kind, getattr(functional, name)))
        setattr(functional, "wait_tensor", self._wait)  # noqa: B010 - to a checker it is no place to write to
        setattr(_fsdp_collectives, "dist", _MeteredDist(self))  # noqa: B010

    def _metered(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        # Bound by name: torch passes groups now by position, now by keyword.
        arguments = inspect.signature(call)

        def metered(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            # The compiler replaces collectives by its own; a Python call in between would break the graph.
            if functional._are_we_tracing():
                return call(tensor, *args, **kwargs)
            asked = arguments.bind(tensor, *args, **kwargs).arguments
            group = functional._resolve_group(asked["group"], asked.get("tag", ""))
            num_ranks = _get_group_size_by_name(group)
            ended = self.meter.begin(kind, sent_bytes(kind, tensor, num_ranks))
            result = call(tensor, *args, **kwargs)
            # Asynchronous: its time ends when somebody waits for it, not here.
            if isinstance(result, functional.AsyncCollectiveTensor):
                self._under_way[result.elem.untyped_storage().data_ptr()] = ended
            else:  # waited for already
                ended()
            return result

        return metered

    def _wait(self, tensor: Tensor) -> Any:
        # The wait is counted by the exchange it belongs to.
        with self.meter.paused():
            result = self._wait_tensor(tensor)
        if ended := self._under_way.pop(tensor.untyped_storage().data_ptr(), None):
            ended()
        return result


class _MeteredDist:
    """`torch.distributed`, as FSDP2 sees it."""

    def __init__(self, tensors: _MeteredTensors) -> None:
        self._tensors = tensors

    def __getattr__(self, name: str) -> Any:
        # All else is torch's own, looked up at each call.
        return getattr(dist, name)

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        with self._tensors.meter.within("all_reduce", sent_bytes("all_reduce", tensor, dist.get_world_size(group))):
            return dist.all_reduce(tensor, op, group, async_op)


def sent_bytes(kind: str, tensor: Tensor, num_ranks: int) -> int:
    """What a rank sends in a ring that begins with this tensor."""
    # An all-gather begins with one rank's part, the others with the whole.
    whole_bytes = size_bytes(tensor) * (num_ranks if kind == "all_gather" else 1)
    return whole_bytes * (num_ranks - 1) // num_ranks * (2 if kind == "all_reduce" else 1)


_metered: _MeteredTensors | None = None


def meter_tensors(meter: TrafficMeter) -> None:
    """From now on this process's exchanges go into `meter`."""
    global _metered
    # Once a process: the functions are global, and a second layer would count everything twice.
    if _metered is None:
        _metered = _MeteredTensors()
        _metered.install()
    _metered.meter = meter


class _Metered:
    """What FSDP2 asks of a way to communicate (`Comm`, which is private)."""

    def __init__(self, meter: TrafficMeter) -> None:
        self._meter = meter

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class MeteredAllGather(_Metered):
    """Of weights."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        def call() -> dist.Work | None:
            work: dist.Work | None = dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
            return work

        sent_bytes = size_bytes(output_tensor) - size_bytes(input_tensor)
        if async_op:
            return self._meter.start("all_gather", sent_bytes, call)
        with self._meter.within("all_gather", sent_bytes):
            return call()


class MeteredReduceScatter(_Metered):
    """Of gradients; FSDP2 never asks for it to go on by itself."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        with self._meter.within("reduce_scatter", size_bytes(input_tensor) - size_bytes(output_tensor)):
            work: dist.Work | None = dist.reduce_scatter_single(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
        return work
