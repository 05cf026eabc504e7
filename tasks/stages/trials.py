"""Stages *trials* and *rank*: each setting is a run of its own; they are ranked on examples that evaluate no model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import ClassVar, NamedTuple

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.documents import Document, Interval, Link, Sha256
from headway.data_contracts.store.errors import HeadwayError, IntegrityError, TrainingFailed
from headway.tasks.core.candidate import read_candidate
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import run_all_to_completion
from headway.tasks.core.run_result import final_checkpoint
from headway.tasks.core.slow_ranks import showing_slow_ranks
from headway.tasks.core.stage import StageOutput, find_intact, find_or_make, stage_task
from headway.tasks.core.trials_spec import Trial
from headway.tasks.ownership.current_run import is_permanent
from headway.tasks.ownership.lease_acquisition import observe_lease
from headway.tasks.rows.heldout_parts import remember_ranking
from headway.tasks.stages.evaluate import CODE as JUDGING
from headway.tasks.stages.evaluate import EvaluationSpec
from headway.tasks.stages.launch import (
    describe_run,
    launch_inputs,
    num_training_rows,
    record_trained,
    train,
    watched_training,
)
from headway.tasks.stages.scoring import ScoringHarness, only
from headway.tasks.stages.starting_point import ResolvedStart
from headway.training.config.shards import ShardSpec
from headway.training.evaluation.statistics import ratio_interval
from headway.training.launch.base.gang import LaunchSpec

CODE = (*JUDGING, "headway.tasks.stages.trials")


class TrialScore(Document):
    """What a trial's model comes to on the examples that rank."""

    kind: ClassVar[str] = "trial-score"
    checkpoint: Link
    """The trial's model."""
    metric: str
    """The measure that ranks."""
    greater_is_better: bool
    """Whether a greater figure of it is the better one."""
    figure: Interval
    """What it came to, with its interval."""
    num_examples: int
    """Examples behind the figure."""
    examples_sha256: Sha256
    """Names and bytes of these examples: trials of equal digests are ranked by the same ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """A trial, and what came of it."""

    trial: Trial
    run: Link
    error: HeadwayError | None = None
    """Why there is no figure."""
    score: TrialScore | None = None


class PlannedTrial(NamedTuple):
    trial: Trial
    settled: ResolvedStart
    run: Link


@stage_task(name="trials", task_run_name="train trials of {context.pipeline}")
def train_trials(
    context: RunContext, trials: Sequence[Trial], spec: LaunchSpec, manifest: Link, tracking_uri: str, at_once: int
) -> list[TrialResult]:
    """Every trial as a run, found or trained now; one that fails for good ends no other.

    Args:
        at_once: how many may train at a time where a scheduler has them; else they take turns.

    Raises:
        RunStopped: a stop was asked for; the same command continues.
    """
    described = _described(context, trials, manifest)
    if not spec.is_detached:
        return [_train_one(context, each, spec, tracking_uri, len(described)) for each in described]
    return _train_together(context, described, spec, tracking_uri, at_once)


def _train_one(context: RunContext, each: PlannedTrial, spec: LaunchSpec, tracking_uri: str, count: int) -> TrialResult:
    _report_trial(context, each, count)
    context.at.run = each.run.sha256[:16]
    results = TrialResult(trial=each.trial, run=each.run)
    try:
        train(context, each.trial.training, spec, each.settled, tracking_uri, each.trial.name)
    except HeadwayError as error:
        if not is_permanent(error):
            raise
        return _failed(context, results, error)
    return results


def _train_together(
    context: RunContext, described: Sequence[PlannedTrial], spec: LaunchSpec, tracking_uri: str, at_once: int
) -> list[TrialResult]:
    """As jobs of a scheduler's, each on record as soon as it ends."""
    results = {each.trial.number: TrialResult(trial=each.trial, run=each.run) for each in described}
    new = []
    for each in described:
        if find_intact(context, "launch", launch_inputs(each.settled.run)) is None:
            new.append(each)
        else:
            train(context, each.trial.training, spec, each.settled, tracking_uri, each.trial.name)
    # All claims are looked at before the first is waited for, so that leases run out side by side.
    seen = [observe_lease(context.workspace, each.settled.run.link) for each in new]
    with showing_slow_ranks(context), contextlib.ExitStack() as all_of_them:
        stacks, watched = [], []
        for each, lease in zip(new, seen, strict=True):
            _report_trial(context, each, len(described))
            # A stack for each: a trial that ends gives its lease and threads back while the others still train.
            stacks.append(all_of_them.enter_context(contextlib.ExitStack()))
            trial = each.trial
            training = watched_training(
                context, trial.training, spec, each.settled, tracking_uri, trial.name, seen=lease
            )
            watched.append(stacks[-1].enter_context(training))

        def ended(number: int, error: HeadwayError | None) -> None:
            each = new[number]
            stacks[number].__exit__(None if error is None else type(error), error, None)
            if error is not None:
                results[each.trial.number] = _failed(context, results[each.trial.number], error)
                return
            try:
                record_trained(context, each.settled.run, each.trial.name)
            except IntegrityError as damage:
                results[each.trial.number] = _failed(context, results[each.trial.number], damage)

        if new:
            run_all_to_completion(context, spec, watched, at_once=at_once, tolerable=is_permanent, ended=ended)
    return list(results.values())


def _report_trial(context: RunContext, each: PlannedTrial, count: int) -> None:
    message = f"{each.trial.number} of {count}   {each.trial}   run {each.run.sha256[:16]}"
    context.ledger.event("trial", message=message)


def _described(context: RunContext, trials: Sequence[Trial], manifest: Link) -> list[PlannedTrial]:
    """All at once, on the code and data of this moment: else an edit meanwhile would be compared as well."""
    described: list[PlannedTrial] = []
    num_rows = num_training_rows(context, manifest)
    with context.ledger.span("launch.freeze"):
        for trial in (replace(each, training=each.training.for_rows(num_rows)) for each in trials):
            beside = described[0].settled.run if described else None
            settled = describe_run(context, trial.training, manifest, beside)
            described.append(PlannedTrial(trial, settled, context.workspace.publish_document(settled.run)))
    return described


def _failed(context: RunContext, results: TrialResult, error: HeadwayError) -> TrialResult:
    message = f"{results.trial.number} failed for good: {error.what}"
    context.ledger.event("trial", message=message, trial=results.trial.name, cause=error.cause)
    return replace(results, error=error)


@stage_task(name="rank", task_run_name="rank trials of {context.pipeline}")
def rank_trials(
    context: RunContext,
    spec: EvaluationSpec,
    launch: LaunchSpec,
    shards: ShardSpec,
    source: SourceSpec,
    results: Sequence[TrialResult],
) -> list[TrialResult]:
    """Best first, and those that failed last.

    Args:
        launch, shards, source: where they are scored, and on which data.

    Raises:
        TrainingFailed: all failed.
    """
    # Before anything is scored: a flow that dies in between has seen these examples all the same.
    remember_ranking(context, spec.ranking_share, shards)
    bench = ScoringHarness(context=context, launch=launch, shards=shards, source=source)
    scored = [_scored(bench, spec, each) for each in results]
    if all(each.score is None for each in scored):
        message = "\n".join(f"{each.trial.name} ({each.trial}): {each.error}" for each in scored)
        raise TrainingFailed(
            f"all {len(scored)} trials failed.", where=context.pipeline, advice=f"None can be chosen:\n{message}"
        )
    return sorted(scored, key=_place)


def _place(results: TrialResult) -> tuple[float, int]:
    if results.score is None:
        return math.inf, results.trial.number
    value = results.score.figure.value
    return -value if results.score.greater_is_better else value, results.trial.number


def _scored(bench: ScoringHarness, spec: EvaluationSpec, results: TrialResult) -> TrialResult:
    if results.error is not None:
        return results
    context = bench.context
    context.at.run = results.run.sha256[:16]
    try:
        # What it is read by checks its digests; the best is proved like any other that is evaluated.
        checkpoint = context.workspace.publish_document(final_checkpoint(context, results.run)[1])
        inputs = {
            "checkpoint": checkpoint.sha256,
            "spec": {"ranking_share": spec.ranking_share, **spec.resampling},
            "code": code_version(*CODE),
            "libraries": {name: version(name) for name in ("numpy", "torch")},
        }
        name = results.trial.name
        link = find_or_make(context, "score", inputs, lambda: _score(bench, spec, checkpoint), shown=name)
    except (TrainingFailed, IntegrityError) as error:
        if not is_permanent(error):
            raise
        return _failed(context, results, error)
    return replace(results, score=context.workspace.load(link, TrialScore))


def _score(bench: ScoringHarness, spec: EvaluationSpec, checkpoint: Link) -> StageOutput:
    """Nothing is kept, nor looked at, of the examples that evaluate."""
    candidate = read_candidate(bench.context.workspace, checkpoint)
    measure = bench.metric_set(candidate.run).decisive
    scores = bench.score(candidate, baselines=False)
    chosen = only(scores, bench.parted(spec.ranking_share, candidate.run, scores.examples).ranking)
    # NaN compares as false with everything, and would stand anywhere in the ranking.
    if not math.isfinite(value := measure.value(chosen.sums)):
        raise TrainingFailed(f"its {measure.name} is {value}.", where=candidate.run.link.sha256[:16])
    score = TrialScore(
        checkpoint=checkpoint,
        metric=measure.name,
        greater_is_better=measure.greater_is_better,
        figure=ratio_interval(measure.numerators(chosen.sums), measure.denominators(chosen.sums), **spec.resampling),
        num_examples=len(chosen.examples),
        examples_sha256=bench.examples_sha256(candidate.run, chosen.examples),
    )
    return StageOutput(document=score)
