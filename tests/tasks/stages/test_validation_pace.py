"""How many steps so many seconds are: settled before a run begins, and the same for it ever after."""

from __future__ import annotations

from typing import Any

import pytest

from headway.data_contracts.store.documents import Link, RunSpec, StoredFile
from headway.tasks.core.context import RunContext
from headway.tasks.search.rungs import AttemptPace
from headway.tasks.stages import validation_pace
from headway.tasks.stages.validation_pace import record_validation, settle_validation, validation_of
from headway.training.config.training_spec import TrainingSpec
from headway.training.config.validation import ValidationSpec

TRAINING = TrainingSpec(max_steps=400, validation=ValidationSpec(every_s=240, patience=3))


def run_of(training: TrainingSpec = TRAINING, sha256: str = "a") -> RunSpec:
    link = Link(kind="manifest", sha256=sha256 * 64)
    file = StoredFile(path="code.zip", size_bytes=1, sha256="c" * 64)
    return RunSpec(
        pipeline="tiny",
        config=training.identity,
        manifest=link,
        receipt=link,
        fitted=link,
        code=file,
        environment=file,
    )


@pytest.fixture
def steps_take(monkeypatch: pytest.MonkeyPatch) -> Any:
    def told(step_s: float | None) -> None:
        monkeypatch.setattr(validation_pace, "_step_s", lambda context: step_s)

    return told


def every(run: RunSpec) -> int | None:
    found = validation_of(run)
    assert found is not None and found.every_s == 240 and found.patience == 3
    return found.every_steps


def test_so_many_seconds_are_settled_by_the_last_runs_pace_and_it_says_both(
    context: RunContext, steps_take: Any
) -> None:
    steps_take(4.0)
    settled = settle_validation(context, run_of(), TRAINING, None)
    assert every(settled) == 60
    assert str(validation_of(settled)).startswith("every 240 s: every 60 steps and after the last")
    assert TrainingSpec.model_validate(settled.config).validation == validation_of(settled), "as a rank reads it"
    steps_take(1000.0)
    assert every(settle_validation(context, run_of(), TRAINING, None)) == 1
    steps_take(0.001)
    assert every(settle_validation(context, run_of(), TRAINING, None)) == 400
    steps_take(None)
    assert every(settle_validation(context, run_of(), TRAINING, None)) == 40, "a tenth"


def test_a_run_that_began_is_the_same_run_at_any_later_pace_and_looking_writes_nothing(
    context: RunContext, steps_take: Any
) -> None:
    steps_take(4.0)
    began = settle_validation(context, run_of(), TRAINING, None)
    steps_take(8.0)
    assert every(settle_validation(context, run_of(), TRAINING, None)) == 30, "it has not begun yet"
    start = Link(kind="checkpoint", sha256="c" * 64)
    record_validation(context, began.model_copy(update={"start": start}))
    assert settle_validation(context, run_of(), TRAINING, None) == began
    record_validation(context, began)
    # On other data it is another run, of today's pace.
    assert every(settle_validation(context, run_of(sha256="b"), TRAINING, None)) == 30


def test_trials_are_validated_as_often_as_the_first_of_them(context: RunContext, steps_take: Any) -> None:
    steps_take(4.0)
    first = settle_validation(context, run_of(), TRAINING, None)
    other = TRAINING.model_copy(update={"seed": 1})
    steps_take(8.0)
    assert every(settle_validation(context, run_of(other), other, first)) == 60
    slower = other.model_copy(update={"validation": ValidationSpec(every_s=480, patience=3)})
    found = validation_of(settle_validation(context, run_of(slower), slower, first))
    assert found is not None and found.every_steps == 60, "480 s of today's pace"


def test_who_asks_for_steps_or_for_nothing_is_left_alone(context: RunContext) -> None:
    for validation in (None, ValidationSpec(every_steps=7), ValidationSpec(at_fractions=(0.5,))):
        training = TRAINING.model_copy(update={"validation": validation})
        run = run_of(training)
        assert settle_validation(context, run, training, None) is run
        record_validation(context, run)
    assert not list(context.workspace.files("refs"))


def test_the_pace_is_what_the_newest_run_took_here_or_else_what_its_record_says(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert validation_pace._step_s(context) is None
    monkeypatch.setattr(type(context.workspace), "is_empty", lambda self: False)
    monkeypatch.setattr(validation_pace, "last_pace", lambda *_: AttemptPace(start_s=9.0, step_s=0.5))
    assert validation_pace._step_s(context) == 0.5
