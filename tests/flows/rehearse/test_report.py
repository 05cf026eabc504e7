"""What a rehearsal foretells: pure arithmetic over what was measured, and no figure where none can be known."""

from __future__ import annotations

import pytest

from headway.flows.rehearse.report import (
    CheckpointCost,
    checkpoint_cost,
    needed_bytes,
    num_checkpoints,
    of_stage,
    real_training_s,
    stage_costs,
    validation_s,
    warm_step_s,
)
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.config.validation import ValidationSpec

COST = CheckpointCost(size_bytes=1000, stall_s=0.5, durable_s=None, restore_s=None)


def step(duration_s: float) -> dict[str, object]:
    return {"event": "step", "duration_s": duration_s}


def test_the_first_step_of_each_attempt_allocates_and_does_not_count() -> None:
    assert warm_step_s([[step(9.0), step(1.0)], [step(9.0), step(3.0)]]) == 2.0
    assert warm_step_s([[step(9.0)]]) == 9.0
    assert warm_step_s([]) is None


def test_training_is_its_start_once_its_steps_and_what_checkpoints_keep_them_waiting() -> None:
    training = TrainingSpec(max_steps=1000, checkpoints=CheckpointSpec(every_steps=100))
    assert real_training_s(training, launch_s=20, trained_s=8, step_s=2.0, checkpoint=COST) == 12 + 2000 + 10 * 0.5
    assert real_training_s(training, launch_s=20, trained_s=8, step_s=None, checkpoint=COST) is None


def test_a_run_that_is_validated_is_as_much_longer_as_that_takes_and_keeps_more_checkpoints() -> None:
    training = TrainingSpec(max_steps=1000, checkpoints=CheckpointSpec(every_steps=100, keep_last=3))
    validated = training.model_copy(update={"validation": ValidationSpec(every_steps=300, keep_best=True)})
    events = [{"event": "validation", "duration_s": each, "value": 1.0} for each in (1.0, 3.0, 9.0)]
    assert validation_s([*events, {"event": "validation", "duration_s": 90.0}]) == 3.0
    plain, longer = (
        real_training_s(each, launch_s=9, trained_s=9, step_s=1.0, checkpoint=COST, validation_s=3.0)
        for each in (training, validated)
    )
    assert longer == plain + 4 * 3.0
    room = [needed_bytes(each, shard_bytes=0, share=1, step_s=1.0, checkpoint=COST) for each in (training, validated)]
    assert room == [4 * 1000, 7 * 1000]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (CheckpointSpec(every_steps=100), 10),
        (CheckpointSpec(every_steps=None, every_s=60), 33),
        (CheckpointSpec(every_steps=5000), 1),
    ],
)
def test_checkpoints_come_by_steps_or_by_time_and_once_at_least(spec: CheckpointSpec, count: int) -> None:
    assert num_checkpoints(spec, max_steps=1000, step_s=2.0) == count


def test_space_is_for_the_shards_of_all_data_and_the_checkpoints_that_are_kept_beside_the_newest() -> None:
    training = TrainingSpec(max_steps=1000, checkpoints=CheckpointSpec(every_steps=100, keep_last=3))
    assert needed_bytes(training, shard_bytes=50, share=0.1, step_s=1.0, checkpoint=COST) == 500 + 4 * 1000


def test_a_part_of_the_data_tells_the_time_of_all_only_where_it_is_no_crumb() -> None:
    rehearsed = {"validate": 3.0, "verify": 2.0}

    def real(share: float, before: dict[str, float]) -> dict[str, float | None]:
        costs = stage_costs(rehearsed, before, share=share, training_s=None)
        return {cost.stage: cost.real_s for cost in costs}

    assert real(1.0, {"validate": 50.0}) == {"validate": 3.0, "verify": 2.0}
    assert real(0.5, {}) == {"validate": 6.0, "verify": 2.0}
    assert real(0.001, {}) == {"validate": None, "verify": 2.0}
    assert real(0.001, {"validate": 50.0}) == {"validate": 50.0, "verify": 2.0}


def test_what_the_second_flow_run_finds_was_made_by_the_first() -> None:
    made = [{"event": "stage.shard", "duration_s": 4.0, "found": False}, {"event": "stage.launch", "duration_s": 5.0}]
    found = [{"event": "stage.shard", "duration_s": 0.1, "found": True}, {"event": "stage.launch", "duration_s": 6.0}]
    assert of_stage([*made, *found]) == {"shard": 4.0, "launch": 11.0}


def test_a_checkpoint_costs_what_steps_waited_and_what_all_ranks_took_to_restore_it() -> None:
    events = [
        {"event": "restore", "duration_s": 0.1, "step": 0},
        {"event": "checkpoint", "duration_s": 0.2, "size_bytes": 70},
        {"event": "checkpoint.durable", "durable_s": 0.9, "size_bytes": 70},
        {"event": "restore", "duration_s": 0.4, "step": 3},
    ]
    cost = CheckpointCost(size_bytes=70, stall_s=0.2, durable_s=0.9, restore_s=0.4)
    assert checkpoint_cost(events) == cost
    assert checkpoint_cost(events[:1]) is None
