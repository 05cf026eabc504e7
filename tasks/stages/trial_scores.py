"""Stage *rank*: trials are scored on examples that evaluate no model, at a rung or at their ends."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import Document, Interval, Link, RunSpec, Sha256, ShardManifest, Snapshot
from headway.data_contracts.store.errors import ConfigError, HeadwayError, IntegrityError, TrainingFailed
from headway.data_contracts.store.installation import version
from headway.tasks.core.candidate import read_candidate
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.run_result import final_checkpoint, furthest_step
from headway.tasks.core.stage import StageOutput, find_or_make, stage_task
from headway.tasks.ownership.current_run import is_permanent
from headway.tasks.reports.figures import EvaluationSpec, num_keys, with_keys
from headway.tasks.rows.ranking_split import remember_ranking
from headway.tasks.search.trials_spec import Trial
from headway.tasks.stages.evaluate import CODE as JUDGING
from headway.tasks.stages.scoring import ScoringHarness, only
from headway.tasks.stages.starting_point import ResolvedStart
from headway.training.config.shards import ShardSpec
from headway.training.evaluation.measures import KEY, has_few_keys
from headway.training.evaluation.statistics import ratio_interval
from headway.training.launch.base.gang import LaunchSpec

CODE = (*JUDGING, "headway.tasks.stages.trial_scores")


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
    num_keys: int = Field(default=0, exclude_if=operator.not_)
    """How many keys they are of, where intervals are drawn over keys; 0: over examples."""
    examples_sha256: Sha256
    """Names, bytes and weights of these examples: trials of equal digests are ranked by the same ones, and pairs of
    them may be compared example by example."""

    @property
    def has_few_keys(self) -> bool:
        """Whether its interval is not to be trusted."""
        return has_few_keys(self.num_keys)

    def lower(self, value: float) -> float:
        """A figure of this measure as one of which less is better."""
        return -value if self.greater_is_better else value


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
    model_step: int = 0
    """Of its checkpoint, which may be an earlier one: the best; or a later one, where the rung's own was gone."""
    is_finished: bool = False
    """Whether its run had no step left to make by then."""
    score: TrialScore | None = None

    @property
    def trial(self) -> Trial:
        return self.planned.trial

    @property
    def run(self) -> Link:
        return self.planned.run


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """What trials are scored by, and where."""

    evaluation: EvaluationSpec
    launch: LaunchSpec
    shards: ShardSpec
    source: SourceSpec

    def harness(self, context: RunContext) -> ScoringHarness:
        return ScoringHarness(context=context, launch=self.launch, shards=self.shards, source=self.source)


def failed(context: RunContext, result: TrialResult, error: HeadwayError) -> TrialResult:
    """One that ends no other."""
    message = f"{result.trial.label} failed for good: {error.what}"
    context.ledger.event("trial", message=message, trial=result.trial.name, cause=error.cause)
    return replace(result, error=error)


def all_failed(context: RunContext, results: Sequence[TrialResult]) -> HeadwayError:
    """What to raise where none came to its end."""
    first = results[0].error
    # What every trial met alike before or after its training is no trial's own, such as a workspace that was moved.
    alike = {(type(each.error), "" if each.error is None else each.error.what) for each in results}
    if first is not None and not isinstance(first, TrainingFailed) and len(alike) == 1:
        return first
    message = "\n".join(f"{each.trial.name} ({each.trial}): {each.error}" for each in results)
    return TrainingFailed(
        f"all {len(results)} trials failed.", where=context.pipeline, advice=f"None can be chosen:\n{message}"
    )


def columns_of(context: RunContext, manifest: Link) -> dict[str, str]:
    """Of the source that shards were made of, name to type."""
    snapshot = context.workspace.load(manifest, ShardManifest).snapshot
    return context.workspace.load(snapshot, Snapshot).columns


def inputs_at_rung(evaluation: EvaluationSpec, step: int, checkpoint: Link) -> dict[str, Any]:
    # No code: the checkpoint goes with the next rung, and what has decided a promotion stays what decided it.
    return {"rung": step, "checkpoint": checkpoint.sha256, "spec": ranking_spec(evaluation)}


def ranking_spec(evaluation: EvaluationSpec) -> dict[str, Any]:
    return {"ranking_share": evaluation.ranking_share, **evaluation.resampling}


@stage_task(name="rank", task_run_name="rank trials of {context.pipeline}")
def rank_trials(
    context: RunContext,
    scoring: Scoring,
    results: Sequence[TrialResult],
    at_step: int | None = None,
    like: TrialScore | None = None,
) -> list[TrialResult]:
    """The same with their scores: best first, and those that failed last.

    Args:
        at_step: the rung that they have come to; None: their ends.
        like: of a trial that was scored before, and that these are compared with.
    """
    # Before anything is scored: a flow that dies in between has seen these examples all the same.
    columns = columns_of(context, context.workspace.load(results[0].run, RunSpec).manifest)
    remember_ranking(context, scoring.evaluation.ranking_share, scoring.shards, columns)
    bench = scoring.harness(context)
    scored = []
    for each in sorted(results, key=lambda each: each.trial.number):
        result = _scored(bench, scoring.evaluation, each, at_step)
        like = like or result.score
        scored.append(_if_comparable(context, result, like))
    return sorted(scored, key=place)


def _if_comparable(context: RunContext, result: TrialResult, like: TrialScore | None) -> TrialResult:
    """One that failed where an encoder of one's own counts examples otherwise than the others' does."""
    score = result.score
    if score is None or like is None:
        return result
    if (score.metric, score.examples_sha256) == (like.metric, like.examples_sha256):
        return result
    error = ConfigError(
        f"its {score.metric} is measured on other examples than that of the trials before it, or by other units.",
        where=result.run.sha256[:16],
        advice="Vary what leaves each held-out example, and what it counts, as they are.",
    )
    return failed(context, replace(result, score=None), error)


def place(result: TrialResult) -> tuple[float, int]:
    """Lower is better; those that failed come last."""
    score = result.score
    return math.inf if score is None else score.lower(score.figure.value), result.trial.number


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
                "spec": ranking_spec(spec),
            }
            trained_step = furthest_step(context.workspace, result.run)
            result = replace(result, checkpoint=checkpoint, trained_step=trained_step, is_finished=True)
        else:
            assert result.checkpoint is not None  # it has come to this rung
            checkpoint = result.checkpoint
            inputs = inputs_at_rung(spec, at_step, checkpoint)
        name = result.trial.name if at_step is None else f"{result.trial.name}, step {at_step:,}"
        link = find_or_make(context, "score", inputs, lambda: _score(bench, spec, checkpoint), shown=name)
        score = context.workspace.load(link, TrialScore)
        require_own("score", inputs, (score.checkpoint,), (checkpoint,))
    except (TrainingFailed, IntegrityError) as error:
        if not is_permanent(error):
            raise
        return failed(context, result, error)
    return replace(result, score=score)


def require_own(stage: str, inputs: Mapping[str, Any], found: Iterable[Link], wanted: Iterable[Link]) -> None:
    """Raises `IntegrityError`: what is on record is of other checkpoints than these, whose key it lies under."""
    if tuple(found) != tuple(wanted):
        raise IntegrityError(
            "is of another checkpoint than the one it is kept for.",
            where=stages.record_path(stage, stages.stage_key(stage, inputs)),
            advice="Delete this file, and run the same command: it is made again.",
        )


def _score(bench: ScoringHarness, spec: EvaluationSpec, checkpoint: Link) -> StageOutput:
    """Nothing is kept, nor looked at, of the examples that evaluate."""
    candidate = read_candidate(bench.context.workspace, checkpoint)
    measure = bench.metric_set(candidate.run).decisive
    scores = bench.score(candidate, baselines=False)
    parts = bench.parted(spec.ranking_share, candidate.run, scores.examples)
    chosen = only(with_keys(scores, bench.keys_of(candidate.run, scores.examples)), parts.ranking)
    # NaN compares as false with everything, and would stand anywhere in the ranking.
    if not math.isfinite(value := measure.value(chosen.sums)):
        raise TrainingFailed(f"its {measure.name} is {value}.", where=candidate.run.link.sha256[:16])
    score = TrialScore(
        checkpoint=checkpoint,
        metric=measure.name,
        greater_is_better=measure.greater_is_better,
        figure=ratio_interval(
            measure.numerators(chosen.sums),
            measure.denominators(chosen.sums),
            **spec.resampling,
            groups=chosen.sums.get(KEY),
        ),
        num_examples=len(chosen.examples),
        num_keys=num_keys(chosen.sums),
        examples_sha256=bench.compared_examples_sha256(
            candidate.run, chosen.examples, measure.denominators(chosen.sums).tolist()
        ),
    )
    return StageOutput(document=score)
