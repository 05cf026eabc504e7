"""Islands that train apart: the same bits on 1, 2, 3 and 4 ranks, which are real processes that meet over gloo."""

from __future__ import annotations

import random

import pytest

from tests.training.exact.cases import FEDERATED, ISLANDS, SITES
from tests.training.exact.rounds import Found, changing_worlds, run

pytestmark = [pytest.mark.process, pytest.mark.long]

NUM_STEPS = 9
CUTS = (1, 5, 6)
"""Where rounds of all resumed cases end: what was late is under way at two of them."""
FEDERATED_ENDS = (0, 2, 6, NUM_STEPS)
RESUMED = tuple(name for name in ISLANDS if name != "islands-momentum")
ON_HOSTS = ("islands", "islands-int8", "islands-late")
ON_THREE = (
    *("islands", "islands-int8", "islands-late-int8-fragments", "islands-narrow", "islands-batch-ramp"),
    *FEDERATED,
)
ON_MOVING = tuple(name for name in RESUMED if name not in ON_THREE[1:])
"""Each on unequal ranks of one kind or the other."""
MOVING = {"0": [1, 1], "1": [1, 3], "5": [3, 1]}
"""By step, how fast two ranks are from then on."""
SEED = random.randrange(2**32)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory) -> dict[str, list[Found]]:
    draw = random.Random(SEED)
    ends = [0, *CUTS, NUM_STEPS]
    resumed = zip(changing_worlds(draw, (1, 2, 3, 4)), ends, ends[1:], strict=False)
    of_sites = dict.fromkeys(SITES, (0, NUM_STEPS))
    everything = dict.fromkeys((*ISLANDS, *FEDERATED), (0, NUM_STEPS))
    clients = zip(changing_worlds(draw, (1, 2, 3, 4)), FEDERATED_ENDS, FEDERATED_ENDS[1:], strict=False)
    jobs: dict[str, Found] = {
        **{f"{size}": {"world_size": size, "cases": everything} for size in (1, 4)},
        "3": {"world_size": 3, "cases": dict.fromkeys(ON_THREE, (0, NUM_STEPS))},
        "2 x 2": {
            "world_size": 4,
            "levels": {"host": 2, "hosts": 2},
            "cases": dict.fromkeys(ON_HOSTS, (0, NUM_STEPS)),
        },
        "sites 1": {"world_size": 1, "cases": of_sites},
        "sites 2": {"world_size": 2, "cases": of_sites},
        "sites 4": {"world_size": 4, "cases": of_sites, "speeds": {"0": [1, 1, 1, 1], "5": [3, 1, 1, 1]}},
        "sites 6": {"world_size": 6, "cases": {"sites": (0, NUM_STEPS)}},
        **{
            f"sites resumed {index}": {"world_size": world, "chain": "sites", "cases": dict.fromkeys(SITES, span)}
            for index, (world, span) in enumerate(((4, (0, 5)), (2, (5, 6)), (4, (6, NUM_STEPS))))
        },
        "moving": {"world_size": 2, "cases": dict.fromkeys(ON_MOVING, (0, NUM_STEPS)), "speeds": MOVING},
        "moving clients": {
            "world_size": 2,
            "cases": dict.fromkeys(FEDERATED, (0, NUM_STEPS)),
            "speeds": {"2": [1, 3], "6": [3, 1]},
        },
        **{
            f"clients resumed {index}": {
                "world_size": world,
                "chain": "federated",
                "cases": dict.fromkeys(FEDERATED, span),
            }
            for index, (world, *span) in enumerate(clients)
        },
        "refused": {"world_size": 1, "cases": {"islands-batch-norm": (0, 1)}},
        **{
            f"resumed {index}": {"world_size": world, "chain": "islands", "cases": dict.fromkeys(RESUMED, span)}
            for index, (world, *span) in enumerate(resumed)
        },
    }
    return dict(zip(jobs, run(tmp_path_factory.mktemp("rounds"), list(jobs.values())), strict=True))


@pytest.mark.parametrize("case", [*ISLANDS, *FEDERATED])
def test_shared_weights_islands_losses_and_norms_have_the_same_bits_on_any_number_of_ranks(rounds, case):
    alone = rounds["1"][0][case]
    assert "error" not in alone
    for size in ("3", "4", "moving", "moving clients", "2 x 2"):
        for rank in rounds[size]:
            if case in rank:
                for what in ("digest", "losses", "norms", "scalars"):
                    assert rank[case][what] == alone[what], f"{what} on {size} ranks"


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_resumed_between_rounds_on_other_numbers_of_ranks_ends_with_the_same_bits(rounds, case):
    last = rounds[f"resumed {len(CUTS)}"][0][case]
    alone = rounds["1"][0][case]
    assert (last["digest"], last["scalars"]) == (alone["digest"], alone["scalars"]), f"seed {SEED}"
    losses = [loss for index in range(len(CUTS) + 1) for loss in rounds[f"resumed {index}"][0][case]["losses"]]
    assert losses == alone["losses"]


@pytest.mark.parametrize("case", FEDERATED)
def test_federated_rounds_resumed_on_other_numbers_of_ranks_end_with_the_same_bits(rounds, case):
    last = rounds[f"clients resumed {len(FEDERATED_ENDS) - 2}"][0][case]
    alone = rounds["1"][0][case]
    assert (last["digest"], last["scalars"]) == (alone["digest"], alone["scalars"]), f"seed {SEED}"


@pytest.mark.parametrize("case", SITES)
def test_ranks_that_share_an_island_add_up_within_it_and_change_no_bit(rounds, case):
    alone = rounds["sites 1"][0][case]
    assert "error" not in alone
    for size in ("sites 2", "sites 4", "sites 6"):
        for rank in rounds[size]:
            if case in rank:
                for what in ("digest", "losses", "norms", "scalars"):
                    assert rank[case][what] == alone[what], f"{what} on {size}"
    last = rounds["sites resumed 2"][0][case]
    assert (last["digest"], last["scalars"]) == (alone["digest"], alone["scalars"])


def test_between_sites_travels_one_movement_a_site_and_within_them_gradients(rounds):
    two, four = (rounds[f"sites {size}"][0]["sites"]["traffic"] for size in (2, 4))
    sent = {kind: num_bytes for kind, (_, num_bytes, _) in four.items()}
    across = sum(num_bytes for kind, num_bytes in sent.items() if kind.endswith("/islands"))
    flat = sum(num_bytes for kind, (_, num_bytes, _) in two.items() if not kind.startswith("all_gather"))
    # A rank of two sends its half of a site's movement.
    assert across == pytest.approx(flat / 2, rel=0.05)
    assert sum(num_bytes for kind, num_bytes in sent.items() if kind.endswith("/island")) > 2 * across


def test_each_setting_has_bits_of_its_own(rounds):
    assert len({found["digest"] for found in rounds["1"][0].values()}) == len(ISLANDS) + len(FEDERATED)


def test_batch_normalisation_is_refused_by_name(rounds):
    assert "training.sync: batch normalisation" in rounds["refused"][0]["islands-batch-norm"]["error"]
