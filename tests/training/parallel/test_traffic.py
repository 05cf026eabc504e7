"""What the engine says to other ranks in a step, by arithmetic: how many bytes of what, and that it takes time.

The model of `LANGUAGE_MODEL` on two ranks: width 32, 4 blocks, hidden 48, 64 tokens of vocabulary, rows of 16.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long

BLOCK = 32 * 96 + 32 * 32 + 32 * 96 + 48 * 32 + 2 * 32
PARAMETERS = 2 * 64 * 32 + 4 * BLOCK + 32
ROW_BYTES = 16 * 32 * 4
"""Of the activations of one row."""


def agreement(num_micro_batches: int) -> int:
    """Half of both ranks' rows of 4 float64, one a micro-batch, and of both ranks' squared norms."""
    return num_micro_batches * 4 * 8 + 8


CASES = {
    "two replicas": ({}, 8, {"all_reduce": 4 * PARAMETERS, "all_gather": agreement(1)}),
    "two replicas, bf16": (
        {"gradient_compression": "bf16"},
        8,
        {"all_reduce": 2 * PARAMETERS, "all_gather": agreement(1)},
    ),
    # Every rank has the whole sum, and needs nobody for its norm.
    "exact": ({"mode": "exact"}, 8, {"all_reduce": 4 * PARAMETERS, "all_gather": agreement(1) - 8}),
    "sharded": (
        {"shard": 2},
        4,
        {
            # Of each weight half is fetched; of blocks again on the way back, in each of two micro-batches.
            "all_gather": 2 * (4 * PARAMETERS + 4 * 4 * BLOCK) // 2 + agreement(2),
            "reduce_scatter": 4 * PARAMETERS // 2,
        },
    ),
    "sharded, and two replicas of it": (
        {"shard": 2, "replicate": 2},
        4,
        {
            "all_gather": (4 * PARAMETERS + 4 * 4 * BLOCK) // 2 + 3 * agreement(1),
            "reduce_scatter": 4 * PARAMETERS // 2,
            "all_reduce": 4 * PARAMETERS // 2,
        },
    ),
    # Positions are gathered before heads, hidden groups and vocabulary, and scattered behind them; the other way round
    # on the way back. The norms see their own positions, and the loss their own part of the vocabulary.
    "tensor": (
        {"tensor": 2},
        16,
        {
            "all_gather": 2 * (2 * 4 + 1) * 16 * ROW_BYTES // 2 + agreement(1),
            "reduce_scatter": 2 * (2 * 4 + 1) * 16 * ROW_BYTES // 2,
            "all_reduce": (2 * 4 + 1) * 32 * 4 + 3 * 16 * 16 * 4,
        },
    ),
    "pipeline": (
        {"pipeline": 2},
        8,
        # The first stage sends activations, of which the first is announced, and receives their gradients.
        {"send": 2 * 8 * ROW_BYTES + 10 * 8, "recv": 0, "all_gather": agreement(2)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_byte_that_the_engine_sends_in_a_step_is_counted_by_kind(train, name):
    options, micro, sent_bytes = CASES[name]
    compression = {key: options[key] for key in options if key == "gradient_compression"}
    parallel = {"mode": "fast"} | {key: value for key, value in options.items() if key not in compression}
    answer = train(
        2 * options.get("replicate", 1), micro=micro, steps=1, measure=True, parallel=parallel, **compression
    )
    assert {kind: cost["sent_bytes"] for kind, cost in answer["local_traffic"].items()} == sent_bytes
    assert all((cost["busy_s"] > 0) == (kind != "send") for kind, cost in answer["local_traffic"].items())
    assert answer["num_parameters"] == PARAMETERS, "of the whole model, whatever part of it lies here"


def test_the_first_stage_of_a_pipeline_computes_and_waits(train):
    """Its own passes count as forward, though the loss is another rank's; the bubble counts as waiting."""
    answer = train(2, micro=8, steps=1, measure=True, parallel={"mode": "fast", "pipeline": 2})
    assert answer["local_parts_s"]["forward"] > 0
    assert answer["local_waited_in_passes_s"] > 0


def test_ranks_that_each_have_the_whole_model_wait_only_where_they_meet(train):
    answer = train(2, micro=8, steps=1, measure=True, parallel={"mode": "fast"})
    assert answer["local_parts_s"]["forward"] > 0
    assert answer["local_parts_s"]["sync"] == answer["local_waited_in_passes_s"] == 0


@pytest.mark.parametrize("split", ["shard", "tensor"])
def test_what_ranks_that_share_layers_wait_for_within_a_pass_is_told(train, split):
    answer = train(2, micro=4, steps=1, measure=True, parallel={"mode": "fast", split: 2})
    assert answer["local_parts_s"]["forward"] > 0 and answer["local_waited_in_passes_s"] > 0
