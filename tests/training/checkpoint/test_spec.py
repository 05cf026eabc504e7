"""When a checkpoint is due: by steps, by time, or by whichever comes first."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from headway.training.config.checkpoints import CheckpointSpec, save_is_due


def due(spec, step, since_save_s=0.0, saved_step=0):
    return save_is_due(spec, step=step, saved_step=saved_step, since_save_s=since_save_s)


def test_by_steps_it_is_due_at_round_steps_whenever_training_began():
    spec = CheckpointSpec(every_steps=4)
    assert [step for step in range(1, 13) if due(spec, step, since_save_s=1e9, saved_step=3)] == [4, 8, 12]


def test_by_time_it_is_due_once_the_time_is_over():
    spec = CheckpointSpec(every_steps=None, every_s=60)
    assert [due(spec, 5, seconds) for seconds in (0, 59.9, 60, 1e9)] == [False, False, True, True]


def test_by_both_whichever_comes_first():
    spec = CheckpointSpec(every_steps=4, every_s=60)
    assert [due(spec, 4, 1), due(spec, 5, 61), due(spec, 5, 1)] == [True, True, False]


def test_no_step_is_kept_twice():
    assert not due(CheckpointSpec(every_steps=4, every_s=1), 8, 100, saved_step=8)


def test_a_run_without_an_interval_is_refused():
    with pytest.raises(ValidationError, match="cannot be resumed"):
        CheckpointSpec(every_steps=None)
