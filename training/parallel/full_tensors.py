"""Whole tensors of all ranks' pieces, one after another, for what cannot read pieces."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from headway.data_contracts.store.documents import TensorSlice
from headway.training.checkpoint.agreement import gathered
from headway.training.checkpoint.layout import by_tensor
from headway.training.checkpoint.pieces import State, pieces_of
from headway.training.checkpoint.plan import from_bytes, to_bytes
from headway.training.observe.traffic import size_bytes
from headway.training.ranks.distributed import ProcessGroup


def full_tensors(state: State, process_group: ProcessGroup) -> Iterator[tuple[str, Tensor]]:
    """On every rank, on the CPU, sorted by name; one tensor is held at a time. All ranks take all of them."""
    own = pieces_of(state)
    held = from_bytes(to_bytes(piece.slice(name) for name, piece in own.items()))
    everywhere = [from_bytes(data) for data in gathered(process_group, to_bytes(held))]
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
