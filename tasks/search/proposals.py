"""What a round of trials tries: a pure function of the spec, its seed, and what the trials before it came to.

Optuna proposes from a study in memory that is made of our own scores each time: no study is kept anywhere, and whoever
repeats a search, in whatever process, gets the same proposals. No process imports Optuna that does not come to a round
which learns.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.errors import ConfigError
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.earlier_trials import Outcome
from headway.tasks.search.expected_ends import ExpectedEnd, expected_ends
from headway.tasks.search.space import Varied
from headway.tasks.search.trials_spec import Settle, Trial, TrialsSpec, as_it_is, numbered
from headway.tasks.search.values import Settings, Value, written
from headway.training.data.splitmix import hash_text

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial as OptunaTrial

ASKED_PER_TRIAL: Mapping[str, int] = {"tpe": 100, "gp": 2}
"""Proposals, at most, for each trial that a round is to have: in a small space they repeat what was tried, and one of a
Gaussian process takes a second. Draws take the place of what is missing then."""
OPTIMISM = 1.0
"""Deviations by which a trial may be better than it is expected to be. Without, a part of a space where early figures
are bad is never seen to its end; with more, trials go on of which nothing is known but that."""
MAX_IN_STUDY: Mapping[str, int] = {"tpe": 1000, "gp": 300}
"""Trials that a sampler learns from, the best ones: a Gaussian process takes the cube of their number."""
MAX_LISTED = 10_000
"""Whole numbers of a range; of one with more, a Gaussian process is asked for any number, which is rounded."""
MOST_EARLIER = 300
"""Of another search, the best ones."""
WANTED_PER_TRIAL = 10
"""Of those, such as can be trained; and draws."""
REFUSED_PER_TRIAL = 20
"""So many in turn that cannot be trained, and no more are asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastTrial:
    """What is known of a trial."""

    trial: Trial
    values: Mapping[int, float] = field(default_factory=dict)
    """By step, what it came to; lower is better. Empty: it failed before its first rung."""
    has_failed: bool = False

    @property
    def outcome(self) -> Outcome:
        return Outcome(settings=self.trial.settings, values=self.values, has_failed=self.has_failed)


def next_round(
    spec: TrialsSpec,
    configuration: Configuration,
    number: int,
    records: Sequence[PastTrial],
    max_steps: int,
    settle: Settle = as_it_is,
    earlier: Sequence[Outcome] = (),
) -> tuple[Trial, ...]:
    """The trials of a round; empty where the space has no others.

    Args:
        configuration: of the pipeline file, from which trials differ by their settings.
        number: of the round, from 0.
        records: of all rounds before, in the order of their trials' numbers.
        max_steps: of a whole run.
        settle: what is tried of a trial's settings; none is proposed that it refuses.
        earlier: of another search, the best first: the first round begins with it and learns from all of them.

    Raises:
        ConfigError: a value that the file or `settle` does not take, of settings that no score decides.
    """
    if not spec.is_learning or (number == 0 and not earlier):
        drawn = spec.drawn(configuration, settle)
        per_round = spec.draws or len(drawn)  # all of a grid are one round
        return drawn[number * per_round : (number + 1) * per_round]
    assert spec.draws is not None  # as the spec has it
    outcomes = [record.outcome for record in records] if number else earlier[:MOST_EARLIER]
    asked = islice(_asked(spec, number, outcomes, max_steps), ASKED_PER_TRIAL[spec.method] * spec.draws)
    first = [] if number else [earlier[0].settings]
    proposed = islice(_trainable(spec, configuration, chain(first, asked), settle), WANTED_PER_TRIAL * spec.draws)
    wanted = chain(proposed, _trainable(spec, configuration, _redrawn(spec, configuration, number), settle))
    return numbered(configuration, wanted, [record.trial for record in records], at_most=spec.draws, settle=settle)


def prospects(
    spec: TrialsSpec, records: Sequence[PastTrial], at_rung: Mapping[int, float], max_steps: int
) -> dict[int, float]:
    """By a trial's number, what decides who goes on from a rung; lower is better.

    A search that learns goes by what trials are expected to come to at their ends, any other by what they came to. Of
    two that are expected to come to the same the one goes on of which less is known: it may come to more.

    Args:
        records: of all trials so far, those of this round with what they came to at this rung.
        at_rung: what the trials came to that are compared.
        max_steps: of a whole run.
    """
    if not spec.is_learning:
        return dict(at_rung)
    ends = expected_ends(spec.space, [each.outcome for each in records], max_steps)
    by_number = {
        each.trial.number: end.mean - OPTIMISM * end.deviation
        for each, end in zip(records, ends, strict=True)
        if end is not None
    }
    return {number: by_number.get(number, math.inf) for number in at_rung}


def _asked(spec: TrialsSpec, number: int, outcomes: Sequence[Outcome], max_steps: int) -> Iterator[Settings]:
    """Without end: of the settings that vary, those that do beside the others."""
    study, space = _study(spec, number, outcomes, max_steps), spec.space
    while True:
        # What was asked for stays open in the study, so that the next is another.
        asked, chosen = study.ask(), Settings()
        for name, varied in space.varied.items():
            if space.is_active(name, chosen):
                chosen[name] = _suggested(spec, asked, name, varied)
        yield chosen


def _redrawn(spec: TrialsSpec, configuration: Configuration, number: int) -> Iterator[Settings]:
    """Draws of a round, none of which another round draws."""
    assert spec.draws is not None  # as the spec has it
    space, num = spec.space, WANTED_PER_TRIAL * spec.draws
    with contextlib.suppress(ConfigError):  # next to nothing is allowed
        for each in range(num):
            yield space.draw(spec.seed, spec.draws + number * num + each, configuration)


def _trainable(
    spec: TrialsSpec, configuration: Configuration, asked: Iterable[Settings], settle: Settle
) -> Iterator[Settings]:
    """Whole settings. A sampler knows nothing of what follows from some, is required of them, or can be trained."""
    assert spec.draws is not None  # as the spec has it
    space, num_refused = spec.space, 0
    for chosen in asked:
        if num_refused == REFUSED_PER_TRIAL * spec.draws:
            return
        num_refused += 1
        with contextlib.suppress(ConfigError):
            settings = space.completed(chosen, configuration)
            if space.is_allowed(settings, configuration):
                settle(configuration.with_settings(settings))
                num_refused = 0
                yield settings


def _study(spec: TrialsSpec, number: int, outcomes: Sequence[Outcome], max_steps: int) -> Study:
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=_sampler(spec, number))
    varied = spec.space.varied
    space = {name: _proposed_from(spec, its) for name, its in varied.items()}
    ends = expected_ends(spec.space, outcomes, max_steps)
    for place in _best_first(ends)[: MAX_IN_STUDY[spec.method]]:
        end, settings = ends[place], outcomes[place].settings
        # Without those that follow from others, or did not vary beside them.
        chosen = {name: value for name, value in settings.items() if name in space}
        study.add_trial(
            create_trial(
                params={name: _param(varied[name], value) for name, value in chosen.items()},
                distributions={name: space[name] for name in chosen},
                # One that failed ranks behind all others. None as running: it would count as a bad one.
                state=TrialState.PRUNED if end is None else TrialState.COMPLETE,
                value=None if end is None else end.mean,
            )
        )
    return study


def _best_first(ends: Sequence[ExpectedEnd | None]) -> list[int]:
    """Their places; those that failed last."""
    return sorted(range(len(ends)), key=lambda place: (math.inf if (end := ends[place]) is None else end.mean, place))


def _sampler(spec: TrialsSpec, number: int) -> BaseSampler:
    from optuna.exceptions import ExperimentalWarning
    from optuna.samplers import GPSampler, TPESampler

    seed = hash_text("search", str(spec.seed), str(number)) >> 33  # numpy's seeds have 32 bits
    if spec.method == "gp":
        return GPSampler(seed=seed, n_startup_trials=1)
    with warnings.catch_warnings():
        # Optuna may spell it otherwise in a later version, and ours is pinned.
        warnings.simplefilter("ignore", ExperimentalWarning)
        # Our own draws were the first. Settings that vary beside some others alone are groups of their own.
        return TPESampler(seed=seed, n_startup_trials=1, multivariate=True, group=spec.space.is_conditional)


def distribution_of(varied: Varied) -> BaseDistribution:
    """Of Optuna, of what a setting may be."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if varied.values is not None:
        # By their places: `1` and `1.0`, equal in Python, are two choices.
        return CategoricalDistribution(range(len(varied.values)))
    if varied.integer is not None:
        return IntDistribution(*varied.integer)
    if varied.uniform is not None:
        return FloatDistribution(*varied.uniform)
    assert varied.log_uniform is not None
    return FloatDistribution(*varied.log_uniform, log=True)


def _is_listed(spec: TrialsSpec, varied: Varied) -> bool:
    """Whether a sampler may be given a range of whole numbers as such: a Gaussian process makes a list of them all."""
    return varied.integer is None or spec.method != "gp" or varied.integer[1] - varied.integer[0] <= MAX_LISTED


def _proposed_from(spec: TrialsSpec, varied: Varied) -> BaseDistribution:
    from optuna.distributions import FloatDistribution

    if varied.integer is None or _is_listed(spec, varied):
        return distribution_of(varied)
    return FloatDistribution(*varied.integer)


def _suggested(spec: TrialsSpec, asked: OptunaTrial, name: str, varied: Varied) -> Value:
    if varied.values is not None:
        return varied.values[asked.suggest_categorical(name, range(len(varied.values)))]
    if varied.integer is not None:
        if _is_listed(spec, varied):
            return asked.suggest_int(name, *varied.integer)
        return min(round(asked.suggest_float(name, *varied.integer)), varied.integer[1])
    low, high = varied.uniform or varied.log_uniform or (0.0, 0.0)
    return varied.rounded(asked.suggest_float(name, low, high, log=varied.log_uniform is not None))


def _param(varied: Varied, value: Value) -> Any:
    return value if varied.values is None else list(map(written, varied.values)).index(written(value))
