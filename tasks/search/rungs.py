"""Successive halving: at which steps trials are compared, which of them go on, and what it costs. Pure.

A rung is a stop on the way of a run that is described for its whole length, so that going on from it costs the steps
that are left, and none is trained twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import Field

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.report_text import count
from headway.training.config.training_spec import TrainingSpec

WHERE = "trials.rungs"


class GeometricRungs(Frozen):
    """Rungs that lie further apart each time."""

    first: int = Field(gt=0, description="Steps to the first rung.")
    eta: int = Field(
        3,
        ge=2,
        description="Each rung is so many times the one before, and one in so many goes on; none is close to the end.",
    )


Rungs = tuple[int, ...] | GeometricRungs


@dataclass(frozen=True, kw_only=True, slots=True)
class RungScore:
    """What a trial has come to at a rung."""

    number: int
    value: float
    """Lower is better."""
    is_ahead: bool = False
    """Going on to the next rung costs it nothing: its run was trained so far before, or is finished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptPace:
    """What an attempt of a run takes on this machine."""

    start_s: float
    """Until its first step, and from its last one to its end."""
    step_s: float


def levels(rungs: Rungs | None, max_steps: int) -> tuple[int, ...]:
    """The steps at which trials are compared; the run's end is the last of them.

    Raises:
        ConfigError: a rung lies beyond the end.
    """
    if rungs is None:
        return (max_steps,)
    if isinstance(rungs, GeometricRungs):
        if rungs.first >= max_steps:
            raise _beyond(rungs.first, max_steps)
        num_rungs = math.ceil(math.log(max_steps / rungs.first, rungs.eta)) + 1
        given = [rungs.first * rungs.eta**each for each in range(num_rungs)]
        # One that is nearer to the end than to the rung before costs starts, and tells little that the end does not.
        kept = [step for step in given if step == rungs.first or step**2 * rungs.eta <= max_steps**2]
        return (*kept, max_steps)
    if beyond := [step for step in rungs if step > max_steps]:
        raise _beyond(beyond[0], max_steps)
    return rungs if rungs[-1] == max_steps else (*rungs, max_steps)


def _beyond(rung: int, max_steps: int) -> ConfigError:
    return ConfigError(
        f"a rung at step {rung:,} is none of a run of {max_steps:,} steps.",
        where=WHERE,
        advice=f"Rungs lie before the last step, {max_steps:,}; or raise training.max_steps.",
    )


def num_promoted(num_trials: int, step: int, following: int) -> int:
    """How many of a rung's trials go on to the next: so many that each rung takes as many steps in all."""
    return max(1, num_trials * step // following)


def promoted(scores: Collection[RungScore], num: int) -> tuple[list[int], list[int]]:
    """Numbers of the trials that go on from a rung, and of those that stay there, the best first.

    What is ahead goes on beside the others, in place of none of them: it costs no step.

    Args:
        num: how many go on.
    """
    ranked = sorted(scores, key=lambda each: (each.value, each.number))
    ahead = [each.number for each in ranked if each.is_ahead]
    others = [each.number for each in ranked if not each.is_ahead]
    return [*ahead, *others[:num]], others[num:]


def num_at_each(num_trials: int, steps: Sequence[int]) -> list[int]:
    """How many trials of a round come to each level, where none fails."""
    numbers = [num_trials]
    for step, following in pairwise(steps):
        numbers.append(num_promoted(numbers[-1], step, following))
    return numbers


def planned_steps(num_trials: int, steps: Sequence[int]) -> int:
    """Training steps of a round in all."""
    parts = [later - earlier for earlier, later in pairwise((0, *steps))]
    return sum(num * part for num, part in zip(num_at_each(num_trials, steps), parts, strict=True))


def require_at_rungs(steps: Sequence[int], training: TrainingSpec) -> None:
    """
    Args:
        steps: of the rungs, the last one the end of training.
        training: of a trial, its length in steps.

    Raises:
        ConfigError: it is longer or shorter than the others; or a rung lies within the warm-up, where rates say little
            of what they come to.
    """
    if len(steps) == 1:
        return
    if training.max_steps != steps[-1]:
        kind = "trees" if training.grows_trees else "steps"
        raise ConfigError(
            f"a trial of {training.recipe.name} ends after {training.max_steps:,} {kind}, and the last rung is "
            f"{steps[-1]:,}: trials that are compared at rungs are to be of one length.",
            where=WHERE,
            advice="Leave the recipe at one value, or leave out trials.rungs.",
        )
    warmup = training.schedule.warmup_steps
    if training.grows_trees or steps[0] > warmup:
        return
    raise ConfigError(
        f"the first rung, step {steps[0]:,}, lies within the warm-up of {warmup:,} steps: the learning rate is "
        f"{steps[0]:,} / {warmup:,} = {steps[0] / warmup:.0%} of its peak there at most, and tells no rates apart.",
        where=WHERE,
        advice=f"Begin after step {warmup:,}, or shorten training.schedule.warmup_steps.",
    )


def too_short(steps: Sequence[int], pace: AttemptPace, min_starts: int) -> str:
    """Why a rung is not worth the starts of its attempts, with the arithmetic; empty where it is."""
    if len(steps) == 1 or not min_starts:
        return ""
    shortest, before = min((later - earlier, earlier) for earlier, later in pairwise((0, *steps)))
    if shortest * pace.step_s >= min_starts * pace.start_s:
        return ""
    least = math.ceil(min_starts * pace.start_s / max(pace.step_s, 1e-9))  # a clock may not tell steps apart
    return (
        f"from step {before:,} to {before + shortest:,} a trial trains {count(shortest, 'step')} x "
        f"{1000 * pace.step_s:.3g} ms = {shortest * pace.step_s:.3g} s, and starting to takes {pace.start_s:.3g} s: "
        f"less than {min_starts} starts, {min_starts * pace.start_s:.3g} s. Rungs pay that are {least:,} steps apart"
    )
