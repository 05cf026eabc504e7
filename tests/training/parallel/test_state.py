"""Whatever mesh a checkpoint was written on, any other reads it, and training goes on."""

from __future__ import annotations

import functools

import pytest

pytestmark = pytest.mark.process

FAST = {"mode": "fast"}
# As many as a pipeline of two needs; every operator on slices costs a millisecond of Python.
TWO_BLOCKS = {"name": "language-model", "model": {"width": 32, "depth": 2, "heads": 4, "hidden": 48}}
SAME = {"recipe": TWO_BLOCKS, "batch": 32}
MESHES = {
    "alone": (1, {}),
    "ddp": (4, {}),
    "fsdp2": (4, {"shard": 4}),
    "hsdp": (4, {"replicate": 2, "shard": 2}),
    "fsdp2+tp": (4, {"shard": 2, "tensor": 2}),
    "pp+tp": (4, {"pipeline": 2, "tensor": 2}),
    "pp+fsdp2": (4, {"pipeline": 2, "shard": 2}),
}


@pytest.fixture(scope="module")
def saved(train, tmp_path_factory):
    """For a mesh: the checkpoint after one step of three on it, and the digest of its state."""
    folder = tmp_path_factory.mktemp("saved")

    @functools.cache
    def save(name):
        world_size, mesh = MESHES[name]
        path = str(folder / name)
        return path, train(world_size, steps=1, save_to=path, **SAME, parallel={**FAST, **mesh})["state"]

    return save


# A circle that writes and reads whole tensors, slices of two kinds and stages; the soak has what else is written so.
@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(("alone", "fsdp2+tp"), ("fsdp2+tp", "pp+tp"), ("pp+tp", "alone")),
        pytest.param("fsdp2+tp", "pp+fsdp2", marks=pytest.mark.soak),
        pytest.param("pp+tp", "hsdp", marks=pytest.mark.soak),
        pytest.param("hsdp", "pp+tp", marks=pytest.mark.soak),
        pytest.param("fsdp2", "alone", marks=pytest.mark.soak),
    ],
)
def test_a_checkpoint_of_any_mesh_continues_on_another(train, saved, before, after):
    world_size, mesh = MESHES[after]
    path, state = saved(before)
    parallel = {**FAST, **mesh}
    assert train(world_size, steps=0, load_from=path, **SAME, parallel=parallel)["state"] == state
    went_on = train(world_size, steps=2, load_from=path, **SAME, parallel=parallel)
    assert went_on["losses"] == pytest.approx(train(1, **SAME)["losses"][1:], rel=2e-5)


# Replicas alone are resumed in tests of the worker.
@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["fsdp2+tp", "pp+fsdp2", *(pytest.param(name, marks=pytest.mark.soak) for name in ("ddp", "hsdp"))],
)
def test_on_the_same_mesh_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(train, saved, name):
    world_size, mesh = MESHES[name]
    resumed = train(world_size, steps=2, load_from=saved(name)[0], **SAME, parallel={**FAST, **mesh})
    whole = train(world_size, **SAME, parallel={**FAST, **mesh})
    assert resumed["state"] == whole["state"]
    assert resumed["losses"] == whole["losses"][1:]
    assert whole["losses"] == pytest.approx(train(1, **SAME)["losses"], rel=2e-5)
