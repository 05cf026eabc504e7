"""Checkpoints of real shardings: FSDP2, HSDP, tensor parallel and both, over gloo."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.training.checkpoint.layout import directory_name
from headway.training.checkpoint.read import read_checkpoint
from headway.training.launch.base.ports import free_port
from tests.waiting import DEADLINE_S
from tests.warm_programs import run_program

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
KINDS = ["replicated", "fsdp", "hsdp", "tensor", "fsdp+tensor"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where four ranks left a checkpoint of each kind, after taking up each as every other."""
    path: Path = tmp_path_factory.mktemp("meshes")
    environment = {
        **os.environ,
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), str(HERE)]),
    }
    command = [sys.executable, HERE / "mesh_ranks.py", path]
    done = run_program(command, env=environment, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_what_four_ranks_sharded_one_process_reads_whole_and_loads_into_the_plain_model(folder, kind):
    found = read_checkpoint(folder / kind / "checkpoints" / directory_name(1))
    # The weights that every rank began from, in the order in which torch draws them.
    torch.manual_seed(3)
    layers = {"up": nn.Linear(6, 10), "down": nn.Linear(10, 6), "odd": nn.Linear(6, 3)}
    for layer, module in layers.items():
        for name, value in module.state_dict().items():
            assert torch.equal(found.tensors[f"model.{layer}.{name}"], value), (kind, layer, name)
    assert found.tensors["model.seen"] == 7


@pytest.mark.parametrize("kind", KINDS)
def test_no_element_is_written_twice_and_every_rank_writes_what_it_holds(folder, kind):
    manifest = read_checkpoint(folder / kind / "checkpoints" / directory_name(1)).manifest
    tensors = {piece.tensor: piece.global_shape for piece in manifest.layout}
    elements = sum(torch.Size(shape).numel() for shape in tensors.values())
    assert sum(torch.Size(piece.shape).numel() for piece in manifest.layout) == elements == 158
    is_cut = {piece.tensor for piece in manifest.layout if piece.shape != piece.global_shape}
    assert bool(is_cut) == (kind != "replicated")
