"""Stages *trials* and *rank*: each setting is a run of its own; they are ranked on examples that judge no model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import ClassVar, NamedTuple

from data_contracts.documents import Document, Interval, Link, Sha256
from data_contracts.errors import HeadwayError, IntegrityError, TrainingFailed
from tasks.candidate import read_candidate
from tasks.claim_taking import see_claim
from tasks.code_version import code_version
from tasks.context import RunContext
from tasks.current_run import is_hopeless
from tasks.evaluate import CODE as JUDGING
from tasks.evaluate import EvaluationSpec, Judged
from tasks.gangs import run_all_to_their_ends
from tasks.heldout_parts import remember_ranking
from tasks.launch import (
    describe_run,
    final_checkpoint,
    launch_inputs,
    record_trained,
    train,
    watched_training,
)
from tasks.scoring import Bench, only
from tasks.slow_ranks import showing_slow_ranks
from tasks.stage import Made, find_intact, find_or_make, stage_task
from tasks.starting_point import Settled
from tasks.trials_spec import Trial
from training.launch.spec import LaunchSpec
from training.statistics import ratio_interval

CODE = (*JUDGING, "tasks.trials")


class TrialScore(Document):
    """What a trial's model comes to on the examples that rank."""

    kind: ClassVar[str] = "trial-score"
    checkpoint: Link
    metric: str
    greater_is_better: bool
    figure: Interval
    num_examples: int
    examples_sha256: Sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A trial, and what came of it."""

    trial: Trial
    run: Link
    error: HeadwayError | None = None
    """Why there is no figure."""
    score: TrialScore | None = None


class Described(NamedTuple):
    trial: Trial
    settled: Settled
    run: Link


@stage_task(name="trials", task_run_name="train trials of {context.pipeline}")
def train_trials(
    context: RunContext, trials: Sequence[Trial], spec: LaunchSpec, manifest: Link, tracking_uri: str, at_once: int
) -> list[Tried]:
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


def _train_one(context: RunContext, each: Described, spec: LaunchSpec, tracking_uri: str, count: int) -> Tried:
    _tell(context, each, count)
    context.at.run = each.run.sha256[:16]
    tried = Tried(trial=each.trial, run=each.run)
    try:
        train(context, each.trial.training, spec, each.settled, tracking_uri, each.trial.name)
    except HeadwayError as error:
        if not is_hopeless(error):
            raise
        return _failed(context, tried, error)
    return tried


def _train_together(
    context: RunContext, described: Sequence[Described], spec: LaunchSpec, tracking_uri: str, at_once: int
) -> list[Tried]:
    """As jobs of a scheduler's, each on record as soon as it ends."""
    tried = {each.trial.number: Tried(trial=each.trial, run=each.run) for each in described}
    new = []
    for each in described:
        if find_intact(context, "launch", launch_inputs(each.settled.run)) is None:
            new.append(each)
        else:
            train(context, each.trial.training, spec, each.settled, tracking_uri, each.trial.name)
    seen = [see_claim(context.workspace, each.settled.run.link) for each in new]
    with showing_slow_ranks(context), contextlib.ExitStack() as all_of_them:
        stacks, watched = [], []
        for each, claim in zip(new, seen, strict=True):
            _tell(context, each, len(described))
            stacks.append(all_of_them.enter_context(contextlib.ExitStack()))
            trial = each.trial
            training = watched_training(
                context, trial.training, spec, each.settled, tracking_uri, trial.name, seen=claim
            )
            watched.append(stacks[-1].enter_context(training))

        def ended(number: int, error: HeadwayError | None) -> None:
            each = new[number]
            stacks[number].__exit__(None if error is None else type(error), error, None)
            if error is not None:
                tried[each.trial.number] = _failed(context, tried[each.trial.number], error)
                return
            try:
                record_trained(context, each.settled.run, each.trial.name)
            except IntegrityError as damage:
                tried[each.trial.number] = _failed(context, tried[each.trial.number], damage)

        if new:
            run_all_to_their_ends(context, spec, watched, at_once=at_once, bearable=is_hopeless, ended=ended)
    return list(tried.values())


def _tell(context: RunContext, each: Described, count: int) -> None:
    message = f"{each.trial.number} of {count}   {each.trial}   run {each.run.sha256[:16]}"
    context.ledger.event("trial", message=message)


def _described(context: RunContext, trials: Sequence[Trial], manifest: Link) -> list[Described]:
    """All at once, on the code and data of this moment: else an edit meanwhile would be compared as well."""
    described: list[Described] = []
    with context.ledger.span("launch.freeze"):
        for trial in trials:
            beside = described[0].settled.run if described else None
            settled = describe_run(context, trial.training, manifest, beside)
            described.append(Described(trial, settled, context.workspace.publish_document(settled.run)))
    return described


def _failed(context: RunContext, tried: Tried, error: HeadwayError) -> Tried:
    message = f"{tried.trial.number} failed for good: {error.what}"
    context.ledger.event("trial", message=message, trial=tried.trial.name, cause=error.cause)
    return replace(tried, error=error)


@stage_task(name="rank", task_run_name="rank trials of {context.pipeline}")
def rank_trials(context: RunContext, pipeline: Judged, tried: Sequence[Tried]) -> list[Tried]:
    """Best first, and those that failed last.

    Raises:
        TrainingFailed: all failed.
    """
    remember_ranking(context, pipeline.evaluation.ranking_share, pipeline.shards)
    bench = Bench(context=context, launch=pipeline.launch, shards=pipeline.shards, source=pipeline.source)
    scored = [_scored(bench, pipeline, each) for each in tried]
    if all(each.score is None for each in scored):
        told = "\n".join(f"{each.trial.name} ({each.trial}): {each.error}" for each in scored)
        raise TrainingFailed(
            f"all {len(scored)} trials failed.", where=context.pipeline, advice=f"None can be chosen:\n{told}"
        )
    return sorted(scored, key=_place)


def _place(tried: Tried) -> tuple[float, int]:
    if tried.score is None:
        return math.inf, tried.trial.number
    value = tried.score.figure.value
    return -value if tried.score.greater_is_better else value, tried.trial.number


def _scored(bench: Bench, pipeline: Judged, tried: Tried) -> Tried:
    if tried.error is not None:
        return tried
    context = bench.context
    context.at.run = tried.run.sha256[:16]
    try:
        # What it is read by checks its digests; the best is proved like any other that is judged.
        checkpoint = context.workspace.publish_document(final_checkpoint(context, tried.run)[1])
        inputs = {
            "checkpoint": checkpoint.sha256,
            "spec": _what_ranks(pipeline.evaluation),
            "code": code_version(*CODE),
            "libraries": {name: version(name) for name in ("numpy", "torch")},
        }
        name = tried.trial.name
        link = find_or_make(
            context, "score", inputs, lambda: _score(bench, pipeline.evaluation, checkpoint), shown=name
        )
    except (TrainingFailed, IntegrityError) as error:
        if not is_hopeless(error):
            raise
        return _failed(context, tried, error)
    return replace(tried, score=context.workspace.load(link, TrialScore))


def _what_ranks(spec: EvaluationSpec) -> dict[str, object]:
    return {"ranking_share": spec.ranking_share, **spec.resampling}


def _score(bench: Bench, spec: EvaluationSpec, checkpoint: Link) -> Made:
    """Nothing is kept, nor looked at, of the examples that judge."""
    candidate = read_candidate(bench.context.workspace, checkpoint)
    measure = bench.yardstick(candidate.run).decisive
    scores = bench.score(candidate, baselines=False)
    chosen = only(scores, bench.parted(spec.ranking_share, candidate.run, scores.examples).ranking)
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
    return Made(document=score)
