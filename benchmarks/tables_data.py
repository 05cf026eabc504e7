"""Tables for `benchmarks.tables`: those that come with scikit-learn, and made-up ones, each as a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas  # type: ignore[import-untyped]
from numpy.typing import NDArray
from sklearn import datasets

LABEL = "answer"
"""No name that a draft would take for a label's."""
Kind = Literal["class", "number"]


class BenchmarkTable(NamedTuple):
    path: Path
    label: str
    kind: Kind


def write_tables(folder: Path) -> dict[str, BenchmarkTable]:
    """Each table in a folder of its own, by name; the same bytes every time."""
    tables = {}
    for name, (kind, make) in MADE.items():
        path = folder / name / f"{name}.csv"
        path.parent.mkdir(parents=True)
        make().to_csv(path, index=False)
        tables[name] = BenchmarkTable(path, LABEL, kind)
    return tables


def _frame(features: Any, labels: Any) -> pandas.DataFrame:
    features = np.asarray(features)
    table = pandas.DataFrame({f"f{number}": features[:, number] for number in range(features.shape[1])})
    table[LABEL] = np.asarray(labels)
    return table


def _shipped(load: Callable[..., Any]) -> Callable[[], pandas.DataFrame]:
    return lambda: _frame(*load(return_X_y=True))


def _friedman(num_rows: int) -> pandas.DataFrame:
    """Friedman (1991), with noise of deviation 1 and five columns that say nothing."""
    return _frame(*datasets.make_friedman1(num_rows, n_features=10, noise=1.0, random_state=0))


def _clusters(num_rows: int) -> pandas.DataFrame:
    """Five classes of four clusters each, 5 % of the labels wrong."""
    return _frame(
        *datasets.make_classification(
            num_rows,
            n_features=16,
            n_informative=8,
            n_redundant=4,
            n_classes=5,
            n_clusters_per_class=4,
            flip_y=0.05,
            random_state=0,
        )
    )


def _mixed(num_rows: int, kind: Kind) -> pandas.DataFrame:
    """What a business has: skewed amounts, categories of which some are rare, gaps, thresholds and interactions."""
    random = np.random.default_rng(1)
    amount = np.exp(random.normal(3, 1.2, num_rows))
    age = random.integers(18, 80, num_rows).astype(float)
    score = random.normal(0, 1, num_rows)
    region = random.choice(12, num_rows, p=_zipf(12))
    product = random.choice(40, num_rows, p=_zipf(40))
    effects_region, effects_product = random.normal(0, 0.8, 12), random.normal(0, 0.8, 40)
    signal = (
        0.8 * np.log(amount)
        + np.where(age > 45, 0.9, -0.4) * score
        + effects_region[region]
        + effects_product[product] * (score > 0)
        + 0.6 * np.sin(amount / 15)
    )
    table = pandas.DataFrame(
        {
            "amount": np.round(amount, 2),
            "age": age,
            "score": np.where(random.random(num_rows) < 0.05, np.nan, np.round(score, 4)),
            "region": [f"region {number}" for number in region],
            "product": [f"product {number}" for number in product],
            "noise": np.round(random.normal(0, 1, num_rows), 4),
        }
    )
    if kind == "number":
        table[LABEL] = np.round(100 + 20 * (signal + random.normal(0, 0.5, num_rows)), 3)
    else:
        chance: NDArray[np.float64] = 1 / (1 + np.exp(-1.5 * (signal - np.median(signal))))
        table[LABEL] = np.where(random.random(num_rows) < chance, "stays", "leaves")
    return table


def _zipf(number: int) -> NDArray[np.float64]:
    shares = 1 / np.arange(1, number + 1)
    return np.asarray(shares / shares.sum())


MADE: Mapping[str, tuple[Kind, Callable[[], pandas.DataFrame]]] = {
    "iris": ("class", _shipped(datasets.load_iris)),
    "wine": ("class", _shipped(datasets.load_wine)),
    "diabetes": ("number", _shipped(datasets.load_diabetes)),
    "breast-cancer": ("class", _shipped(datasets.load_breast_cancer)),
    "digits": ("class", _shipped(datasets.load_digits)),
    "friedman": ("number", lambda: _friedman(5_000)),
    "clusters": ("class", lambda: _clusters(20_000)),
    "mixed-class": ("class", lambda: _mixed(50_000, "class")),
    "mixed-number": ("number", lambda: _mixed(50_000, "number")),
}
