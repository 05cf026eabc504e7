"""What FSDP2 exchanges, counted and timed: the same collectives that it would call by itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.training.observe.traffic import TrafficMeter, size_bytes


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
