"""Exact elasticity: the same bits on 1, 2, 4 and 8 ranks, which are real processes that meet over gloo."""

from __future__ import annotations

import random

import pytest

from tests.training.exact.rounds import Found, resumes, run

pytestmark = [pytest.mark.process, pytest.mark.long]

SHIPPED = ("language-model", "image-classifier", "tabular-classifier")
EVERYWHERE = ("language-model", "fp16", "batch-norm")
INTEGERS = ("int4", "int8", "int8-fp16", "int8-forgetful", "int8-batch-ramp", "int32")
"""Also on eight ranks, and through checkpoints on changing numbers of ranks."""
ON_TWO = (*EVERYWHERE, *INTEGERS, "batch-ramp", "compressed-bf16", "fp16-compressed-fp16")
"""Two ranks exchange by other collectives than four; a sum of two has but one order."""
SAME_BITS = (
    *SHIPPED,
    *ON_TWO[1:],
    "bf16",
    "compressed-fp16",
    "batch-norm-bf16",
    "sparse",
    "checkpointed",
)
ON_HOSTS = ("language-model", "compressed-bf16", "fp16-compressed-fp16", "int8", "int8-fp16")
IN_RACKS = ("language-model", "fp16")
REFUSED = {
    "reentrant": r"model\.block\.\d\.(weight|bias): its gradient arrived twice .*use_reentrant=False",
    "remembers": r"model\.mean: training changes this buffer",
    "sync-batch-norm": r"model\.1: SyncBatchNorm",
    "half-weights": r"model\.weight: it is float16, and weights are fp32",
}
UNEVEN = (*EVERYWHERE, *INTEGERS, "compressed-bf16", "fp16-compressed-fp16", "batch-ramp", "sparse")
"""On three ranks, of which none has as much as another."""
ON_FIVE = (*EVERYWHERE, "int32")
ON_EQUAL_TWO = ("language-model", "fp16", "int8", "int8-fp16", "compressed-bf16", "fp16-compressed-fp16")
ON_MOVING = tuple(case for case in UNEVEN if case not in ON_EQUAL_TWO or case in ("language-model", "int8"))
ON_THREE = (*EVERYWHERE, "int4", "int8-batch-ramp", "compressed-bf16", "sparse")
"""Enough for each case to meet two ranks, an uneven share and, of each kind, three; in the soak all meet all."""
MOVING = {"0": [1, 1], "1": [1, 3], "2": [7, 1], "4": [1, 1]}
"""By step, how fast two ranks are from then on."""
SIZES = [
    pytest.param((1, 2, 4), id="up to 4"),
    pytest.param((1, 2, 4, 8), id="up to 8", marks=pytest.mark.soak),
]
"""Numbers of ranks. Eight add in the tree that four add in, one level deeper."""
NUM_STEPS = 5
SEED = random.randrange(2**32)


@pytest.fixture(scope="module", params=SIZES)
def rounds(request, tmp_path_factory) -> dict[str, list[Found]]:
    is_soak = 8 in request.param
    on_two, on_three, on_moving = (ON_TWO, UNEVEN, UNEVEN) if is_soak else (ON_EQUAL_TWO, ON_THREE, ON_MOVING)
    jobs = {
        **{
            f"{size}": {"world_size": size, "cases": dict.fromkeys(cases, (0, NUM_STEPS))}
            for size, cases in ((1, SAME_BITS), (2, on_two), (4, SAME_BITS), (8, EVERYWHERE))
            if size in request.param
        },
        "2 x 2": {
            "world_size": 4,
            "levels": {"host": 2, "hosts": 2},
            "cases": dict.fromkeys(ON_HOSTS, (0, NUM_STEPS)),
        },
        "2 x 2 x 2": {
            "world_size": 8,
            "levels": {"host": 2, "rack": 2, "racks": 2},
            "cases": dict.fromkeys(IN_RACKS, (0, NUM_STEPS)),
        },
        "3": {"world_size": 3, "cases": dict.fromkeys(on_three, (0, NUM_STEPS))},
        "5": {"world_size": 5, "cases": dict.fromkeys(ON_FIVE, (0, NUM_STEPS)), "speeds": {"0": [1, 1, 3, 1, 1]}},
        "3 x 2": {
            "world_size": 6,
            "levels": {"host": 2, "hosts": 3},
            "cases": dict.fromkeys(ON_FIVE, (0, NUM_STEPS)),
        },
        "moving": {"world_size": 2, "cases": dict.fromkeys(on_moving, (0, NUM_STEPS)), "speeds": MOVING},
        "fast": {"world_size": 2, "cases": dict.fromkeys(("batch-norm-fast", "batch-norm-sharded"), (0, 1))},
        "one step": {"world_size": 1, "cases": {"batch-norm": (0, 1)}},
        "refused": {"world_size": 1, "cases": dict.fromkeys(REFUSED, (0, 1))},
        **{f"resumed {index}": job for index, job in enumerate(resumes(SEED, NUM_STEPS, EVERYWHERE, request.param))},
        **{
            f"resumed integers {index}": job
            for index, job in enumerate(resumes(SEED, NUM_STEPS, INTEGERS, (1, 2, 4), chain="integers"))
        },
    }
    return dict(zip(jobs, run(tmp_path_factory.mktemp("rounds"), list(jobs.values())), strict=True))


@pytest.mark.parametrize("case", SAME_BITS)
def test_weights_moments_losses_norms_and_scales_have_the_same_bits_on_any_number_of_ranks(rounds, case):
    alone = rounds["1"][0][case]
    for size in ("2", "3", "4", "5", "moving", "2 x 2", "3 x 2", "2 x 2 x 2", "8"):
        for rank in rounds.get(size, ()):
            if case in rank:
                for what in ("digest", "losses", "norms", "noise_scales", "scalars", "buffers"):
                    assert rank[case][what] == alone[what], f"{what} on {size} ranks"


def test_the_noise_of_gradients_is_measured_in_every_step_that_is_taken(rounds):
    for case, found in rounds["1"][0].items():
        assert found["scalars"]["gradient_noise_steps"] == NUM_STEPS - found["num_skipped"], case
        assert found["scalars"]["gradient_noise_variance"] > 0, case


def test_different_cases_have_different_bits(rounds):
    assert len({found["digest"] for found in rounds["1"][0].values()}) == len(SAME_BITS)


@pytest.mark.parametrize("case", [*EVERYWHERE, *INTEGERS])
def test_a_run_resumed_at_random_steps_on_other_numbers_of_ranks_ends_with_the_same_bits(rounds, case):
    how = "resumed integers" if case in INTEGERS else "resumed"
    last = rounds[f"{how} 3"][0][case]
    alone = rounds["1"][0][case]
    assert (last["digest"], last["scalars"]) == (alone["digest"], alone["scalars"]), f"seed {SEED}"
    losses = [loss for index in range(4) for loss in rounds[f"{how} {index}"][0][case]["losses"]]
    assert losses == alone["losses"]


@pytest.mark.parametrize("case", ["batch-norm-fast", "batch-norm-sharded"])
def test_batch_statistics_of_meshes_are_those_of_all_replicas_too(rounds, case):
    one, other = (rank[case]["buffers"] for rank in rounds["fast"])
    assert one == other
    exact = rounds["one step"][0]["batch-norm"]["buffers"]
    assert one.keys() == exact.keys()
    for name, values in exact.items():
        assert one[name] == pytest.approx(values, rel=1e-5, abs=1e-7), name


def test_steps_that_overflow_in_fp16_are_skipped_by_all_ranks(rounds):
    for case in ("fp16", "fp16-compressed-fp16", "int8-fp16"):
        for size in ("1", "2", "4"):
            assert {rank[case]["num_skipped"] for rank in rounds[size]} == {rounds["1"][0][case]["num_skipped"]}
        assert 0 < rounds["1"][0][case]["num_skipped"] < NUM_STEPS


@pytest.mark.parametrize(("case", "message"), REFUSED.items())
def test_what_would_depend_on_the_number_of_ranks_is_refused_by_name(rounds, case, message):
    (found,) = rounds["refused"]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found[case]["error"])
    assert found[case]["error"].startswith("ConfigError: ")


def test_every_collective_is_counted_and_compression_halves_its_bytes(rounds):
    assert rounds["1"][0]["language-model"]["traffic"] == {}
    for size, kind in (("2", "all_reduce"), ("4", "all_to_all")):
        plain, compressed = (rounds[size][0][case]["traffic"] for case in ("language-model", "compressed-bf16"))
        assert plain[kind][0] == compressed[kind][0] > 1, "several buckets"
        assert plain[kind][1] == 2 * compressed[kind][1]
        assert plain[kind][2] > 0
        assert plain["all_gather"][0] > 0, "losses are gathered"


@pytest.mark.parametrize(("case", "share"), [("language-model", 1.0), ("compressed-bf16", 0.5)])
def test_a_host_of_two_ranks_sends_each_sum_to_other_hosts_once(rounds, case, share):
    """On one level each of its ranks sends as much to other hosts as a host does on two."""
    sent_bytes = {kind: cost[1] for kind, cost in rounds["2 x 2"][0][case]["traffic"].items()}
    flat = rounds["4"][0]["language-model"]["traffic"]
    # The other host has two of the three ranks to which a rank of four sends.
    leave_host_flat = 2 / 3 * 2 * flat["all_to_all"][1]
    assert sent_bytes["all_reduce/hosts"] == pytest.approx(leave_host_flat / 2 * share)
    assert sent_bytes["all_to_all/host"] == sent_bytes["all_gather/host"] > 0


def test_whole_numbers_send_a_quarter_of_the_bytes(rounds):
    """And for each block of 64 a scale of 4 bytes."""
    plain, integers = (rounds["4"][0][case]["traffic"] for case in ("language-model", "int8"))
    assert integers["all_to_all"][1] / plain["all_to_all"][1] == pytest.approx(0.25, rel=0.01)
    plain, integers = (rounds["2"][0][case]["traffic"]["all_reduce"][1] for case in ("language-model", "int8"))
    assert integers / plain == pytest.approx(0.25 + 1 / 64, rel=0.01)


def test_to_make_up_the_whole_state_only_residuals_travel(rounds):
    """Weights and moments lie on every rank."""
    for size in ("2", "4"):
        for rank in rounds[size]:
            assert rank["language-model"]["broadcast_bytes"] == 0
            # Whole numbers of fp32, each island's from the rank that has it.
            assert 0 < rank["int8"]["broadcast_bytes"] < rank["int8"]["state_bytes"] / 2


def test_a_compiled_model_gives_the_same_bits_on_any_number_of_ranks_and_about_those_of_an_eager_one(tmp_path):
    cases = {"compiled": (0, 2), "perceptron": (0, 2)}
    (alone,), two = run(tmp_path, [{"world_size": size, "cases": cases} for size in (1, 2)])
    assert {rank["compiled"]["digest"] for rank in two} == {alone["compiled"]["digest"]}
    compiled, eager = (float.fromhex(alone[case]["losses"][0]) for case in cases)
    assert compiled == pytest.approx(eager, rel=0.1)
