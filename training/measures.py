"""What models of one kind of data are judged by: figures that are ratios of sums over examples.

An example is what the bootstrap draws: a document of tokens, a row of a table. For each one, ranks add up what the
model paid (`nats`), how often its first guess was right (`correct`), and what that is measured against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_contracts.documents import Json
from data_contracts.errors import ConfigError
from training.data.encoder_specs import ENCODER_SPEC, BytePairSpec, ImageSpec, TabularSpec, TokenIdsSpec

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
    predicts: Literal["tokens", "class"]

    @property
    def decisive(self) -> Measure:
        return self.measures[0]


TEXT = Yardstick((Measure("bits_per_byte", "nats", "bytes", divisor=math.log(2)),), "bigram", "tokens")
TOKEN_IDS = Yardstick((Measure("bits_per_token", "nats", "targets", divisor=math.log(2)),), "bigram", "tokens")
"""Of ids nobody knows how many bytes they stand for. Every document's end marker is a target, too."""
CLASSES = Yardstick(
    (Measure("log_loss", "nats", "targets"), Measure("accuracy", "correct", "targets", greater_is_better=True)),
    "class prior",
    "class",
)


def yardstick_of(encoder: Json) -> Yardstick:
    """The yardstick for shards of this encoder, such as `ShardManifest.spec["encoder"]`.

    Raises:
        ConfigError: there is nothing to predict in them.
    """
    match ENCODER_SPEC.validate_python(encoder):
        case BytePairSpec():
            return TEXT
        case TokenIdsSpec():
            return TOKEN_IDS
        case ImageSpec():
            return CLASSES
        case TabularSpec() as spec if spec.predicts_class:
            return CLASSES
    raise ConfigError(
        "shards without a class to predict cannot be evaluated.",
        where="shards.encoder",
        advice="Name the column in `label`.",
    )
