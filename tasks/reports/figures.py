"""What evaluation is asked for, and its figures: intervals, paired differences, and slices of the examples."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headway.data_contracts.store.documents import ChampionComparison, Frozen, Interval, Link
from headway.data_contracts.store.errors import IntegrityError
from headway.tasks.rows.slices import OTHERS, SliceBy
from headway.training.config.fold import MAX_FOLDS, MIN_FOLDS
from headway.training.evaluation.measures import KEY, Measure, Sums
from headway.training.evaluation.statistics import paired_difference, ratio_interval
from headway.training.programs.evaluation import Scores

MIN_SLICE = 5
"""Slices of fewer examples are taken together."""
TAIL_RESAMPLES = 5
"""Beyond each end of a slice's interval, at least: an end that no resample passes is the largest one drawn."""


class Resampling(TypedDict):
    resamples: int
    confidence: float
    seed: int


class EvaluationSpec(Frozen):
    bootstrap_resamples: int = Field(2000, ge=100, description="Resamples of documents behind every interval.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Width of the intervals.")
    seed: int = Field(0, description="Seed of the resampling.")
    ranking_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        exclude_if=operator.not_,
        description="Share of the held-out examples on which `trials` are ranked, and which no report and no gate "
        "uses: what was chosen on examples looks too good on them, so those that ranked once never evaluate again, "
        "also where the share is lower later. 0: none, and no trials.",
    )
    xz_baseline: bool = Field(True, description="Also compress the held-out documents with `xz -9`, for scale.")
    continuations: int = Field(
        3, ge=0, le=10, description="Held-out rows of a text whose beginnings the page quotes and the model continues."
    )
    trees_baseline: bool = Field(
        True, description="Of a table, also fit boosted trees on some of its training rows, for scale: scikit-learn's."
    )
    folds: int | None = Field(
        default=None,
        ge=MIN_FOLDS,
        le=MAX_FOLDS,
        exclude_if=lambda folds: folds is None,
        description="Parts of cross-validation, for small tables: a model is trained for each on the rows of the "
        "others, and all rows together judge. The model that is registered is none of these. Empty: it is scored on "
        "the rows that `shards.heldout_fraction` holds out.",
    )
    slices: tuple[SliceBy, ...] = Field(
        default=(),
        exclude_if=operator.not_,
        description="Columns of the source by which the held-out examples are cut as well, such as `[region]`; their "
        "values are shown in reports and on cards.",
    )

    @property
    def resampling(self) -> Resampling:
        return Resampling(resamples=self.bootstrap_resamples, confidence=self.confidence, seed=self.seed)


def interval_of(spec: EvaluationSpec, measure: Measure, sums: Sums) -> Interval:
    numerators, denominators = measure.numerators(sums), measure.denominators(sums)
    ratio = ratio_interval(numerators, denominators, **spec.resampling, groups=sums.get(KEY))
    # A measure may fall as its ratio grows, which turns the interval round.
    low, high = sorted((measure.of_ratio(ratio.low), measure.of_ratio(ratio.high)))
    return Interval(value=measure.of_ratio(ratio.value), low=low, high=high)


def difference_of(spec: EvaluationSpec, measure: Measure, own: Sums, other: Sums) -> Interval:
    return paired_difference(
        measure.numerators(own),
        measure.numerators(other),
        measure.denominators(own),
        **spec.resampling,
        groups=own.get(KEY),
    )


def compare_with_champion(
    spec: EvaluationSpec,
    measure: Measure,
    own: Scores,
    theirs: Scores,
    champion: Link,
    slices: Mapping[str, Sequence[int]],
) -> ChampionComparison:
    """Paired, example by example, over all of them and in each slice.

    Raises:
        IntegrityError: the two were scored on different examples.
    """
    weights = [measure.denominators(scores.sums).tolist() for scores in (own, theirs)]
    # A paired difference needs the same examples in the same order, each with the same weight.
    if own.examples != theirs.examples or weights[0] != weights[1]:
        raise IntegrityError("champion and challenger were scored on different examples.", where=champion.short)
    difference = difference_of(spec, measure, own.sums, theirs.sums)
    wide = widened(spec, len(slices))
    return ChampionComparison(
        champion=champion,
        metric=measure.name,
        champion_value=measure.value(theirs.sums),
        difference=difference,
        slices={
            name: difference_of(wide, measure, subset_of(own.sums, chosen), subset_of(theirs.sums, chosen))
            for name, chosen in slices.items()
        },
    )


def with_keys(scores: Scores, keys: NDArray[np.uint64] | None) -> Scores:
    """Whose intervals are drawn key by key.

    Args:
        keys: of each example, equal numbers for one key; None, or all different: each is drawn alone.
    """
    if keys is None or len(np.unique(keys)) == len(keys):
        return scores
    baselines: dict[str, Sums] = {name: {**sums, KEY: keys} for name, sums in scores.baselines.items()}
    return dataclasses.replace(scores, sums={**scores.sums, KEY: keys}, baselines=baselines)


def num_keys(sums: Sums) -> int:
    """How many keys the examples are of; 0 where each is drawn alone."""
    return len(np.unique(sums[KEY])) if KEY in sums else 0


def keys_by_slice(sums: Sums, slices: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """How many keys each slice is of; empty where each example is drawn alone."""
    return {name: num_keys(subset_of(sums, chosen)) for name, chosen in slices.items()} if KEY in sums else {}


def subset_of(sums: Sums, chosen: Sequence[int]) -> Sums:
    return {name: values[chosen] for name, values in sums.items()}


def widened(spec: EvaluationSpec, num_slices: int) -> EvaluationSpec:
    """For so many intervals that all hold together: of many slices one looks worse by chance alone, unless each is
    doubted the more (Bonferroni). The ends of a wider interval lie further out, and take more resamples to be seen."""
    doubt = (1 - spec.confidence) / max(num_slices, 1)
    resamples = max(spec.bootstrap_resamples, math.ceil(TAIL_RESAMPLES / (doubt / 2)))
    return spec.model_copy(update={"confidence": 1 - doubt, "bootstrap_resamples": resamples})


def slices_of(slices: Sequence[str], weights: Sequence[float], *, others: str = OTHERS) -> dict[str, list[int]]:
    """Examples by slice, weightless ones aside; slices of fewer than `MIN_SLICE` examples together, as `others`."""
    members: dict[str, list[int]] = {}
    for index, (name, weight) in enumerate(zip(slices, weights, strict=True)):
        if weight:
            members.setdefault(name, []).append(index)
    large = {name: chosen for name, chosen in members.items() if len(chosen) >= MIN_SLICE and name != others}
    rest = sorted(index for name, chosen in members.items() if name not in large for index in chosen)
    return dict(sorted(large.items())) | ({others: rest} if rest else {})


def slices_of_all(measure: Measure, scores: Scores, labels: Mapping[SliceBy, Sequence[str]]) -> dict[str, list[int]]:
    """Numbers of examples by slice, their own and by what else they are cut.

    Args:
        labels: the slice of every example, by columns of the source.
    """
    weights = measure.denominators(scores.sums).tolist()
    slices = slices_of(scores.slices, weights)
    for by, of_examples in labels.items():
        slices |= slices_of(of_examples, weights, others=f"{by.prefix}{OTHERS}")
    return slices
