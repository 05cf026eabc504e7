"""Of classes: who is taken for whom, what a probability is worth, and the areas under ROC and precision-recall curves.

Areas are of one class against the rest (Fawcett, 2006), their intervals bootstrapped over examples, seeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import CalibrationBin, ClassFigures, ClassTally, Confusion, Interval
from headway.training.evaluation.outputs import Outputs

MAX_CLASSES = 1000
MAX_CONFUSIONS = 1000
MAX_CURVES = 10
"""Classes with curves, the commonest; each costs a bootstrap."""
MAX_CURVE_EXAMPLES = 20_000
MAX_DRAWS = 1 << 22
"""Of one bootstrap, resamples times examples; with more examples fewer resamples tell as much."""
MIN_RESAMPLES = 200
NUM_BINS = 10

Floats = NDArray[np.float64]
Groups = NDArray[np.integer[Any]]


def class_figures(
    outputs: Outputs,
    names: Sequence[str],
    *,
    resamples: int,
    confidence: float,
    seed: int,
    groups: Groups | None = None,
) -> ClassFigures:
    """
    Args:
        names: of the classes, by number; a class beyond them is named by its number.
        groups: which examples are drawn together, (rows,); None: each alone.
    """
    label, predicted = outputs.label, outputs.predicted
    pairs, counts = np.unique(np.stack((label, predicted), axis=1), axis=0, return_counts=True)
    num_actual: dict[int, int] = {}
    num_predicted: dict[int, int] = {}
    num_correct: dict[int, int] = {}
    for (actual, taken_for), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        num_actual[actual] = num_actual.get(actual, 0) + count
        num_predicted[taken_for] = num_predicted.get(taken_for, 0) + count
        if actual == taken_for:
            num_correct[actual] = count
    order = sorted({*num_actual, *num_predicted}, key=lambda each: (-num_actual.get(each, 0), each))
    shown = {each: place for place, each in enumerate(sorted(order[:MAX_CLASSES]))}
    confused = sorted(
        (-count, shown[actual], shown[taken_for])
        for (actual, taken_for), count in zip(pairs.tolist(), counts.tolist(), strict=True)
        if actual != taken_for and actual in shown and taken_for in shown
    )
    chosen = curve_examples(outputs)
    together = None if groups is None else groups[chosen.rows]
    areas = {
        each: areas_of(*chosen.of(each), resamples=resamples, confidence=confidence, seed=seed, groups=together)
        for each in curve_classes(outputs)
    }
    known = [roc.value for roc, _ in areas.values()]
    of, probability, came_true = _calibrated(outputs)
    return ClassFigures(
        classes=tuple(
            ClassTally(
                name=names[each] if each < len(names) else f"class {each}",
                num_actual=num_actual.get(each, 0),
                num_predicted=num_predicted.get(each, 0),
                num_correct=num_correct.get(each, 0),
                roc_auc=areas[each][0] if each in areas else None,
                average_precision=areas[each][1] if each in areas else None,
            )
            for each in shown
        ),
        num_classes_omitted=len(order) - len(shown),
        confusions=tuple(
            Confusion(actual=actual, predicted=taken_for, num_examples=-count)
            for count, actual, taken_for in confused[:MAX_CONFUSIONS]
        ),
        num_confusions_omitted=max(0, len(confused) - MAX_CONFUSIONS),
        mean_roc_auc=sum(known) / len(known) if known else None,
        calibration=_bins(probability, came_true),
        calibration_of="" if of is None else names[of] if of < len(names) else f"class {of}",
        expected_calibration_error=_calibration_error(
            probability,
            came_true,
            resamples=resamples,
            confidence=confidence,
            seed=seed,
            groups=groups if of is None else together,
        ),
        num_curve_examples=len(chosen.label),
    )


class CurveExamples(NamedTuple):
    """Examples whose probabilities are kept, evenly spread where there are many."""

    label: NDArray[np.int64]
    probability: Floats
    """(examples, classes)."""
    rows: NDArray[np.int64]
    """Which of all they are."""

    def of(self, number: int) -> tuple[NDArray[np.bool_], Floats]:
        """Whether an example is of the class, and the probability of that."""
        return self.label == number, self.probability[:, number]


def curve_examples(outputs: Outputs) -> CurveExamples:
    assert outputs.probability is not None and outputs.probability_rows is not None
    num_kept = len(outputs.probability_rows)
    some = np.linspace(0, num_kept - 1, min(num_kept, MAX_CURVE_EXAMPLES)).astype(np.int64)
    rows = outputs.probability_rows[some]
    return CurveExamples(outputs.label[rows], outputs.probability[some].astype(np.float64), rows)


def curve_classes(outputs: Outputs) -> list[int]:
    """Of two classes the rarer one; else the commonest, as far as examples are of them and others are not."""
    chosen = curve_examples(outputs)
    present, counts = np.unique(chosen.label, return_counts=True)
    if len(present) < 2:
        return []
    ordered = [int(each) for _, each in sorted(zip((-counts).tolist(), present.tolist(), strict=True))]
    return ordered[-1:] if chosen.probability.shape[1] == 2 else ordered[:MAX_CURVES]


class Curve(NamedTuple):
    """Points from the strictest threshold to the laxest, both ends included."""

    false_positive_rate: Floats
    recall: Floats
    precision: Floats


def curve_of(is_of: NDArray[np.bool_], probability: Floats) -> Curve:
    """Equal probabilities are one point."""
    groups, positive = _by_threshold(is_of, probability)
    found, wrong = np.cumsum(positive), np.cumsum(groups - positive)
    return Curve(
        np.concatenate([[0.0], wrong / max(wrong[-1], 1)]),
        np.concatenate([[0.0], found / max(found[-1], 1)]),
        np.concatenate([[1.0], found / (found + wrong)]),
    )


def _by_threshold(is_of: NDArray[np.bool_], probability: Floats) -> tuple[Floats, Floats]:
    """Examples, and those of the class, at each probability that occurs, the highest first."""
    _, group = np.unique(-probability, return_inverse=True)
    positive = np.bincount(group, weights=is_of.astype(np.float64))
    return np.asarray(np.bincount(group), dtype=np.float64), np.asarray(positive, dtype=np.float64)


def areas_of(
    is_of: NDArray[np.bool_],
    probability: Floats,
    *,
    resamples: int,
    confidence: float,
    seed: int,
    groups: Groups | None = None,
) -> tuple[Interval, Interval]:
    """Area under the ROC curve, and average precision."""
    _, group = np.unique(-probability, return_inverse=True)
    num_groups, num_examples = int(group.max()) + 1, len(is_of)
    positive, generator = is_of.astype(np.float64), np.random.default_rng(seed)

    def areas(weights: Floats) -> tuple[float, float]:
        found = np.bincount(group, weights=weights * positive, minlength=num_groups)
        wrong = np.bincount(group, weights=weights * (1 - positive), minlength=num_groups)
        all_found, all_wrong = np.cumsum(found), np.cumsum(wrong)
        if not all_found[-1] or not all_wrong[-1]:
            return float("nan"), float("nan")
        # An equal probability counts half; of the class, but with fewer wrong ones above it, whole.
        roc = float((found * (all_wrong[-1] - all_wrong + wrong / 2)).sum() / (all_found[-1] * all_wrong[-1]))
        precision = all_found / np.maximum(all_found + all_wrong, 1e-12)
        return roc, float((found * precision).sum() / all_found[-1])

    values = areas(np.ones(num_examples, dtype=np.float64))
    num_drawn = min(resamples, max(MIN_RESAMPLES, MAX_DRAWS // num_examples))
    numbers = _numbered(groups)
    drawn = np.array([areas(_drawn(generator, num_examples, numbers)) for _ in range(num_drawn)])
    # A resample without the class, or of it alone, has no area.
    drawn = drawn[np.isfinite(drawn).all(axis=1)]
    ends = np.array([values, values]) if not len(drawn) else np.quantile(drawn, _ends(confidence), axis=0)
    roc, precision = (
        Interval(value=value, low=min(low, value), high=max(high, value))
        for value, low, high in zip(values, ends[0].tolist(), ends[1].tolist(), strict=True)
    )
    return roc, precision


def _numbered(groups: Groups | None) -> NDArray[np.int64] | None:
    """The same groups, counted from 0."""
    return None if groups is None else np.unique(groups, return_inverse=True)[1]


def _drawn(generator: np.random.Generator, num_examples: int, groups: NDArray[np.int64] | None) -> Floats:
    """How often each example was drawn, with replacement: alone, or with all of its group."""
    num_units = num_examples if groups is None else int(groups.max()) + 1
    counts = np.bincount(generator.integers(num_units, size=num_units), minlength=num_units)
    return np.asarray(counts if groups is None else counts[groups], dtype=np.float64)


def _ends(confidence: float) -> list[float]:
    return [(1 - confidence) / 2, (1 + confidence) / 2]


def _calibrated(outputs: Outputs) -> tuple[int | None, Floats, NDArray[np.bool_]]:
    """Of two classes the rarer one's probability, else that of the class an example was taken for; and what came of
    it."""
    if outputs.probability is not None and outputs.probability.shape[1] == 2 and (of := curve_classes(outputs)):
        is_of, probability = curve_examples(outputs).of(of[0])
        return of[0], probability, is_of
    assert outputs.confidence is not None
    return None, outputs.confidence.astype(np.float64), outputs.label == outputs.predicted


def _places(probability: Floats) -> NDArray[np.int64]:
    return np.minimum((probability * NUM_BINS).astype(np.int64), NUM_BINS - 1)


def _bins(probability: Floats, came_true: NDArray[np.bool_]) -> tuple[CalibrationBin, ...]:
    """Of equal width; empty ones are left out."""
    places = _places(probability)
    counts = np.bincount(places, minlength=NUM_BINS)
    true = np.bincount(places, weights=came_true, minlength=NUM_BINS)
    sums = np.bincount(places, weights=probability, minlength=NUM_BINS)
    return tuple(
        CalibrationBin(
            low=place / NUM_BINS,
            high=(place + 1) / NUM_BINS,
            num_examples=int(counts[place]),
            num_true=int(true[place]),
            mean_probability=float(sums[place] / counts[place]),
        )
        for place in range(NUM_BINS)
        if counts[place]
    )


def _calibration_error(
    probability: Floats,
    came_true: NDArray[np.bool_],
    *,
    resamples: int,
    confidence: float,
    seed: int,
    groups: Groups | None,
) -> Interval:
    """Mean distance between probability and share that came true, over bins by their examples (Naeini et al., 2015).

    Its interval leans upwards: each resample adds noise of its own to every bin.
    """
    places, num_examples = _places(probability), len(probability)
    gap, generator = came_true.astype(np.float64) - probability, np.random.default_rng(seed)

    def error(weights: Floats) -> float:
        return float(np.abs(np.bincount(places, weights=weights * gap, minlength=NUM_BINS)).sum() / weights.sum())

    value, numbers = error(np.ones(num_examples, dtype=np.float64)), _numbered(groups)
    drawn = [
        error(_drawn(generator, num_examples, numbers))
        for _ in range(min(resamples, max(MIN_RESAMPLES, MAX_DRAWS // num_examples)))
    ]
    low, high = np.quantile(drawn, _ends(confidence))
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))
