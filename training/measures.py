"""What models of one kind of data are judged by: figures that are ratios of sums over examples.

An example is what the bootstrap draws: a document of a text, a row of a table. For each one, ranks add up what the
model paid (`nats`), how often its first guess was right (`correct`), and what that is measured against.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import ConfigError

TOKENS: Final = "tokens"
LABEL: Final = "label"
"""Payload column of the class to predict, (rows, 1) whole numbers from 0."""

Sums = Mapping[str, NDArray[Any]]
"""One value an example, by name: `nats`, `targets`, and `bytes` of a text or `correct` of a classifier."""


class Measure(NamedTuple):
    """sum(numerator) / divisor / sum(denominator)."""

    name: str
    numerator: str
    denominator: str
    greater_is_better: bool = False
    divisor: float = 1.0

    def numerators(self, sums: Sums) -> NDArray[np.float64]:
        return np.asarray(sums[self.numerator] / self.divisor, dtype=np.float64)

    def denominators(self, sums: Sums) -> NDArray[np.float64]:
        return np.asarray(sums[self.denominator], dtype=np.float64)

    def value(self, sums: Sums) -> float:
        """Over all examples."""
        total = math.fsum(sums[self.numerator].tolist())
        return total / self.divisor / math.fsum(sums[self.denominator].tolist())


class Yardstick(NamedTuple):
    """How models of one kind of data are judged."""

    measures: tuple[Measure, ...]
    """The first decides who is champion."""
    gate_baseline: str
    """The simple model, fitted on the training split, that a first model must beat."""
    examples_are_documents: bool

    @property
    def decisive(self) -> Measure:
        return self.measures[0]


TEXT = Yardstick((Measure("bits_per_byte", "nats", "bytes", divisor=math.log(2)),), "bigram", True)
CLASSES = Yardstick(
    (Measure("log_loss", "nats", "targets"), Measure("accuracy", "correct", "targets", greater_is_better=True)),
    "class prior",
    False,
)


def yardstick_of(columns: Collection[str]) -> Yardstick:
    """The yardstick for shards with these payload columns.

    Raises:
        ConfigError: there is nothing to predict in them.
    """
    if TOKENS in columns:
        return TEXT
    if LABEL in columns:
        return CLASSES
    raise ConfigError(
        f"shards with columns {', '.join(sorted(columns))} cannot be evaluated.",
        where="shards.encoder",
        advice=f"A model is judged by the column {TOKENS} or {LABEL}.",
    )
