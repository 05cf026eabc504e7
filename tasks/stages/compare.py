"""Two registered versions on the same held-out examples: those of the second, as a retrain scores its champion."""

from __future__ import annotations

import numpy as np

from headway.data_contracts.store.documents import Incomparable, Link, Registration, RunSpec
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.core.candidate import read_candidate
from headway.tasks.reports.comparison import (
    Agreement,
    ComparedVersion,
    Comparison,
    Disagreement,
    MeasureOfBoth,
    SliceOfBoth,
)
from headway.tasks.reports.figures import (
    EvaluationSpec,
    difference_of,
    interval_of,
    num_keys,
    slices_of,
    subset_of,
    widened,
    with_keys,
)
from headway.tasks.rows.slices import OTHERS
from headway.tasks.stages.scoring import ScoringHarness, only
from headway.training.evaluation.measures import Measure
from headway.training.programs.evaluation import DetailsRequest, Scores

MAX_DISAGREEMENTS = 50
DETAILS = DetailsRequest(importance=False)


def compare(bench: ScoringHarness, spec: EvaluationSpec, first: ComparedVersion, second: ComparedVersion) -> Comparison:
    """Score both, and pair them example by example.

    Raises:
        ConfigError: they cannot be compared, and why.
        IntegrityError: neither checkpoint nor registered graph of one is whole.
    """
    workspace = bench.context.workspace
    run = read_candidate(workspace, second.checkpoint).run
    metric_set = bench.metric_set(run)
    measure = metric_set.decisive
    # By their registrations, so that a checkpoint that was cleaned away is scored by its registered graph.
    ours, theirs = _scores(bench, second, run), _scores(bench, first, run)
    if ours.examples != theirs.examples:
        raise ConfigError("the two were scored on different examples.", where=first.name)
    labels = bench.slices_by(spec.slices, run, ours.examples)
    chosen = bench.parted(spec.ranking_share, run, ours.examples).evaluation
    keys = bench.keys_of(run, ours.examples)
    ours, theirs = (only(with_keys(scores, keys), chosen) for scores in (ours, theirs))
    weights = measure.denominators(ours.sums).tolist()
    slices = slices_of(ours.slices, weights)
    for by, of_all in labels.items():
        slices |= slices_of([of_all[number] for number in chosen], weights, others=f"{by.prefix}{OTHERS}")
    wide = widened(spec, len(slices))
    measures = [each for each in metric_set.measures if each.is_defined(ours.sums)]
    return Comparison(
        first=first,
        second=second,
        metric=measure.name,
        greater_is_better=measure.greater_is_better,
        confidence=spec.confidence,
        examples_of=run.manifest,
        num_examples=len(ours.examples),
        num_keys=num_keys(ours.sums),
        measures=tuple(
            MeasureOfBoth(
                name=each.name, first=interval_of(spec, each, theirs.sums), second=interval_of(spec, each, ours.sums)
            )
            for each in measures
        ),
        difference=difference_of(spec, measure, ours.sums, theirs.sums),
        slices=tuple(
            SliceOfBoth(
                name=name,
                num_examples=len(numbers),
                first=interval_of(spec, measure, subset_of(theirs.sums, numbers)),
                second=interval_of(spec, measure, subset_of(ours.sums, numbers)),
                difference=difference_of(wide, measure, subset_of(ours.sums, numbers), subset_of(theirs.sums, numbers)),
            )
            for name, numbers in slices.items()
        ),
        agreement=_agreement(ours, theirs),
        disagreements=_disagreements(measure, ours, theirs),
    )


def compared_version(bench: ScoringHarness, model: str, version: str, registration: Link) -> ComparedVersion:
    document = bench.context.workspace.load(registration, Registration)
    return ComparedVersion(
        model=model,
        version=version,
        registration=registration,
        run=document.run,
        checkpoint=document.checkpoint,
        evaluation=document.evaluation,
    )


def _scores(bench: ScoringHarness, version: ComparedVersion, run: RunSpec) -> Scores:
    scores = bench.score_champion(version.registration, run, details=DETAILS)
    if isinstance(scores, Incomparable):
        raise ConfigError(
            f"it cannot be scored on the held-out rows of the other: {scores.reason}.",
            where=version.name,
            advice="Compare versions that predict the same from the same kind of data.",
        )
    return scores


def _agreement(ours: Scores, theirs: Scores) -> Agreement | None:
    """None where no single guess is right or wrong."""
    if "correct" not in ours.sums:
        return None
    first, second = theirs.sums["correct"] > 0, ours.sums["correct"] > 0
    outputs = ours.details.outputs, theirs.details.outputs
    differ = None if outputs[0] is None or outputs[1] is None else outputs[0].predicted != outputs[1].predicted
    return Agreement(
        both_right=int((first & second).sum()),
        only_first=int((first & ~second).sum()),
        only_second=int((second & ~first).sum()),
        both_wrong=int((~first & ~second).sum()),
        num_taken_for_others=None if differ is None else int(differ.sum()),
    )


def _disagreements(measure: Measure, ours: Scores, theirs: Scores) -> tuple[Disagreement, ...]:
    weights = measure.denominators(ours.sums)
    first, second = (
        np.divide(measure.numerators(each.sums), weights, out=np.zeros(len(weights)), where=weights > 0)
        for each in (theirs, ours)
    )
    order = np.argsort(-np.abs(second - first), kind="stable")[:MAX_DISAGREEMENTS]
    return tuple(
        Disagreement(name=ours.examples[number], first=float(first[number]), second=float(second[number]))
        for number in order.tolist()
        if first[number] != second[number]
    )
