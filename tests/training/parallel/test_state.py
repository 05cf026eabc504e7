"""Whatever mesh a checkpoint was written on, any other reads it, and training goes on."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process

FAST = {"mode": "fast"}
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
    """Checkpoints after one step of three on each mesh, and the digests of their state."""
    folder = tmp_path_factory.mktemp("saved")

    def save(name):
        world_size, mesh = MESHES[name]
        path = str(folder / name)
        return path, train(world_size, steps=1, save_to=path, batch=32, parallel={**FAST, **mesh})["state"]

    return {name: save(name) for name in MESHES}


@pytest.mark.parametrize(
    ("before", "after"),
    [("alone", "fsdp2+tp"), ("fsdp2+tp", "pp+fsdp2"), ("pp+tp", "hsdp"), ("hsdp", "pp+tp"), ("fsdp2", "alone")],
)
def test_a_checkpoint_of_any_mesh_continues_on_another(train, saved, before, after):
    world_size, mesh = MESHES[after]
    path, state = saved[before]
    parallel = {**FAST, **mesh}
    assert train(world_size, steps=0, load_from=path, batch=32, parallel=parallel)["state"] == state
    went_on = train(world_size, steps=2, load_from=path, batch=32, parallel=parallel)
    assert went_on["losses"] == pytest.approx(train(1, batch=32)["losses"][1:], rel=2e-5)


@pytest.mark.parametrize("name", ["ddp", "hsdp", "fsdp2+tp", "pp+fsdp2"])
def test_on_the_same_mesh_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(train, saved, name):
    world_size, mesh = MESHES[name]
    resumed = train(world_size, steps=2, load_from=saved[name][0], batch=32, parallel={**FAST, **mesh})
    whole = train(world_size, batch=32, parallel={**FAST, **mesh})
    assert resumed["state"] == whole["state"]
    assert resumed["losses"] == whole["losses"][1:]
