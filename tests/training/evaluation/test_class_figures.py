"""Figures of classes and numbers, held against scikit-learn's, and defined where there is hardly anything."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score

from headway.training.evaluation.class_figures import class_figures, curve_of
from headway.training.evaluation.number_figures import number_figures
from headway.training.evaluation.outputs import Outputs

RESAMPLING = {"resamples": 200, "confidence": 0.95, "seed": 0}


def outputs(num_rows: int, num_classes: int, labels: list[int] | None = None) -> Outputs:
    draw = np.random.default_rng(num_rows)
    label = draw.integers(num_classes, size=num_rows) if labels is None else np.array(labels)
    # Rounded, so that probabilities tie.
    logits = draw.normal(size=(num_rows, num_classes)).round(1)
    logits[np.arange(num_rows), label] += 1.0
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return Outputs(
        label=label,
        predicted=probability.argmax(axis=1),
        confidence=probability.max(axis=1).astype(np.float32),
        probability_rows=np.arange(num_rows),
        probability=probability.astype(np.float32),
    )


@pytest.mark.parametrize("num_classes", [2, 4])
def test_areas_and_confusion_are_scikit_learns(num_classes):
    made = outputs(300, num_classes)
    found = class_figures(made, [f"c{number}" for number in range(num_classes)], **RESAMPLING)
    expected = confusion_matrix(made.label, made.predicted)
    counts = {(each.actual, each.predicted): each.num_examples for each in found.confusions}
    for actual in range(num_classes):
        assert found.classes[actual].num_correct == expected[actual, actual]
        for other in set(range(num_classes)) - {actual}:
            assert counts.get((actual, other), 0) == expected[actual, other]
    with_areas = [number for number, each in enumerate(found.classes) if each.roc_auc is not None]
    assert len(with_areas) == (1 if num_classes == 2 else num_classes)
    for number in with_areas:
        tally, is_of = found.classes[number], made.label == number
        probability = made.probability[:, number].astype(np.float64)
        assert tally.roc_auc.value == pytest.approx(roc_auc_score(is_of, probability))
        assert tally.average_precision.value == pytest.approx(average_precision_score(is_of, probability))
        assert tally.roc_auc.low < tally.roc_auc.value < tally.roc_auc.high
        curve = curve_of(is_of, probability)
        area = np.trapezoid(curve.recall, curve.false_positive_rate)
        assert area == pytest.approx(tally.roc_auc.value)


def test_of_two_classes_the_rarer_ones_probability_is_held_against_what_came_of_it():
    made = outputs(300, 2, [0] * 240 + [1] * 60)
    found = class_figures(made, ["no", "yes"], **RESAMPLING)
    assert found.calibration_of == "yes" and sum(each.num_examples for each in found.calibration) == 300
    assert sum(each.num_true for each in found.calibration) == 60
    gaps = (abs(each.num_true - each.num_examples * each.mean_probability) for each in found.calibration)
    assert found.expected_calibration_error.value == pytest.approx(sum(gaps) / 300)


@pytest.mark.parametrize(("labels", "num_classes"), [([0, 1], 2), ([1] * 20, 3), ([0], 2), ([2, 2, 0], 1000)])
def test_hardly_any_examples_or_one_class_alone_have_figures_all_the_same(labels, num_classes):
    found = class_figures(outputs(len(labels), num_classes, labels), ["a"], **RESAMPLING)
    assert sum(each.num_actual for each in found.classes) == len(labels)
    if len(set(labels)) == 1:
        assert found.mean_roc_auc is None and all(each.roc_auc is None for each in found.classes)


def test_very_many_classes_are_listed_within_bounds_and_the_report_says_what_is_left_out(monkeypatch):
    monkeypatch.setattr("headway.training.evaluation.class_figures.MAX_CLASSES", 5)
    monkeypatch.setattr("headway.training.evaluation.class_figures.MAX_CONFUSIONS", 3)
    found = class_figures(outputs(200, 30), [], **RESAMPLING)
    assert len(found.classes) == 5 and found.num_classes_omitted == 25
    assert len(found.confusions) <= 3 and found.classes[0].name.startswith("class ")


def test_rows_of_one_key_count_as_one_in_the_intervals_of_classes_and_numbers():
    once = outputs(60, 2)
    rows = np.repeat(np.arange(60), 20)
    often = Outputs(
        label=once.label[rows],
        predicted=once.predicted[rows],
        confidence=once.confidence[rows],
        probability_rows=np.arange(1200),
        probability=once.probability[rows],
    )
    few, many = (class_figures(each, [], **RESAMPLING) for each in (once, often))
    together = class_figures(often, [], **RESAMPLING, groups=rows.astype(np.uint64) * 3)
    for of in (
        lambda found: next(each.roc_auc for each in found.classes if each.roc_auc),
        lambda found: found.expected_calibration_error,
    ):
        small, wide, same = (of(found).high - of(found).low for found in (many, few, together))
        assert small < wide / 2 and same == pytest.approx(wide, rel=1e-6)
    label = np.repeat(np.random.default_rng(0).normal(size=60), 20)
    numbers = Outputs(label=label, predicted=np.zeros(1200))
    apart, keyed = number_figures(numbers, **RESAMPLING), number_figures(numbers, **RESAMPLING, groups=rows)
    assert keyed.mean_error.high - keyed.mean_error.low > 3 * (apart.mean_error.high - apart.mean_error.low)
    bands = zip(keyed.bands, apart.bands, strict=True)
    assert all(k.mean_error.high - k.mean_error.low > a.mean_error.high - a.mean_error.low for k, a in bands)


def test_numbers_are_off_by_what_was_added_and_bands_are_of_equal_labels_together():
    label = np.repeat(np.arange(10.0), 20)
    found = number_figures(Outputs(label=label, predicted=label + 2.0), **RESAMPLING)
    assert found.mean_error.value == found.mean_absolute_error.value == pytest.approx(2.0)
    assert set(found.error_quantiles) == {"p05", "p25", "p50", "p75", "p95"}
    assert [(each.low, each.high, each.num_examples) for each in found.bands] == [(n, n, 20) for n in range(10)]
    constant = number_figures(Outputs(label=np.zeros(50), predicted=np.ones(50)), **RESAMPLING)
    assert len(constant.bands) == 1 and constant.bands[0].rmse == 1.0
    assert len(number_figures(Outputs(label=np.arange(2.0), predicted=np.zeros(2)), **RESAMPLING).bands) == 1
