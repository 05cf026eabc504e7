"""Four ranks that keep a model as every sharding of torch has it, and take up each as every other.

`python mesh_ranks.py FOLDER`, which forks them; each checkpoint ends up in `FOLDER/<sharding>/checkpoints`.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import torch
from conftest import RUN, make_content
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from headway.training.checkpoint.pieces import pieces_of
from headway.training.checkpoint.restore import restore_newest
from headway.training.checkpoint.save import Checkpointer
from headway.training.launch.base.process_tree import die_with_parent
from headway.training.ranks.distributed import ProcessGroup, init_process_group

WORLD_SIZE = 4


class Net(nn.Module):
    """Widths that four ranks cannot share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.odd = nn.Linear(6, 10), nn.Linear(10, 6), nn.Linear(6, 3)
        self.register_buffer("seen", torch.tensor(7))


def plain() -> nn.Module:
    torch.manual_seed(3)
    return Net()


def sharded(kind: str) -> nn.Module:
    model = plain()
    if kind == "replicated":
        return model
    shape, names = {"fsdp": ((4,), ("shard",)), "hsdp": ((2, 2), ("replicate", "shard"))}.get(
        kind, ((2, 2), ("shard", "tensor"))
    )
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if kind in ("tensor", "fsdp+tensor"):
        parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if kind != "tensor":
        fully_shard(model, mesh=mesh["shard"] if kind == "fsdp+tensor" else mesh)
    return model


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {f"model.{name}": value for name, value in model.state_dict().items()}


def is_equal_to(piece: torch.Tensor, value: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether what was read is this rank's own part; a mesh that does not span all ranks has no whole of its own."""
    local = value.to_local() if isinstance(value, DTensor) else value
    return torch.equal(piece, local) and (piece.numel() == 0 or bool(torch.isin(piece, whole).all()))


def main(folder: Path, process_group: ProcessGroup) -> None:
    kinds = ["replicated", "fsdp", "hsdp", "tensor", "fsdp+tensor"]
    models = {kind: sharded(kind) for kind in kinds}
    full_tensors = state(plain())
    for kind, model in models.items():
        with Checkpointer(folder / kind / "checkpoints", process_group) as checkpointer:
            checkpointer.save(make_content(1, state(model)))
    for saved in kinds:
        for wanted, model in models.items():
            own = state(model)
            found = restore_newest(folder / saved, RUN, process_group, state=own)
            assert found is not None and found.tensors.keys() == own.keys(), (saved, wanted)
            for name, value in own.items():
                assert is_equal_to(found.tensors[name], value, full_tensors[name]), (saved, wanted, name)
    for kind, model in models.items():
        held = sum(piece.local.numel() for piece in pieces_of(state(model)).values())
        assert kind == "replicated" or held < sum(whole.numel() for whole in full_tensors.values()), kind


def run_rank(rank: int, folder: Path) -> NoReturn:
    code = 1
    try:
        die_with_parent()
        os.environ["RANK"] = str(rank)
        with init_process_group(rank=rank, world_size=WORLD_SIZE) as process_group:
            main(folder, process_group)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # as ranks end: gloo's threads may abort an orderly end


if __name__ == "__main__":
    for number in range(WORLD_SIZE):
        if os.fork() == 0:
            run_rank(number, Path(sys.argv[1]))
    for _ in range(WORLD_SIZE):
        if os.waitstatus_to_exitcode(os.wait()[1]):
            sys.exit(1)  # its peers would wait for it, and end with us
