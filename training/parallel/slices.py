"""What a rank holds of each parameter, as plain tensors, and where that lies in the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.data_contracts.store.documents import TensorSlice
from headway.training.checkpoint.layout import by_tensor
from headway.training.checkpoint.pieces import Piece, State, pieces_of
from headway.training.checkpoint.plan import from_bytes, to_bytes
from headway.training.observe.traffic import size_bytes
from headway.training.parallel.mesh import Mesh
from headway.training.ranks.distributed import ProcessGroup

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def as_spread(tensor: Tensor) -> DTensor | None:
    """The tensor if it is spread over a mesh; None for a plain one. Imports nothing."""
    return tensor if hasattr(tensor, "placements") else None  # type: ignore[return-value]


class LocalParameter:
    """A parameter as the optimizer sees it: `local`, a plain tensor that shares memory with this rank's slice.

    Args:
        source: what the model computes with.
    """

    def __init__(self, source: nn.Parameter, mesh: Mesh) -> None:
        self.source = self.local = source
        self.global_shape, self.offsets = tuple(source.shape), (0,) * source.dim()
        split: set[str] = set()
        # By an attribute: to import DTensor takes half a second that a plain rank does not need.
        if (spread := as_spread(source)) is not None:
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            devices, placements = spread.device_mesh, spread.placements
            shape, offsets = compute_local_shape_and_global_offset(self.global_shape, devices, placements)
            # Its own parameter over the same memory: the optimizer updates the slice, and the model sees it.
            self.local = nn.Parameter(spread.to_local().detach().view(shape), requires_grad=source.requires_grad)
            self.offsets = tuple(offsets)
            names = devices.mesh_dim_names or ()
            split = {name for name, placement in zip(names, placements, strict=True) if not placement.is_replicate()}
        place = mesh.place._asdict()
        # Equal slices lie on several ranks; exactly one counts them in norms and writes them.
        self.owned = all(place[name] == 0 for name in {"replicate", "shard", "tensor"} - split)
        """On exactly one of the ranks that hold equal slices."""

    def take_gradient(self) -> Tensor | None:
        """This rank's slice of the gradient, which the source gives up; None if it has none."""
        # Taken and cleared: the source's gradient would otherwise be added to by the next micro-batch.
        gradient, self.source.grad = self.source.grad, None
        if gradient is None:
            return None
        spread, own = as_spread(gradient), as_spread(self.source)
        if spread is None or own is None:
            return gradient
        # Sequence parallelism leaves a norm's gradient as one summand a rank.
        return spread.redistribute(placements=own.placements).to_local().view_as(self.local)

    def piece(self, values: Tensor) -> Piece:
        """Where a tensor lies that is laid out as this parameter, such as itself or a moment of its gradient."""
        return Piece(local=values, global_shape=self.global_shape, offsets=self.offsets)

    def slice_of(self, whole: Tensor) -> Tensor:
        """This rank's slice of a whole tensor."""
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offsets, self.local.shape, strict=True))]

    def whole(self, values: Tensor) -> Tensor | None:
        """The whole of a tensor that is laid out as this parameter; None if it is whole. All holders call it."""
        if (spread := as_spread(self.source)) is None:
            return None
        from torch.distributed.tensor import DTensor

        # `run_check` would compare all ranks by a broadcast, of what is known to agree.
        slices = DTensor.from_local(
            values, spread.device_mesh, spread.placements, shape=spread.shape, stride=spread.stride(), run_check=False
        )
        return slices.full_tensor()


def full_tensors(state: State, process_group: ProcessGroup) -> Iterator[tuple[str, Tensor]]:
    """On every rank, on the CPU, sorted by name; one tensor is held at a time. All ranks take all of them."""
    own = pieces_of(state)
    held = from_bytes(to_bytes(piece.slice(name) for name, piece in own.items()))
    everywhere = [from_bytes(data) for data in process_group.gather_bytes(to_bytes(held))]
    holders: dict[TensorSlice, int] = {}
    for rank, listed in enumerate(everywhere):
        for piece in listed:
            holders.setdefault(piece, rank)
    for name, pieces in sorted(by_tensor(list(holders)).items()):
        whole = torch.zeros(pieces[0].global_shape, dtype=getattr(torch, pieces[0].dtype))
        for piece in pieces:
            values = torch.empty(piece.shape, dtype=whole.dtype, device=process_group.device)
            if holders[piece] == process_group.rank:
                values.copy_(own[name].local)
            if process_group.world_size > 1 and values.numel():
                is_own = holders[piece] == process_group.rank
                with process_group.traffic.within("broadcast", is_own * size_bytes(values)):
                    dist.broadcast(values, src=holders[piece])
            whole[tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.shape, strict=True))] = values.cpu()
        yield name, whole
