"""Runs of real ranks that do not wait for each other: killed, continued by others, and repeated from the ledger."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.arrivals import SCRIPT_NAME, as_json, script_from
from headway.training.launch.base.gang import leader_spools
from headway.training.observe.ledger import SpoolTail
from tests.training.programs.test_unequal_ranks import digest, events

pytestmark = pytest.mark.process
EVERY, NUM_STEPS, STALENESS = 8, 44, 3


def asynchronous(training: TrainingSpec) -> TrainingSpec:
    changes: dict[str, Any] = {
        "global_batch_sequences": 4,
        "micro_batch_sequences": 2,
        "max_steps": NUM_STEPS,
        "parallel": {"mode": "fast"},
        "asynchronous": {"staleness": STALENESS, "meet_every_steps": EVERY},
        "checkpoints": CheckpointSpec(every_steps=2 * EVERY).model_dump(mode="json"),
    }
    return TrainingSpec.model_validate(training.model_dump(mode="json") | changes)


def test_a_killed_run_goes_on_with_other_ranks_and_its_ledger_repeats_it_to_the_bit(
    project, tiny_training, tmp_path, until
):
    run, first, again = project.publish_run(asynchronous(tiny_training)), tmp_path / "run", tmp_path / "again"
    first.mkdir()
    again.mkdir()
    ranks = project.start(run, first, world_size=2)
    seen = first / "attempts/000/ledger/rank-1.jsonl"
    until(lambda: seen.exists() and any(event["step"] == 16 for event in events(project, first, "checkpoint", 1)))
    for rank in ranks:
        rank.send_signal(signal.SIGKILL)
        rank.wait(60)
    assert project.train(run, first, world_size=3) == [0] * 3, project.log(first)
    steps = events(project, first, "step")
    assert all(0 <= event["staleness"] <= STALENESS for event in steps) and steps[-1]["step"] == NUM_STEPS
    script = script_from((event for spool in leader_spools(first) for event in SpoolTail(spool).stream()), NUM_STEPS)
    assert list(script) == list(range(0, NUM_STEPS, EVERY))
    (again / SCRIPT_NAME).write_text(json.dumps(as_json(script)))
    assert project.train(run, again, world_size=1) == [0], project.log(again)
    assert digest(again) == digest(first)
    losses = {event["step"]: event["loss"] for event in events(project, again, "step")}
    assert all(losses[event["step"]] == event["loss"] for event in steps)
