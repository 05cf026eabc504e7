"""Models that one rank cannot hold train on several that share them."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.process, pytest.mark.long]

LARGE = {"name": "language-model", "model": {"width": 512, "depth": 4, "heads": 4, "hidden": 1024}}
NUM_PARAMETERS = 4 * (4 * 512 * 512 + 3 * 512 * 1024)
WHOLE_BYTES = 4 * 4 * NUM_PARAMETERS
"""Weights, gradients and two moments."""
LIMIT_BYTES = WHOLE_BYTES * 8 // 10


def large(train, world_size, more_bytes, **parallel):
    options = {"batch": 8, "micro": 2, "steps": 1, "recipe": LARGE, "more_bytes": more_bytes}
    return train(world_size, parallel={"mode": "fast", **parallel}, implementation="foreach", **options)


def test_one_rank_alone_runs_out_of_memory(train):
    assert "can't allocate memory" in large(train, 1, LIMIT_BYTES)["out_of_memory"]


@pytest.mark.parametrize(
    "mesh",
    [
        {"shard": 4, "reduce_every_micro_batch": True},
        {"tensor": 4},
        {"mode": "exact", "replicate": 1, "shard": -1},
    ],
    ids=["fsdp2", "tensor parallel", "exact"],
)
def test_four_ranks_under_the_same_limit_each_train_the_same_model(train, mesh):
    shared, unlimited = large(train, 4, LIMIT_BYTES, **mesh), large(train, 1, None)
    assert shared["first"] == unlimited["first"]
    assert shared["losses"] == pytest.approx(unlimited["losses"], rel=1e-4)
    assert shared["norms"] == pytest.approx(unlimited["norms"], rel=1e-3)
    assert shared["local_parameters"] < NUM_PARAMETERS // 3
