"""Every parallelism trains the model that one process trains."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long


def close(answer, alone, tolerance=2e-5):
    assert answer["losses"] == pytest.approx(alone["losses"], rel=tolerance)
    assert answer["norms"] == pytest.approx(alone["norms"], rel=50 * tolerance)
    for figure in ("proof", "validated"):
        assert answer[figure] == pytest.approx(alone[figure], rel=tolerance), figure
    assert answer["first"] == alone["first"], "the initial weights differ"


def test_two_replicas_of_one_micro_batch_each_are_one_process_bit_for_bit(train):
    alone = train(1, micro=8)
    assert train(2, micro=8) == alone
    exact = train(2, micro=8, parallel={"mode": "exact"})
    assert exact.pop("norms") == pytest.approx(alone["norms"], rel=2e-6), "added up in other pieces"
    assert exact == {name: value for name, value in alone.items() if name != "norms"}


def test_four_replicas_follow_one_process(train):
    close(train(4), train(1))


FAST = {"mode": "fast"}


def at_length(*values):
    """Of what other values of `make test` prove in a shorter time, each a gang of its own."""
    return pytest.param(*values, marks=pytest.mark.soak)


def test_ddp_and_fsdp2_are_bit_for_bit_equal_where_sums_have_one_order(train):
    replicated = train(2)
    sharded = train(2, parallel={**FAST, "shard": 2})
    assert sharded["losses"] == replicated["losses"]
    assert sharded["state"] == replicated["state"]
    assert sharded["first"] == replicated["first"]


@pytest.mark.parametrize("options", [{"recompute": True}, {"reduce_every_micro_batch": True}, {"deferred_init": False}])
def test_what_saves_memory_changes_no_bit(train, options):
    if "reduce_every_micro_batch" in options:
        close(train(2, parallel={**FAST, "shard": 2, **options}), train(2))
    else:
        assert train(2, parallel={**FAST, "shard": 2, **options}) == train(2, parallel={**FAST, "shard": 2})


@pytest.mark.parametrize("mesh", [{"shard": 4}, {"replicate": 2, "shard": 2}], ids=str)
def test_sharded_meshes_follow_one_process(train, mesh):
    close(train(4, parallel={**FAST, **mesh}), train(1))


def test_muon_orthogonalises_whole_matrices_of_which_ranks_hold_slices(train):
    sharded = train(2, kind="muon", parallel={**FAST, "shard": 2})
    replicated = train(2, kind="muon")
    close(sharded, replicated)
    assert sharded["losses"] != train(2)["losses"]


TWO_BLOCKS = {"name": "language-model", "model": {"width": 32, "depth": 2, "heads": 4, "hidden": 48}}
"""All blocks are split alike, and every operator on slices costs a millisecond of Python."""


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [{}, {"sequence_parallel": False}, {"loss_parallel": False}, at_length({"recompute": True})],
    ids=str,
)
def test_two_tensor_parallel_ranks_follow_one_process(train, options):
    sliced = train(2, recipe=TWO_BLOCKS, parallel={**FAST, "tensor": 2, **options})
    close(sliced, train(1, recipe=TWO_BLOCKS))


TIED = {"name": "language-model", "model": {"width": 32, "depth": 2, "heads": 4, "hidden": 48, "tied_embeddings": True}}


@pytest.mark.parametrize(
    "mesh",  # of the last, test_state.py compares the losses
    [at_length({"tensor": 4}), {"replicate": 2, "tensor": 2}, at_length({"shard": 2, "tensor": 2})],
    ids=str,
)
def test_tensor_parallel_meshes_follow_one_process(train, mesh):
    close(train(4, recipe=TWO_BLOCKS, parallel={**FAST, **mesh}), train(1, recipe=TWO_BLOCKS))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_of_two_follows_one_process(train, schedule):
    close(train(2, batch=32, parallel={**FAST, "pipeline": 2, "schedule": schedule}), train(1, batch=32))


@pytest.mark.parametrize(
    "mesh",
    [
        {"pipeline": 4},
        {"pipeline": 2, "replicate": 2},
        at_length({"pipeline": 2, "shard": 2}),  # of these, test_state.py compares the losses
        at_length({"pipeline": 2, "tensor": 2}),
    ],
    ids=str,
)
def test_pipeline_meshes_follow_one_process(train, mesh):
    recipe = TWO_BLOCKS if "tensor" in mesh else None
    close(train(4, batch=32, recipe=recipe, parallel={**FAST, **mesh}), train(1, batch=32, recipe=recipe))


@pytest.mark.parametrize("mesh", [{"shard": 2}, {"tensor": 2}], ids=str)
def test_a_tied_matrix_stays_one_however_it_is_split(train, mesh):
    tied = train(2, recipe=TIED, parallel={**FAST, **mesh})
    close(tied, train(1, recipe=TIED))


@pytest.mark.parametrize("name", ["image-classifier", "tabular-classifier"])
@pytest.mark.parametrize("mesh", [{}, {"shard": 2}], ids=["ddp", "fsdp2"])
def test_recipes_without_blocks_train_on_replicated_and_sharded_meshes_too(train, name, mesh):
    recipe = {"name": name, "model": {"width": 8}}
    close(train(2, recipe=recipe, parallel={**FAST, **mesh}), train(1, recipe=recipe))


@pytest.mark.long
@pytest.mark.parametrize(
    ("mesh", "precision"),
    [
        ({}, "bf16"),
        ({"shard": 2}, "fp16"),
        ({"pipeline": 2}, "bf16"),
        ({"tensor": 2}, "bf16"),
        at_length({}, "fp16"),
        at_length({"shard": 2}, "bf16"),
        at_length({"pipeline": 2}, "fp16"),
        at_length({"tensor": 2}, "fp16"),
    ],
    ids=str,
)
def test_half_precision_on_every_mesh_is_that_of_one_process(train, mesh, precision):
    half = train(2, precision=precision, parallel={**FAST, **mesh})
    assert half["losses"] == pytest.approx(train(1, precision=precision)["losses"], rel=2e-3)
    assert half["losses"] != train(1)["losses"]
    assert half["first"] == train(1)["first"]


@pytest.mark.parametrize("mesh", [{}, {"shard": 2}], ids=["ddp", "fsdp2"])
def test_compressed_gradients_travel_in_half_the_bytes_and_train_alike(train, mesh):
    compressed = train(2, gradient_compression="bf16", parallel={**FAST, **mesh})
    plain = train(2, parallel={**FAST, **mesh})
    assert compressed["losses"] == pytest.approx(plain["losses"], rel=2e-3)
    assert compressed["losses"] != plain["losses"]


@pytest.mark.long
@pytest.mark.parametrize(("world_size", "mesh"), [(1, {}), at_length(2, {"shard": 2})], ids=["alone", "fsdp2"])
def test_compiled_blocks_follow_eager_ones(train, world_size, mesh):
    """By hand also on DDP, tensor parallel, and a pipeline that recomputes: minutes of compiler time for each rank."""
    one_block = {"name": "language-model", "model": {"width": 32, "depth": 1, "heads": 4, "hidden": 48}}
    compiled = train(world_size, compile=True, recipe=one_block, parallel={**FAST, **mesh})
    close(compiled, train(1, recipe=one_block))


FIRST_STAGE = {"parameters": ["embedding.*", "blocks.0.*", "blocks.1.*"], "frozen": True}


@pytest.mark.parametrize("mesh", [{"pipeline": 2}, {"shard": 2}, {}], ids=str)
def test_frozen_parameters_stay_on_every_mesh_a_whole_frozen_stage_too(train, mesh):
    close(train(2, groups=[FIRST_STAGE], parallel={**FAST, **mesh}), train(1, groups=[FIRST_STAGE]))
