"""Sharded and exact: slices of a model on several ranks, trained with the bits of one rank that has it whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.training.exact.cases import SHARDED
from tests.training.exact.rounds import Found, changing_worlds, run

pytestmark = [pytest.mark.process, pytest.mark.long]

SIZES = [
    pytest.param((1, 2, 4), id="up to 4"),
    pytest.param((1, 2, 4, 8), id="up to 8", marks=pytest.mark.soak),
]
"""Numbers of ranks. Eight add in the tree that four add in, one level deeper."""
NUM_STEPS = 4
DEEPER = ("language-model", "compressed-bf16", "skipping", "fp16", "batch-ramp")
"""Cases on four ranks too, which add in a tree one level deeper than two; in the soak all are."""
ON_EIGHT = ("language-model",)
RESUMED = ("language-model", "fp16")
SEED = random.randrange(2**32)


def resumes(seed: int, sizes: Sequence[int]) -> list[Found]:
    """Every step on another number of ranks than the one before, whole or in slices by turns."""
    worlds = changing_worlds(random.Random(seed), sizes)
    kinds = ("sharded", "whole", "sharded", "sharded")
    return [
        {"world_size": world, "chain": "resumed", "cases": {f"{kind} {name}": steps for name in RESUMED}}
        for world, kind, steps in zip(worlds, kinds, pairwise(range(5)), strict=True)
    ]


@pytest.fixture(scope="module", params=SIZES)
def rounds(request, tmp_path_factory) -> dict[str, list[Found]]:
    steps = (0, NUM_STEPS)
    sharded, whole = ([f"{kind} {name}" for name in SHARDED] for kind in ("sharded", "whole"))
    on_four = sharded if 8 in request.param else [f"sharded {name}" for name in DEEPER]
    jobs = {
        "1": {"world_size": 1, "cases": dict.fromkeys([*sharded, *whole], steps)},
        "2": {"world_size": 2, "cases": dict.fromkeys([*sharded, "sharded by twos"], steps)},
        "4": {"world_size": 4, "cases": dict.fromkeys([*on_four, "sharded by twos"], steps)},
        "refused": {"world_size": 1, "cases": {"sharded sparse": steps, "sharded scalar": steps}},
        **{f"resumed {index}": job for index, job in enumerate(resumes(SEED, request.param))},
    }
    if 8 in request.param:
        jobs["8"] = {"world_size": 8, "cases": dict.fromkeys([f"sharded {name}" for name in ON_EIGHT], steps)}
    return dict(zip(jobs, run(tmp_path_factory.mktemp("rounds"), list(jobs.values())), strict=True))


def require_same(found: Found, expected: Found, where: str) -> None:
    for what in ("digest", "losses", "norms", "noise_scales", "scalars", "buffers", "num_skipped"):
        assert found[what] == expected[what], f"{what} {where}"


@pytest.mark.parametrize("case", SHARDED)
def test_weights_moments_losses_norms_and_scales_have_the_same_bits_in_any_number_of_slices(rounds, case):
    alone = rounds["1"][0][f"sharded {case}"]
    for size in ("2", "4", "8"):
        for rank in rounds.get(size, ()):
            if f"sharded {case}" in rank:
                require_same(rank[f"sharded {case}"], alone, f"on {size} ranks")


@pytest.mark.parametrize("case", [case for case in SHARDED if case != "skipping"])
def test_they_are_the_bits_of_exact_replicas(rounds, case):
    require_same(rounds["1"][0][f"sharded {case}"], rounds["1"][0][f"whole {case}"], "of the whole model")


def test_what_enters_a_block_and_goes_past_it_adds_up_in_another_order_than_in_a_whole_model(rounds):
    """Alone, a rank has to take the order of those that shard: this is where it would show if it did not."""
    assert rounds["1"][0]["sharded skipping"]["digest"] != rounds["1"][0]["whole skipping"]["digest"]


def test_copies_of_a_sharded_model_have_the_same_bits_too(rounds):
    for size in ("2", "4"):
        for rank in rounds[size]:
            require_same(rank["sharded by twos"], rounds["1"][0]["whole language-model"], f"on {size} ranks")


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_that_goes_on_whole_or_in_other_slices_after_every_step_ends_with_the_same_bits(rounds, case):
    alone = rounds["1"][0][f"whole {case}"]
    found = [
        each[0].get(f"sharded {case}") or each[0][f"whole {case}"]
        for each in (rounds[f"resumed {index}"] for index in range(NUM_STEPS))
    ]
    assert [loss for each in found for loss in each["losses"]] == alone["losses"], f"seed {SEED}"
    assert (found[-1]["digest"], found[-1]["scalars"]) == (alone["digest"], alone["scalars"])


def test_compression_halves_the_bytes_of_gradients_that_are_scattered(rounds):
    plain, compressed = (
        rounds["2"][0][f"sharded {case}"]["traffic"]["all_to_all"] for case in ("language-model", "compressed-bf16")
    )
    assert plain[0] == compressed[0] == 3 * 4, "a root and two blocks, for each of a rank's replicas"
    assert plain[1] == 2 * compressed[1]


def test_what_cannot_be_sharded_is_refused_by_name_on_one_rank_too(rounds):
    told = {name: found["error"] for name, found in rounds["refused"][0].items()}
    assert told["sharded sparse"].startswith("ConfigError: model.embedding: its gradient is sparse"), told
    assert told["sharded scalar"].startswith("ConfigError: model.scale: it is a scalar"), told
