"""The linear model beside a table's own is scikit-learn's, to many digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from headway.training.config.shapes import ImageShape, TabularNumberShape, TabularShape
from headway.training.evaluation.linear_model import MAX_ONE_HOT, MAX_ROWS, fitted_linear_model

NUM_ROWS = 300


class Reader:
    """Rows of two numbers, a category of three values, and what `label` makes of them."""

    def __init__(self, label: Callable[[NDArray[Any]], NDArray[Any]], num_rows: int = NUM_ROWS) -> None:
        random = np.random.default_rng(0)
        numeric = random.normal(5, 3, (num_rows, 2)).astype(np.float32)
        ids = random.integers(0, 3, (num_rows, 1)).astype(np.int32)
        signal = numeric[:, 0] - 2 * numeric[:, 1] + 4 * (ids[:, 0] == 2) + random.normal(0, 1, num_rows)
        self.columns = {"numeric": numeric, "categorical": ids, "label": label(signal)[:, None]}
        self.num_rows, self.gathered = num_rows, 0

    def gather(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        self.gathered += len(rows)
        return {name: values[rows] for name, values in self.columns.items()}

    @property
    def features(self) -> NDArray[np.float64]:
        numbers = StandardScaler().fit_transform(self.columns["numeric"].astype(np.float64))
        return np.concatenate([numbers, np.eye(3)[self.columns["categorical"][:, 0]]], axis=1)


def numbers(signal: NDArray[Any]) -> NDArray[Any]:
    return signal.astype(np.float32)


def classes(signal: NDArray[Any]) -> NDArray[Any]:
    return np.digitize(signal, [-10, 0]).astype(np.int32)


def test_a_number_is_predicted_as_ridge_regression_does() -> None:
    reader = Reader(numbers)
    shape = TabularNumberShape(num_numeric=2, cardinalities=(3,), mean=0.0, deviation=1.0)
    errors = fitted_linear_model(reader, shape)(reader.columns)["squared_error"]  # type: ignore[arg-type]
    label = reader.columns["label"][:, 0].astype(np.float64)
    expected = np.square(Ridge().fit(reader.features, label).predict(reader.features) - label)
    assert errors[:, 0] == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_classes_are_told_as_logistic_regression_does() -> None:
    reader = Reader(classes)
    shape = TabularShape(num_numeric=2, cardinalities=(3,), num_classes=3)
    measured = fitted_linear_model(reader, shape)(reader.columns)  # type: ignore[arg-type]
    label = reader.columns["label"][:, 0]
    peer = LogisticRegression(max_iter=1000, tol=1e-8).fit(reader.features, label)
    expected = -peer.predict_log_proba(reader.features)[np.arange(NUM_ROWS), label].mean()
    assert measured["nats"].mean() == pytest.approx(expected, rel=1e-3)
    assert measured["correct"].mean() == pytest.approx(peer.score(reader.features, label), abs=0.01)


def test_pictures_are_told_as_logistic_regression_of_their_pixels_does_and_large_ones_by_means_of_parts() -> None:
    random = np.random.default_rng(0)
    small = random.integers(0, 256, (NUM_ROWS, 1, 4, 5), dtype=np.uint8)
    small[:, 0, 0, 0] = 7  # a pixel that is the same in all
    reader = Reader(classes)
    label = (small[:, 0, 1, 1].astype(int) + small[:, 0, 2, 2] > 255).astype(np.int32)
    reader.columns = {"image": small, "label": label[:, None]}
    shape = ImageShape(channels=1, height=4, width=5, num_classes=2)
    measured = fitted_linear_model(reader, shape)(reader.columns)  # type: ignore[arg-type]
    features = StandardScaler().fit_transform(small.reshape(NUM_ROWS, -1).astype(np.float64))
    # Two columns of weights in place of one hold their squared norm half as much.
    peer = LogisticRegression(C=2.0, max_iter=1000, tol=1e-8).fit(features, label)
    expected = -peer.predict_log_proba(features)[np.arange(NUM_ROWS), label].mean()
    assert measured["nats"].mean() == pytest.approx(expected, rel=1e-3)
    large = np.kron(small, np.ones((1, 1, 16, 16), dtype=np.uint8))
    reader.columns = {"image": large, "label": label[:, None]}
    shape = ImageShape(channels=1, height=64, width=80, num_classes=2)
    parts = fitted_linear_model(reader, shape)(reader.columns)  # type: ignore[arg-type]
    assert parts["correct"].mean() > 0.95


def test_it_is_fitted_on_bounded_rows_and_leaves_out_columns_of_very_many_values() -> None:
    reader = Reader(numbers, num_rows=MAX_ROWS + 1000)
    shape = TabularNumberShape(num_numeric=2, cardinalities=(MAX_ONE_HOT + 1,), mean=0.0, deviation=1.0)
    predict = fitted_linear_model(reader, shape)  # type: ignore[arg-type]
    assert reader.gathered == MAX_ROWS
    some = {name: values[:10] for name, values in reader.columns.items()}
    without = {**some, "categorical": np.zeros((10, 1), dtype=np.int32)}
    assert predict(some)["squared_error"].tolist() == predict(without)["squared_error"].tolist()
