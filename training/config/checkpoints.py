"""When to keep a checkpoint, and which to keep."""

from __future__ import annotations

import difflib
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.training.config.durations import Seconds
from headway.training.config.validation import ValidationSpec

RANKING = ("inexact_resumes", "loss", "optimizer_step", "tokens_seen")
"""Scalars that every checkpoint of a run has once a step was taken; by others none could be ranked."""


class CheckpointSpec(Frozen):
    every_steps: int | None = Field(default=100, gt=0, description="Steps between checkpoints; null: by time alone.")
    every_s: Seconds | None = Field(
        default=None, gt=0, description="Seconds between checkpoints; null: by steps alone."
    )
    keep_last: int = Field(default=3, ge=2, description="Newest checkpoints to keep; two at least.")
    keep_every_steps: int | None = Field(default=None, gt=0, description="Also keep those of every so many steps.")
    keep_best: int = Field(default=0, ge=0, description="Also keep so many with the best `best_by`.")
    best_by: str = Field(default="loss", description="The scalar in a checkpoint's manifest that ranks it.")
    best_is: Literal["lowest", "highest"] = Field(default="lowest", description="Which value of it is best.")

    @field_validator("best_by")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in RANKING:
            near = difflib.get_close_matches(name, RANKING, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"no checkpoint has a scalar {name!r}; {hint}there are {', '.join(RANKING)}")
        return name

    @model_validator(mode="after")
    def _has_an_interval(self) -> Self:
        if self.every_steps is None and self.every_s is None:
            raise ValueError("give every_steps or every_s: a run that keeps no checkpoint cannot be resumed")
        return self


def save_is_due(spec: CheckpointSpec, *, step: int, saved_step: int, since_save_s: float) -> bool:
    """Whether to keep a checkpoint after `step` steps, the last one being of `saved_step` (0: none).

    Clocks differ between ranks: rank 0's answer is everybody's.

    Args:
        since_save_s: seconds since the last one was taken; since training began, when there is none.
    """
    by_steps = spec.every_steps is not None and step % spec.every_steps == 0
    by_time = spec.every_s is not None and since_save_s >= spec.every_s
    return step > saved_step and (by_steps or by_time)


def most_kept(
    spec: CheckpointSpec, *, max_steps: int, num_saved: int | None, validation: ValidationSpec | None = None
) -> int:
    """How many lie beside each other at most, the one that is being written included.

    Args:
        num_saved: by the whole run, besides those that validated best; None where nobody can say.
    """
    apart = 0 if spec.keep_every_steps is None else max_steps // spec.keep_every_steps
    kept = spec.keep_last + spec.keep_best + apart
    if validation is not None and validation.keep_best:
        kept += spec.keep_last  # each of these may name another as the best so far
        num_saved = None if num_saved is None else num_saved + validation.count(max_steps)
    return (kept if num_saved is None else min(kept, num_saved)) + 1
