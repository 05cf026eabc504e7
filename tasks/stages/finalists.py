"""Stage *finalists*: whether the best two trials can be told apart, over examples that rank and seeds of training."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from headway.data_contracts.store.documents import Document, Frozen, Interval, Link
from headway.data_contracts.store.installation import version
from headway.tasks.core.candidate import read_candidate
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import StageOutput, find_or_make, stage_task
from headway.tasks.reports.figures import num_keys, with_keys
from headway.tasks.stages.scoring import only
from headway.tasks.stages.trial_scores import CODE as SCORING
from headway.tasks.stages.trial_scores import Scoring, TrialResult, ranking_spec, require_own
from headway.training.evaluation.measures import KEY, has_few_keys
from headway.training.evaluation.statistics import paired_difference_over_seeds

CODE = (*SCORING, "headway.tasks.stages.finalists")


class Finalist(Frozen):
    checkpoints: tuple[Link, ...]
    """By seed, that of the pipeline file first."""
    failed_seeds: tuple[int, ...] = ()
    """With which training failed for good."""
    size_bytes: int
    """What its tensors take in a checkpoint, moments of the optimizer included."""


class FinalistsVerdict(Document):
    """Which of the best two trials stays, and whether they can be told apart on the examples that rank."""

    kind: ClassVar[str] = "finalists"
    first: Finalist
    """The one with the better figure under the pipeline file's seed."""
    second: Finalist
    """The one behind it."""
    seeds: tuple[int, ...]
    """Of training, which both came through; that of the pipeline file first."""
    metric: str
    """The measure that ranks."""
    greater_is_better: bool
    """Whether a greater figure of it is the better one."""
    by_seed: tuple[float, ...]
    """First minus second, by seed."""
    difference: Interval
    """Their mean, paired: over examples and seeds, drawn for both at once."""
    num_keys: int = Field(default=0, exclude_if=operator.not_)
    """How many keys the examples are of, where intervals are drawn over keys; 0: over examples."""
    is_decided: bool
    """Whether the interval leaves out 0 and is of keys enough, or one failed with more seeds than the other."""

    @property
    def has_few_keys(self) -> bool:
        return has_few_keys(self.num_keys)

    @property
    def keeps_second(self) -> bool:
        """Whether the second stays: it is better over all seeds, or nobody can tell that it is worse and it is cheaper.

        What fails with another seed is worse than what does not, whatever its figure.
        """
        failed = len(self.first.failed_seeds), len(self.second.failed_seeds)
        if failed[0] != failed[1]:
            return failed[0] > failed[1]
        if self.is_decided:
            return (self.difference.value < 0) is self.greater_is_better
        return self.second.size_bytes < self.first.size_bytes


@stage_task(name="finalists", task_run_name="compare the best trials of {context.pipeline}")
def compare_finalists(
    context: RunContext, scoring: Scoring, first: Sequence[TrialResult], second: Sequence[TrialResult]
) -> FinalistsVerdict:
    """Score both once more, example by example.

    Args:
        first, second: trained to their ends and scored, with the same seeds in the same order; that of the pipeline
            file, with which neither failed, is the first.
    """
    pairs = [pair for pair in zip(first, second, strict=True) if not any(each.error for each in pair)]
    seeds = [one.trial.training.seed for one, _ in pairs]
    checkpoints = [[each.checkpoint for each in pair if each.checkpoint is not None] for pair in pairs]
    failed = [[each.trial.training.seed for each in finalist if each.error is not None] for finalist in (first, second)]
    inputs = {
        "checkpoints": [[each.sha256 for each in pair] for pair in checkpoints],
        "failed": failed,
        "spec": ranking_spec(scoring.evaluation),
        "code": code_version(*CODE),
        "libraries": {name: version(name) for name in ("numpy", "torch")},
    }
    made = find_or_make(context, "finalists", inputs, lambda: _compare(context, scoring, seeds, checkpoints, failed))
    verdict = context.workspace.load(made, FinalistsVerdict)
    compared = (*verdict.first.checkpoints, *verdict.second.checkpoints)
    require_own("finalists", inputs, compared, [pair[place] for place in (0, 1) for pair in checkpoints])
    return verdict


def _compare(
    context: RunContext,
    scoring: Scoring,
    seeds: Sequence[int],
    checkpoints: Sequence[Sequence[Link]],
    failed: Sequence[Sequence[int]],
) -> StageOutput:
    spec, bench = scoring.evaluation, scoring.harness(context)
    resampling = spec.resampling
    numerators: list[list[np.ndarray]] = [[], []]
    by_seed, sizes_bytes = [], [0, 0]
    for pair in checkpoints:
        for place, link in enumerate(pair):
            candidate = read_candidate(context.workspace, link)
            context.at.run = candidate.run.link.sha256[:16]
            measure = bench.metric_set(candidate.run).decisive  # all predict the same
            scores = bench.score(candidate, baselines=False)
            parts = bench.parted(spec.ranking_share, candidate.run, scores.examples)
            chosen = only(with_keys(scores, bench.keys_of(candidate.run, scores.examples)), parts.ranking)
            numerators[place].append(np.asarray(measure.numerators(chosen.sums), dtype=np.float64))
            # Of equal examples, as their ranking has found: each has one weight, whatever it was encoded by.
            denominators = np.asarray(measure.denominators(chosen.sums), dtype=np.float64)
            sizes_bytes[place] = sizes_bytes[place] or sum(file.size_bytes for file in candidate.manifest.files)
        by_seed.append(float((numerators[0][-1] - numerators[1][-1]).sum() / denominators.sum()))
    # Of equal examples in one order, and so of equal keys.
    difference = paired_difference_over_seeds(
        numerators[0], numerators[1], denominators, **resampling, groups=chosen.sums.get(KEY)
    )
    keys = num_keys(chosen.sums)
    finalists = [
        Finalist(
            checkpoints=tuple(pair[place] for pair in checkpoints),
            failed_seeds=tuple(failed[place]),
            size_bytes=sizes_bytes[place],
        )
        for place in (0, 1)
    ]
    return StageOutput(
        document=FinalistsVerdict(
            first=finalists[0],
            second=finalists[1],
            seeds=tuple(seeds),
            metric=measure.name,
            greater_is_better=measure.greater_is_better,
            by_seed=tuple(by_seed),
            difference=difference,
            num_keys=keys,
            is_decided=not (difference.low <= 0 <= difference.high or has_few_keys(keys))
            or len(failed[0]) != len(failed[1]),
        )
    )
