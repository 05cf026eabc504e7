"""Federated runs, of real ranks on shards of three groups: killed in mid-round, and resumed on other ranks."""

from __future__ import annotations

from typing import Any

import pytest

from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.training_spec import TrainingSpec
from tests.training.programs.test_island_runs import EVERY, NUM_STEPS, killed_in_mid_round
from tests.training.programs.test_unequal_ranks import digest, events

pytestmark = pytest.mark.process
FEDERATED = {"personal": ["norm.*"], "proximal": 0.1, "lost_fraction": 0.2}


def federated(training: TrainingSpec) -> TrainingSpec:
    """Two of three clients in a round, of two replicas each, saved after every second round."""
    changes: dict[str, Any] = {
        "global_batch_sequences": 4,
        "micro_batch_sequences": 1,
        "max_steps": NUM_STEPS,
        "sync": {"every_steps": EVERY, "islands": 2, "outer": {"momentum": 0.5}, "federated": FEDERATED},
        "checkpoints": CheckpointSpec(every_steps=2 * EVERY).model_dump(mode="json"),
    }
    return TrainingSpec.model_validate(training.model_dump(mode="json") | changes)


@pytest.fixture(scope="module")
def alone(shared_project, tiny_training, tmp_path_factory) -> str:
    """What a run comes to that nobody disturbs, on one rank."""
    run_dir = tmp_path_factory.mktemp("alone")
    run = shared_project.publish_run(federated(tiny_training))
    assert shared_project.train(run, run_dir, world_size=1) == [0], shared_project.log(run_dir)
    rounds = events(shared_project, run_dir, "federated.round")
    assert [event["step"] for event in rounds] == [*range(EVERY, NUM_STEPS, EVERY), NUM_STEPS]
    assert {name for event in rounds for name in event["clients"]} == {f"{group} of 3" for group in range(3)}
    assert any(event["lost"] for event in rounds)
    for event in rounds:
        assert sorted([*event["answered"], *event["lost"]]) == sorted(event["clients"])
        assert all(distance > 0 for distance in event["distances"])
    return digest(run_dir)


def test_a_kill_in_the_midst_of_a_round_ends_on_other_ranks_with_the_bits_of_none(
    project, tiny_training, alone, tmp_path, until
):
    run = project.publish_run(federated(tiny_training))
    killed_in_mid_round(project, run, tmp_path, until)
    # Two ranks share each client now.
    assert project.train(run, tmp_path, world_size=4) == [0] * 4, project.log(tmp_path)
    assert digest(tmp_path) == alone
