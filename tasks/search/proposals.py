"""What a round of trials tries: a pure function of the spec, its seed, and what the trials before it came to.

Optuna proposes from a study in memory that is made of our own scores each time: no study is kept anywhere, and whoever
repeats a search, in whatever process, gets the same proposals. No process imports Optuna that does not come to a round
which learns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.errors import ConfigError
from headway.tasks.search.trials_spec import (
    Choices,
    Range,
    Settings,
    Settle,
    Trial,
    TrialsSpec,
    Value,
    numbered,
    shown,
    with_settings,
)
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.splitmix import hash_text

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

WANTED_PER_TRIAL, ASKED_PER_TRIAL = 10, 100
"""Proposals, at most, for each trial that a round is to have: such as can be trained, for in a small space they repeat
what was tried, and all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastTrial:
    """What is known of a trial."""

    trial: Trial
    values: Mapping[int, float] = field(default_factory=dict)
    """By step, what it came to; lower is better. Empty: it failed before its first rung."""
    has_failed: bool = False


def next_round(
    spec: TrialsSpec,
    training: TrainingSpec,
    number: int,
    records: Sequence[PastTrial],
    max_steps: int,
    settle: Settle = lambda training: training,
) -> tuple[Trial, ...]:
    """The trials of a round; empty where the space has no others.

    Args:
        training: of the pipeline file, from which trials differ by their settings.
        number: of the round, from 0.
        records: of all rounds before, in the order of their trials' numbers.
        max_steps: of a whole run.
        settle: what is tried of training with a trial's settings; none is proposed that it refuses.

    Raises:
        ConfigError: a value that `training` or `settle` does not take, of settings that no score decides.
    """
    if not spec.is_learning or number == 0:
        drawn = spec.drawn(training, settle)
        per_round = spec.draws or len(drawn)  # all of a grid are one round
        return drawn[number * per_round : (number + 1) * per_round]
    assert spec.draws is not None  # as the spec has it
    asked = islice(_asked(spec, number, records, max_steps), ASKED_PER_TRIAL * spec.draws)
    wanted = islice(_trainable(training, asked, settle), WANTED_PER_TRIAL * spec.draws)
    return numbered(training, wanted, [record.trial for record in records], at_most=spec.draws, settle=settle)


def _asked(spec: TrialsSpec, number: int, records: Sequence[PastTrial], max_steps: int) -> Iterator[Settings]:
    """Without end."""
    study = _study(spec, number, records, max_steps)
    space = {name: _distribution(values) for name, values in spec.vary.items()}
    while True:
        # What was asked for stays open in the study, so that the next is another.
        asked = study.ask(space).params
        yield {name: _value(spec.vary[name], asked[name]) for name in spec.vary}


def _trainable(training: TrainingSpec, asked: Iterable[Settings], settle: Settle) -> Iterator[Settings]:
    """A sampler knows no conditions between settings."""
    for settings in asked:
        with contextlib.suppress(ConfigError):
            settle(with_settings(training, settings))
            yield settings


def _study(spec: TrialsSpec, number: int, records: Sequence[PastTrial], max_steps: int) -> Study:
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=_sampler(spec, number))
    space = {name: _distribution(values) for name, values in spec.vary.items()}
    level = _level_to_learn_from(records, len(space)) if spec.method == "gp" else max_steps
    for record in records:
        # Never as running: a paused trial would count as a bad one.
        is_complete = level in record.values and not record.has_failed
        study.add_trial(
            create_trial(
                params={name: _param(spec.vary[name], value) for name, value in record.trial.settings.items()},
                distributions=space,
                state=TrialState.COMPLETE if is_complete else TrialState.PRUNED,
                value=record.values[level] if is_complete else None,
                # None of a trial that failed: it ranks behind all others.
                intermediate_values={} if record.has_failed else dict(record.values),
            )
        )
    return study


def _level_to_learn_from(records: Sequence[PastTrial], num_settings: int) -> int:
    """The furthest rung that tells enough trials apart: a Gaussian process takes figures of one length alone."""
    counts: dict[int, int] = {}
    for record in records:
        for step in () if record.has_failed else record.values:
            counts[step] = counts.get(step, 0) + 1
    enough = [step for step, num in counts.items() if num > num_settings]
    return max(enough, default=min(counts, default=0))


def _sampler(spec: TrialsSpec, number: int) -> BaseSampler:
    from optuna.samplers import GPSampler, TPESampler

    seed = hash_text("search", str(spec.seed), str(number)) >> 33  # numpy's seeds have 32 bits
    if spec.method == "gp":
        return GPSampler(seed=seed, n_startup_trials=1)
    return TPESampler(seed=seed, n_startup_trials=1)  # our own draws were the first


def _distribution(values: Choices | Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(values, Range):
        # By their places: `1` and `1.0`, equal in Python, are two choices.
        return CategoricalDistribution(range(len(values)))
    if values.integer is not None:
        return IntDistribution(*values.integer)
    if values.uniform is not None:
        return FloatDistribution(*values.uniform)
    assert values.log_uniform is not None
    return FloatDistribution(*values.log_uniform, log=True)


def _value(values: Choices | Range, param: Any) -> Value:
    return values.rounded(param) if isinstance(values, Range) else values[param]


def _param(values: Choices | Range, value: Value) -> Any:
    return value if isinstance(values, Range) else [shown(each) for each in values].index(shown(value))
