"""How many steps `training.validation.every_s` is: settled once before a run begins, by the pace of the last run.

By the clock of the run itself two trainings of one run would be validated at other steps, and could end elsewhere. The
number is part of the run's configuration. It is remembered as the ref `validations/<pipeline>/<key>`, under the key of
all other inputs, so that the same retrain finds the same run, whatever the pace is by then.
"""

from __future__ import annotations

from typing import Any, ClassVar

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Document, RunSpec
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage_records import newest_record_of
from headway.tasks.search.pace import last_pace
from headway.training.config.training_spec import TrainingSpec
from headway.training.config.validation import ValidationSpec


class ValidationPace(Document):
    """Steps between two validations of a run, of which its pipeline says the seconds."""

    kind: ClassVar[str] = "validation-pace"
    every_s: float
    """What the pipeline file says."""
    every_steps: int
    """What that was settled as."""


def settle_validation(context: RunContext, run: RunSpec, training: TrainingSpec, beside: RunSpec | None) -> RunSpec:
    """The run with what `every_s` is in steps; nothing is written.

    Args:
        run: without its starting point, as its pipeline file has it.
        beside: a run that it is compared with, and validated as often as.
    """
    validation = training.validation
    if validation is None or validation.is_settled:
        return run
    known = None if beside is None else _of(beside)
    if known is None or known.every_s != validation.every_s:
        entry = refs.current(context.workspace, pace_ref(run))
        if entry is not None:
            known = context.workspace.load(entry.target, ValidationPace)
    if known is None:
        settled = validation.settled(_step_s(context), training.max_steps)
    else:
        settled = validation.model_copy(update={"every_steps": known.every_steps})
    return run.model_copy(update={"config": training.model_copy(update={"validation": settled}).identity})


def record_validation(context: RunContext, run: RunSpec) -> None:
    """Hold the number fast for a run that is about to begin."""
    if (pace := _of(run)) is None:
        return
    asked = run.config["validation"] | {"every_steps": None}
    name = pace_ref(run.model_copy(update={"start": None, "config": run.config | {"validation": asked}}))
    if refs.current(context.workspace, name) is None:
        refs.ensure(context.workspace, name, context.workspace.publish_document(pace), reason="a run began", detail={})


def validation_of(run: RunSpec) -> ValidationSpec | None:
    found: Any = run.config.get("validation")
    return None if found is None else ValidationSpec.model_validate(found)


def pace_ref(run: RunSpec) -> str:
    """
    Args:
        run: without its starting point, and without the number.
    """
    return f"validations/{run.pipeline}/{run.sha256[:16]}"


def _of(run: RunSpec) -> ValidationPace | None:
    validation = validation_of(run)
    if validation is None or validation.every_s is None or validation.every_steps is None:
        return None
    return ValidationPace(every_s=validation.every_s, every_steps=validation.every_steps)


def _step_s(context: RunContext) -> float | None:
    """What one took in the pipeline's last run, as plans forecast it; None: none is on record."""
    if context.workspace.is_empty():
        return None
    if (pace := last_pace(context.workspace, context.pipeline)) is not None:
        return pace.step_s
    last = newest_record_of(context.workspace, context.pipeline, "launch")
    num_steps = 0 if last is None else int(last.provenance.get("num_steps", 0))
    # Trained elsewhere: starts are among it.
    return float(last.provenance["duration_s"]) / num_steps if last is not None and num_steps else None
