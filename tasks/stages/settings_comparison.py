"""Two settings of training held against each other over seeds: the same rows and examples, and nothing registered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.data_contracts.store.documents import Link
from headway.tasks.core.context import RunContext
from headway.tasks.rows.ranking_split import remember_ranking
from headway.tasks.search.configuration import SHARDS, Configuration
from headway.tasks.search.trials_spec import Trial
from headway.tasks.search.values import Settings
from headway.tasks.stages.finalists import FinalistsVerdict, compare_finalists
from headway.tasks.stages.trial_scores import (
    PlannedTrial,
    Scoring,
    TrialResult,
    all_failed,
    columns_of,
    rank_trials,
)
from headway.tasks.stages.trial_shards import TrialShards
from headway.tasks.stages.trials import AT_ONCE, describe_trials, room_of, train_trials


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsComparison:
    """What two settings came to. The first is the one in question."""

    settings: tuple[Settings, Settings]
    """What they do not have in common, of each; empty where only code differs."""
    results: tuple[list[TrialResult], list[TrialResult]]
    """By seed, that of the pipeline file first."""
    verdict: FinalistsVerdict | None
    """None: both are one run, or of no seed both came to their ends."""

    @property
    def is_same(self) -> bool:
        """Whether nothing tells them apart: settings, code and so weights."""
        return self.results[0][0].run == self.results[1][0].run

    @property
    def is_worse(self) -> bool:
        """Whether the first is worse, and not by chance."""
        if self.verdict is None:
            return self._num_failed(0) > self._num_failed(1)
        return self.verdict.is_decided and self.verdict.keeps_second

    @property
    def is_better(self) -> bool:
        if self.verdict is None:
            return self._num_failed(0) < self._num_failed(1)
        return self.verdict.is_decided and not self.verdict.keeps_second

    def _num_failed(self, side: int) -> int:
        return sum(each.error is not None for each in self.results[side])


def compare_settings(
    context: RunContext,
    this: Configuration,
    other: Configuration,
    others_folder: Path,
    others_pipeline: str,
    num_seeds: int,
    scoring: Scoring,
    manifest: Link,
    tracking_uri: str,
    max_parallel: int | None = None,
) -> SettingsComparison:
    """Train both with each seed, those that are found apart, and compare them example by example.

    Args:
        this: in question; its seed is the first of both.
        other: what it is held against.
        others_folder: where the other's own recipe lies, if it has one.
        others_pipeline: its name, under which it may be retrained.
        manifest: the shards of the first.
        max_parallel: runs that train at the same time; None: as many as there is room for.

    Raises:
        ConfigError: the recipe, or the model to start from.
        RunStopped: a stop was asked for; the same command continues.
        TrainingFailed: all of them failed.
    """
    other = with_seed_of(other, this)
    settings = differing(this, other)
    shards, planned = TrialShards(context, scoring, manifest), list[list[PlannedTrial]]()
    for number, (configuration, folder) in enumerate([(this, context.base), (other, others_folder)], 1):
        settled = shards.settled(configuration, folder=folder)
        first = Trial(number=number, settings=settings[number - 1], training=settled.training, shards=settled.shards)
        trials = [first, *(first.with_other_seed(each) for each in range(1, num_seeds))]
        planned.append(describe_trials(replace(context, base=folder), trials, shards.manifest))
    if planned[0][0].run == planned[1][0].run:
        results = [[TrialResult(planned=each) for each in side] for side in planned]
        return SettingsComparison(settings=settings, results=(results[0], results[1]), verdict=None)
    # By seed, so that an early end leaves pairs.
    in_turn = [each for pair in zip(*planned, strict=True) for each in pair]
    room = (
        None if scoring.launch.is_detached else room_of(context, in_turn, scoring.launch, max_parallel or len(in_turn))
    )
    at_once = max_parallel or AT_ONCE
    trained = train_trials(context, in_turn, scoring.launch, tracking_uri, at_once, scoring.evaluation, room=room)
    if others_pipeline != context.pipeline:
        # Whoever keeps the other retrains it under its own name, where these examples are to judge no model either.
        of_other = replace(context, pipeline=others_pipeline)
        share, columns = scoring.evaluation.ranking_share, columns_of(context, manifest)
        remember_ranking(of_other, share, other.shards, columns)
    ranked = rank_trials(context, scoring, trained)
    if all(each.error is not None for each in ranked):
        raise all_failed(context, ranked)
    by_label = {each.trial.label: each for each in ranked}
    first_results, second_results = ([by_label[each.trial.label] for each in side] for side in planned)
    is_paired = any(one.error is None is two.error for one, two in zip(first_results, second_results, strict=True))
    verdict = compare_finalists(context, scoring, first_results, second_results) if is_paired else None
    return SettingsComparison(settings=settings, results=(first_results, second_results), verdict=verdict)


def with_seed_of(other: Configuration, this: Configuration) -> Configuration:
    training = other.training.model_copy(update={"seed": this.training.seed})
    return Configuration(training=training, shards=other.shards)


def differing(one: Configuration, other: Configuration) -> tuple[Settings, Settings]:
    """What two do not have in common of what decides a model, by dotted name; a list as JSON."""
    first, second = (dict(_flat({**each.training.identity, SHARDS: each.shards.identity})) for each in (one, other))
    # As JSON has them: 1 is neither 1.0 nor true.
    names = [name for name in {**first, **second} if json.dumps(first.get(name)) != json.dumps(second.get(name))]
    return {name: first.get(name) for name in names}, {name: second.get(name) for name in names}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", json.dumps(value) if isinstance(value, list) else value
