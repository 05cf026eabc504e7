"""Runs whose islands train apart, of real ranks: killed in mid-round, asked to stop, shared out anew."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import RunStopped
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.share_balance import EVERY_STEPS
from headway.training.launch.base import protocol
from tests.training.programs.test_unequal_ranks import digest, events, slowed

pytestmark = pytest.mark.process
EVERY, NUM_STEPS = 8, 44
"""The last round is a short one."""


def apart(training: TrainingSpec, **changes: Any) -> TrainingSpec:
    """Four islands of a replica each, which are saved after every second round."""
    sync = {"every_steps": EVERY, "islands": 4, **changes.pop("sync", {})}
    small = {"global_batch_sequences": 4, "micro_batch_sequences": 1, "max_steps": NUM_STEPS, "sync": sync, **changes}
    kept = {"checkpoints": CheckpointSpec(every_steps=2 * EVERY).model_dump(mode="json")}
    return TrainingSpec.model_validate(training.model_dump(mode="json") | small | kept)


@pytest.fixture(scope="module")
def alone(shared_project, tiny_training, tmp_path_factory) -> str:
    """What a run comes to that nobody disturbs, on one rank."""
    run_dir = tmp_path_factory.mktemp("alone")
    run = shared_project.publish_run(apart(tiny_training))
    assert shared_project.train(run, run_dir, world_size=1) == [0], shared_project.log(run_dir)
    return digest(run_dir)


def killed_in_mid_round(project: Any, run: Any, run_dir: Path, until: Any) -> None:
    """Two ranks, behind their checkpoint of two rounds of `EVERY` steps, in the midst of the fourth round."""
    ranks = project.start(run, run_dir, world_size=2)
    seen = run_dir / "attempts/000/ledger/rank-1.jsonl"
    until(lambda: seen.exists() and any(event["step"] == 16 for event in events(project, run_dir, "checkpoint", 1)))
    until(lambda: len(events(project, run_dir, "step", 1)) >= 3 * EVERY)
    for rank in ranks:
        rank.send_signal(signal.SIGKILL)
        rank.wait(60)


def test_each_step_of_a_round_has_a_record_and_the_last_one_its_exchange(project, tiny_training, alone, tmp_path):
    run = project.publish_run(apart(tiny_training))
    assert project.train(run, tmp_path, world_size=2) == [0, 0], project.log(tmp_path)
    assert digest(tmp_path) == alone
    steps = events(project, tmp_path, "step")
    assert [event["step"] for event in steps] == list(range(1, NUM_STEPS + 1))
    assert all(event["loss"] > 0 and event["grad_norm"] > 0 and event["tokens"] > 0 for event in steps)
    sent = [event["step"] for event in steps if any(name.endswith("sent_bytes") for name in event)]
    assert sent == [*range(EVERY, NUM_STEPS, EVERY), NUM_STEPS], "one exchange a round"
    assert [event["step"] for event in steps if event.get("ends_round", True)] == sent
    assert [event["step"] for event in events(project, tmp_path, "checkpoint")] == [16, 32, 44]
    for event, following in itertools.pairwise(steps):
        if event["step"] % (2 * EVERY):  # a checkpoint is no step's
            assert following["unix_s"] == pytest.approx(event["unix_s"] + event["duration_s"], abs=0.01)


def test_a_kill_in_the_midst_of_a_round_ends_on_other_ranks_with_the_bits_of_none(
    project, tiny_training, alone, tmp_path, until
):
    run = project.publish_run(apart(tiny_training))
    killed_in_mid_round(project, run, tmp_path, until)
    assert project.train(run, tmp_path, world_size=3) == [0] * 3, project.log(tmp_path)
    assert digest(tmp_path) == alone


def test_who_is_asked_to_stop_ends_its_round_and_keeps_it(project, tiny_training, alone, tmp_path, until):
    run = project.publish_run(apart(tiny_training))
    ranks = project.start(run, tmp_path, world_size=2)
    seen = tmp_path / "attempts/000/ledger/rank-0.jsonl"
    until(lambda: seen.exists() and events(project, tmp_path, "step"))
    ranks[1].send_signal(signal.SIGTERM)
    assert [rank.wait(60) for rank in ranks] == [RunStopped.exit_code] * 2, project.log(tmp_path)
    kept = events(project, tmp_path, "checkpoint")[-1]["step"]
    assert kept % EVERY == 0 and kept == len(events(project, tmp_path, "step"))
    assert project.train(run, tmp_path, world_size=1) == [0], project.log(tmp_path)
    assert digest(tmp_path) == alone


@pytest.mark.long
def test_islands_of_a_slow_rank_move_with_their_moments_and_no_bit_changes(project, tiny_training, tmp_path, until):
    changes = {"max_steps": 4 * EVERY_STEPS, "sync": {"every_steps": 2, "movements": "int8", "delay_steps": 1}}
    run = project.publish_run(apart(tiny_training, **changes))
    assert project.train(run, tmp_path / "even", world_size=1) == [0], project.log(tmp_path / "even")
    ranks = project.start(run, tmp_path / "slow", world_size=2, **{protocol.STRAGGLERS: "rebalance"})
    seen = tmp_path / "slow/attempts/000/ledger/rank-1.jsonl"
    until(lambda: seen.exists() and events(project, tmp_path / "slow", "step", 1))
    with slowed(ranks[1].pid):
        assert [rank.wait(120) for rank in ranks] == [0, 0], project.log(tmp_path / "slow")
    assert events(project, tmp_path / "slow", "shares.moved")
    assert digest(tmp_path / "slow") == digest(tmp_path / "even")
