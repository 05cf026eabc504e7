"""What a checkpoint is made of. What a rank holds of a tensor is a box of it.

One path for plain tensors, replicated or not, and for sharded ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.data_contracts.store.documents import DeviceFingerprint, Link, TensorSlice

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

_Place = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The elements [offset, offset + length) of each dimension of a tensor of `global_shape`.

    A replicated tensor is the piece that covers all.
    """

    local: Tensor
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]

    def slice(self, name: str, file: str = "") -> TensorSlice:
        """What a layout says of it."""
        return TensorSlice(
            tensor=name,
            file=file,
            dtype=dtype_name(self.local.dtype),
            global_shape=self.global_shape,
            offsets=self.offsets,
            shape=tuple(self.local.shape),
        )


State = Mapping[str, Tensor | Piece]
"""By name. A DTensor stands for the piece this rank has of it, any other tensor for one that every rank has whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What a checkpoint says: the same on every rank, but for the pieces it holds of `tensors`."""

    run: Link
    step: int
    num_samples: int
    tensors: State
    """Those that may change as soon as `Checkpointer.save` has returned: weights and buffers."""
    scalars: Mapping[str, float | int | str]
    proof_batch: Mapping[str, Tensor]
    proof_loss: float
    fingerprint: DeviceFingerprint
    moments: State = field(default_factory=dict)
    """More of them, which nothing changes before `Checkpointer.finish_staging` has returned: the optimizer's."""


def pieces_of(state: State) -> dict[str, Piece]:
    return {name: value if isinstance(value, Piece) else _piece_of(value) for name, value in state.items()}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _piece_of(tensor: Tensor) -> Piece:
    # Importing it costs half a second; a rank that never did has none.
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None and isinstance(tensor, module.DTensor):
        shape, offsets = _place(tuple(tensor.shape), tensor.device_mesh, tuple(tensor.placements))
        # Not to_local(): it is dispatched, which takes longer than copying a small tensor.
        return Piece(local=tensor._local_tensor.detach().view(shape), global_shape=tuple(tensor.shape), offsets=offsets)
    return Piece(local=tensor.detach(), global_shape=tuple(tensor.shape), offsets=(0,) * tensor.dim())


# Cached: the same few placements come for thousands of tensors, at every save.
@lru_cache(maxsize=4096)
def _place(shape: tuple[int, ...], mesh: DeviceMesh, placements: tuple[Placement, ...]) -> _Place:
    """Shape and offsets of what this rank has of a tensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local_shape, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(local_shape), tuple(offsets)
