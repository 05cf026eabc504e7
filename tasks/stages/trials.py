"""Stages *trials* and *rank*: trials are trained to a step, or to their ends, and scored on examples that evaluate no
model. `search` beside this says which, and how far.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, ClassVar, NamedTuple

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import Document, Interval, Link, RunSpec, Sha256
from headway.data_contracts.store.errors import HeadwayError, IntegrityError, RunStopped, TrainingFailed
from headway.tasks.core.candidate import read_candidate, require_files
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import run_all_to_completion, run_to_completion
from headway.tasks.core.run_result import checkpoint_at, final_checkpoint, furthest_step, is_model
from headway.tasks.core.slow_ranks import showing_slow_ranks
from headway.tasks.core.stage import StageOutput, find_intact, find_or_make, stage_task
from headway.tasks.ownership.current_run import is_permanent
from headway.tasks.ownership.lease_acquisition import observe_lease
from headway.tasks.rows.heldout_parts import remember_ranking
from headway.tasks.search.trials_spec import Trial
from headway.tasks.stages.evaluate import CODE as JUDGING
from headway.tasks.stages.evaluate import EvaluationSpec
from headway.tasks.stages.launch import (
    describe_run,
    launch_inputs,
    num_steps_since,
    record_trained,
    train,
    watched_training,
)
from headway.tasks.stages.scoring import ScoringHarness, only
from headway.tasks.stages.starting_point import ResolvedStart
from headway.training.checkpoint import recycled_files
from headway.training.checkpoint.layout import committed_steps, run_folder
from headway.training.checkpoint.retention import discard_expired
from headway.training.config.shards import ShardSpec
from headway.training.evaluation.statistics import paired_difference, ratio_interval
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.jobs.follow import Watched

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


class Rung(Document):
    """How far a trial was when it was first compared at a rung."""

    kind: ClassVar[str] = "rung"
    checkpoint: Link
    """Its model there; its files go once the run goes on."""
    trained_step: int
    """The furthest step that its run had made."""
    is_finished: bool
    """Whether no step was left to make: it was at its end, or had converged."""


class Pause(NamedTuple):
    """Where trials wait for each other."""

    step: int
    evaluation: EvaluationSpec
    """What they are scored by there."""


class PlannedTrial(NamedTuple):
    trial: Trial
    settled: ResolvedStart
    run: Link


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """A trial, and what came of it so far."""

    planned: PlannedTrial
    error: HeadwayError | None = None
    """Why there is no figure."""
    checkpoint: Link | None = None
    """Of the rung that it has come to, or of its end once it is scored."""
    trained_step: int = 0
    """The furthest step of its run by then."""
    is_finished: bool = False
    """Whether its run had no step left to make by then."""
    score: TrialScore | None = None

    @property
    def trial(self) -> Trial:
        return self.planned.trial

    @property
    def run(self) -> Link:
        return self.planned.run


@stage_task(name="describe", task_run_name="describe trials of {context.pipeline}")
def describe_trials(
    context: RunContext, trials: Sequence[Trial], manifest: Link, beside: RunSpec | None = None
) -> list[PlannedTrial]:
    """All at once, on the code and data of this moment: else an edit meanwhile would be compared as well.

    Args:
        beside: a trial of an earlier round, whose code and environment these are to have.
    """
    described: list[PlannedTrial] = []
    with context.ledger.span("launch.freeze"):
        for trial in trials:
            settled = describe_run(context, trial.training, manifest, beside)
            beside = beside or settled.run
            described.append(PlannedTrial(trial, settled, context.workspace.publish_document(settled.run)))
    return described


@stage_task(name="trials", task_run_name="train trials of {context.pipeline}")
def train_trials(
    context: RunContext,
    planned: Sequence[PlannedTrial],
    spec: LaunchSpec,
    tracking_uri: str,
    at_once: int,
    evaluation: EvaluationSpec,
    to_step: int | None = None,
) -> list[TrialResult]:
    """Every trial as a run, found or trained now; one that fails for good ends no other.

    Args:
        at_once: how many may train at a time where a scheduler has them; else they take turns.
        evaluation: what they are scored by where they pause.
        to_step: where that is; None: at their ends.

    Raises:
        RunStopped: a stop was asked for; the same command continues.
    """
    # No part of a run's key: what pauses goes on to the same bits.
    context = replace(context, stop=replace(context.stop, at_step=to_step))
    pause = None if to_step is None else Pause(to_step, evaluation)
    if not spec.is_detached:
        return [_train_one(context, each, spec, tracking_uri, pause) for each in planned]
    return _train_together(context, planned, spec, tracking_uri, at_once, pause)


def _train_one(
    context: RunContext, each: PlannedTrial, spec: LaunchSpec, tracking_uri: str, pause: Pause | None
) -> TrialResult:
    _report_trial(context, each, pause)
    context.at.run = each.run.sha256[:16]
    result = TrialResult(planned=each)
    try:
        return _trained(context, result, spec, tracking_uri, pause)
    except HeadwayError as error:
        if not is_permanent(error):
            raise
        return _failed(context, result, error)


def _trained(
    context: RunContext, result: TrialResult, spec: LaunchSpec, tracking_uri: str, pause: Pause | None
) -> TrialResult:
    each, name = result.planned, result.trial.name
    if pause is None:
        train(context, each.trial.training, spec, each.settled, tracking_uri, name)
        return result
    # `train` says so itself, of a run that is found as well.
    context.ledger.event("run.named", run=each.run.sha256)
    _find_usable_rung(context, each, pause)
    link = find_or_make(
        context,
        "rung",
        _rung_inputs(each, pause.step),
        lambda: _rung(context, each, spec, tracking_uri, pause.step),
        shown=f"{name}, step {pause.step:,}",
        exclusive=True,
    )
    rung = context.workspace.load(link, Rung)
    return replace(result, checkpoint=rung.checkpoint, trained_step=rung.trained_step, is_finished=rung.is_finished)


def _rung_inputs(each: PlannedTrial, step: int) -> dict[str, Any]:
    return {"run": each.run.sha256, "step": step}


def _find_usable_rung(context: RunContext, each: PlannedTrial, pause: Pause) -> Rung | None:
    """What is on record of a trial at a rung.

    A record whose checkpoint has no score by `pause.evaluation`, and can get none since its files are gone or damaged,
    is removed, so that the run's checkpoint of today takes its place.
    """
    if (record := find_intact(context, "rung", _rung_inputs(each, pause.step))) is None:
        return None
    rung = context.workspace.load(record.document, Rung)
    if find_intact(context, "score", _inputs_at_rung(pause.evaluation, pause.step, rung.checkpoint)) is not None:
        return rung
    try:
        require_files(context, read_candidate(context.workspace, rung.checkpoint))
    except (IntegrityError, FileNotFoundError) as error:
        context.ledger.event("stage.damaged", stage="rung", message=str(error))
        context.workspace.remove(stages.record_path("rung", record.key))
        return None
    return rung


def _inputs_at_rung(evaluation: EvaluationSpec, step: int, checkpoint: Link) -> dict[str, Any]:
    # No code: the checkpoint goes with the next rung, and what has decided a promotion stays what decided it.
    return {"rung": step, "checkpoint": checkpoint.sha256, "spec": _ranking_spec(evaluation)}


def _ranking_spec(evaluation: EvaluationSpec) -> dict[str, Any]:
    return {"ranking_share": evaluation.ranking_share, **evaluation.resampling}


def _rung(context: RunContext, each: PlannedTrial, spec: LaunchSpec, tracking_uri: str, step: int) -> StageOutput:
    """How far a run is at a rung: its document alone, since the checkpoint's files go once the run goes on."""
    run_dir, since_unix_s = context.workspace.local_path(run_folder(each.run)), time.time()
    if (reached := checkpoint_at(context, each.run, step)) is None:
        trial = each.trial
        watched = watched_training(context, trial.training, spec, each.settled, tracking_uri, trial.name)
        try:
            # Left by the stop, so that it is shown as one.
            with showing_slow_ranks(context), watched as (gang, poll), _pausing(context, each, step, poll):
                run_to_completion(context, spec, gang, poll)
        except RunStopped as stopped:
            if not _is_at_rung(context, each, step, stopped):
                raise
        reached = checkpoint_at(context, each.run, step)
    if reached is None:
        raise IntegrityError(f"no checkpoint of step {step:,} is left.", where=str(run_dir), advice="Run again.")
    context.workspace.publish_document(reached)
    is_finished = is_model(context, each.run, reached)
    trained_step = furthest_step(context.workspace, each.run) if is_finished else reached.step
    rung = Rung(checkpoint=reached.link, trained_step=trained_step, is_finished=is_finished)
    return StageOutput(document=rung, num_steps=num_steps_since(run_dir, since_unix_s))


@contextlib.contextmanager
def _pausing(context: RunContext, each: PlannedTrial, step: int, poll: Callable[[], object]) -> Iterator[None]:
    """Lets a stop at the rung pass, once all is seen and one checkpoint is left to be published."""
    try:
        yield
    except RunStopped as stopped:
        if _is_at_rung(context, each, step, stopped):
            poll()  # for what the ranks wrote between the last look and their end
            _keep_one_checkpoint(context, each, step)
        raise


def _is_at_rung(context: RunContext, each: PlannedTrial, step: int, error: RunStopped) -> bool:
    """Whether a run ended because it came to its rung: whatever else stopped it is meant for the whole search."""
    if error.reason != "step reached":
        return False
    reached = committed_steps(context.workspace.local_path(f"{run_folder(each.run)}/checkpoints"))
    return bool(reached) and reached[-1] >= step


def _keep_one_checkpoint(context: RunContext, each: PlannedTrial, step: int) -> None:
    """Of a trial that pauses: many do, and few of them go on."""
    training = each.trial.training
    checkpoints = context.workspace.local_path(f"{run_folder(each.run)}/checkpoints")
    one = {"keep_last": 1, "keep_every_steps": None, "keep_best": 0}
    has_best = training.validation is not None and training.validation.keep_best
    discard_expired(
        checkpoints, training.checkpoints.model_copy(update=one), known_good=(step,), has_best=bool(has_best)
    )
    recycled_files.drop(checkpoints)


def _train_together(
    context: RunContext,
    planned: Sequence[PlannedTrial],
    spec: LaunchSpec,
    tracking_uri: str,
    at_once: int,
    pause: Pause | None,
) -> list[TrialResult]:
    """As jobs of a scheduler's, each on record as soon as it ends."""
    results = {each.trial.number: TrialResult(planned=each) for each in planned}
    new = []
    for each in planned:
        if _is_trained(context, each, pause):
            context.at.run = each.run.sha256[:16]
            results[each.trial.number] = _trained(context, results[each.trial.number], spec, tracking_uri, pause)
        else:
            new.append(each)
    # All claims are looked at before the first is waited for, so that leases run out side by side.
    seen = [observe_lease(context.workspace, each.settled.run.link) for each in new]
    with showing_slow_ranks(context), contextlib.ExitStack() as all_of_them:
        begun, stacks, watched = list[PlannedTrial](), list[contextlib.ExitStack](), list[Watched]()
        for each, lease in zip(new, seen, strict=True):
            _report_trial(context, each, pause)
            # A stack for each: a trial that ends gives its lease and threads back while the others still train.
            stack, trial = all_of_them.enter_context(contextlib.ExitStack()), each.trial
            training = watched_training(
                context, trial.training, spec, each.settled, tracking_uri, trial.name, seen=lease
            )
            try:
                watched.append(stack.enter_context(training))
            except HeadwayError as error:
                if not is_permanent(error):
                    raise
                results[trial.number] = _failed(context, results[trial.number], error)
                continue
            begun.append(each)
            stacks.append(stack)

        def ends_alone(error: HeadwayError) -> bool:
            return is_permanent(error) or (isinstance(error, RunStopped) and error.reason == "step reached")

        def ended(number: int, error: HeadwayError | None) -> None:
            each = begun[number]
            result = results[each.trial.number]
            if isinstance(error, RunStopped):
                if pause is None or not _is_at_rung(context, each, pause.step, error):
                    raise error
                with contextlib.suppress(RunStopped), _pausing(context, each, pause.step, watched[number][1]):
                    raise error
            stacks[number].__exit__(None if error is None else type(error), error, None)
            if error is not None and not isinstance(error, RunStopped):
                results[each.trial.number] = _failed(context, result, error)
                return
            try:
                if pause is None:
                    record_trained(context, each.settled.run, each.trial.name)
                else:
                    context.at.run = each.run.sha256[:16]
                    results[each.trial.number] = _trained(context, result, spec, tracking_uri, pause)
            except IntegrityError as damage:
                results[each.trial.number] = _failed(context, result, damage)

        if begun:
            run_all_to_completion(context, spec, watched, at_once=at_once, tolerable=ends_alone, ended=ended)
    return list(results.values())


def _is_trained(context: RunContext, each: PlannedTrial, pause: Pause | None) -> bool:
    if pause is None:
        return find_intact(context, "launch", launch_inputs(each.settled.run)) is not None
    if _find_usable_rung(context, each, pause) is not None:
        return True
    return checkpoint_at(context, each.run, pause.step) is not None


def _report_trial(context: RunContext, each: PlannedTrial, pause: Pause | None) -> None:
    where = "" if pause is None else f"   to step {pause.step:,}"
    message = f"{each.trial.number}{where}   {each.trial}   run {each.run.sha256[:16]}"
    context.ledger.event("trial", message=message)


def _failed(context: RunContext, result: TrialResult, error: HeadwayError) -> TrialResult:
    message = f"{result.trial.number} failed for good: {error.what}"
    context.ledger.event("trial", message=message, trial=result.trial.name, cause=error.cause)
    return replace(result, error=error)


@stage_task(name="rank", task_run_name="rank trials of {context.pipeline}")
def rank_trials(
    context: RunContext,
    spec: EvaluationSpec,
    launch: LaunchSpec,
    shards: ShardSpec,
    source: SourceSpec,
    results: Sequence[TrialResult],
    at_step: int | None = None,
) -> list[TrialResult]:
    """The same with their scores: best first, and those that failed last.

    Args:
        launch, shards, source: where they are scored, and on which data.
        at_step: the rung that they have come to; None: their ends.
    """
    # Before anything is scored: a flow that dies in between has seen these examples all the same.
    remember_ranking(context, spec.ranking_share, shards)
    bench = ScoringHarness(context=context, launch=launch, shards=shards, source=source)
    return sorted((_scored(bench, spec, each, at_step) for each in results), key=place)


def place(result: TrialResult) -> tuple[float, int]:
    """Lower is better; those that failed come last."""
    return math.inf if result.score is None else lower_is_better(result.score), result.trial.number


def lower_is_better(score: TrialScore) -> float:
    return -score.figure.value if score.greater_is_better else score.figure.value


def _scored(bench: ScoringHarness, spec: EvaluationSpec, result: TrialResult, at_step: int | None) -> TrialResult:
    if result.error is not None:
        return result
    context = bench.context
    context.at.run = result.run.sha256[:16]
    try:
        if at_step is None:
            # What it is read by checks its digests; the best is proved like any other that is evaluated.
            checkpoint = context.workspace.publish_document(final_checkpoint(context, result.run)[1])
            inputs = {
                "code": code_version(*CODE),
                "libraries": {name: version(name) for name in ("numpy", "torch")},
                "checkpoint": checkpoint.sha256,
                "spec": _ranking_spec(spec),
            }
            trained_step = furthest_step(context.workspace, result.run)
            result = replace(result, checkpoint=checkpoint, trained_step=trained_step, is_finished=True)
        else:
            assert result.checkpoint is not None  # it has come to this rung
            checkpoint = result.checkpoint
            inputs = _inputs_at_rung(spec, at_step, checkpoint)
        name = result.trial.name if at_step is None else f"{result.trial.name}, step {at_step:,}"
        link = find_or_make(context, "score", inputs, lambda: _score(bench, spec, checkpoint), shown=name)
    except (TrainingFailed, IntegrityError) as error:
        if not is_permanent(error):
            raise
        return _failed(context, result, error)
    score = context.workspace.load(link, TrialScore)
    return replace(result, score=score)


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


class FinalistsVerdict(Document):
    """Whether the best two trials can be told apart, on the same examples that rank."""

    kind: ClassVar[str] = "finalists"
    first: Link
    """The checkpoint with the better figure."""
    second: Link
    """The one behind it."""
    metric: str
    """The measure that ranks."""
    difference: Interval
    """First minus second, paired: over the examples, drawn for both at once."""
    is_decided: bool
    """Whether the interval leaves out 0."""
    first_bytes: int
    """What the first's tensors take in its checkpoint, moments of the optimizer included."""
    second_bytes: int
    """The same of the second."""

    @property
    def keeps_second(self) -> bool:
        """Whether the second stays: nobody can tell that it is worse, and it is cheaper."""
        return not self.is_decided and self.second_bytes < self.first_bytes


@stage_task(name="finalists", task_run_name="compare the best trials of {context.pipeline}")
def compare_finalists(
    context: RunContext,
    spec: EvaluationSpec,
    launch: LaunchSpec,
    shards: ShardSpec,
    source: SourceSpec,
    first: TrialResult,
    second: TrialResult,
) -> FinalistsVerdict:
    """Score both once more, example by example; both are trained to their ends."""
    bench = ScoringHarness(context=context, launch=launch, shards=shards, source=source)
    assert first.checkpoint is not None and second.checkpoint is not None  # they have scores
    one, other = first.checkpoint, second.checkpoint
    inputs = {
        "checkpoints": [one.sha256, other.sha256],
        "spec": _ranking_spec(spec),
        "code": code_version(*CODE),
        "libraries": {name: version(name) for name in ("numpy", "torch")},
    }
    link = find_or_make(context, "finalists", inputs, lambda: _compare(bench, spec, one, other))
    return context.workspace.load(link, FinalistsVerdict)


def _compare(bench: ScoringHarness, spec: EvaluationSpec, first: Link, second: Link) -> StageOutput:
    candidates = [read_candidate(bench.context.workspace, each) for each in (first, second)]
    run = candidates[0].run  # both are of the same shards
    measure = bench.metric_set(run).decisive
    numerators, denominators = [], []
    for candidate in candidates:
        bench.context.at.run = candidate.run.link.sha256[:16]
        scores = bench.score(candidate, baselines=False)
        chosen = only(scores, bench.parted(spec.ranking_share, candidate.run, scores.examples).ranking)
        numerators.append(measure.numerators(chosen.sums))
        denominators.append(measure.denominators(chosen.sums))
    difference = paired_difference(numerators[0], numerators[1], denominators[0], **spec.resampling)
    first_bytes, second_bytes = (sum(file.size_bytes for file in each.manifest.files) for each in candidates)
    return StageOutput(
        document=FinalistsVerdict(
            first=first,
            second=second,
            metric=measure.name,
            difference=difference,
            is_decided=not difference.low <= 0 <= difference.high,
            first_bytes=first_bytes,
            second_bytes=second_bytes,
        )
    )
