"""From gathered arrays to tensors on the device that trains; on a GPU behind its work, from page-locked memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT_BYTES = {"cpu": 64, "cuda": 512}
"""Where torch's own allocations begin."""


class PendingCopy:
    """Tensors on their way. `take` hands them over: work submitted after it finds them complete."""

    def __init__(self, tensors: dict[str, Tensor], ready: torch.cuda.Event | None) -> None:
        self._tensors, self._ready = tensors, ready

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def take(self) -> dict[str, Tensor]:
        if self._ready is not None:
            device = next(iter(self._tensors.values())).device
            consumer = torch.cuda.current_stream(device)
            # On the device: the host does not wait for the copy.
            consumer.wait_event(self._ready)
            for tensor in self._tensors.values():
                tensor.record_stream(consumer)  # else its memory could be given away while the consumer still reads
        return self._tensors


class DeviceCopy:
    """Sends columns to one device. A GPU copies and widens on a stream of its own, while others compute."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # A stream of its own, or the copy would queue behind the step that runs.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def wants_pinned(self) -> bool:
        """Whether arrays should lie in page-locked memory, which alone a GPU copies from without waiting."""
        return self._stream is not None

    def send(self, columns: Mapping[str, Tensor]) -> PendingCopy:
        if self._stream is None:
            return PendingCopy(_arrived(columns, self._device), None)
        with torch.cuda.stream(self._stream):
            tensors = _arrived(columns, self._device)
            return PendingCopy(tensors, self._stream.record_event())


def to_tensors(columns: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Gathered arrays as tensors; integers widen to int64, which is what indexing wants."""
    return _arrived({name: torch.from_numpy(values) for name, values in columns.items()}, device)


def as_if_alone(batch: Tensor) -> Tensor:
    """The batch where an allocation of its own would begin: kernels choose their way by alignment, and bits follow,
    which must not depend on how many batches were gathered together."""
    return batch if batch.data_ptr() % ALIGNMENT_BYTES[batch.device.type] == 0 else batch.clone()


def _arrived(columns: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: _widened(values.to(device, non_blocking=True)) for name, values in columns.items()}


def _widened(values: Tensor) -> Tensor:
    """On the device, since fewer bytes travel so."""
    return values if values.is_floating_point() or values.dtype == torch.bool else values.to(torch.int64)
