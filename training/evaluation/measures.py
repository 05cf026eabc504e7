"""What models of one kind of data are evaluated by: figures that are ratios of sums over examples.

An example is what the bootstrap draws: a document of tokens, a row of a table. For each one, ranks add up what the
model paid (`nats`), how often its first guess was right (`correct`) or how far it was off (`squared_error`), and what
that is measured against.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import FittedState, Interval, Json, ShardManifest
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.training.config.encoder_specs import (
    ENCODER_SPEC,
    BytePairSpec,
    CustomEncoderSpec,
    ImageEncoderSpec,
    TabularEncoderSpec,
    TokenIdsSpec,
)
from headway.training.config.shapes import TokenShape
from headway.training.data.encode.custom_encoder import CustomEncoderFacts, num_classes_of

TOKENS: Final = "tokens"
LABEL: Final = "label"
"""Payload column of what to predict, (rows, 1): a class as a whole number from 0, or a number."""

KEY: Final = "key"
"""Beside the sums of examples, which key each belongs to, counted from 0, where rows of one key go together."""
MIN_KEYS: Final = 10
"""Of fewer, an interval that is drawn key by key says little: of one key it has no width at all."""


def has_few_keys(num_keys: int) -> bool:
    """Whether no interval of examples of so many keys is to be trusted; 0: each is drawn alone."""
    return 0 < num_keys < MIN_KEYS


Sums = Mapping[str, NDArray[Any]]
"""One value an example, by name: `targets`; `nats`, and `bytes` of a text or `correct` of a classifier; of a number
`squared_error`, and `variation`, its squared distance from the mean of the split."""


class Measure(NamedTuple):
    """sum(numerator) / divisor / sum(denominator), or what is made of it."""

    name: str
    numerator: str
    denominator: str
    greater_is_better: bool = False
    divisor: float = 1.0
    shown_as: Literal["ratio", "root", "rest"] = "ratio"
    """`rest` is what is left of 1. A decisive measure is a ratio: differences are."""

    def numerators(self, sums: Sums) -> NDArray[np.float64]:
        return np.asarray(sums[self.numerator] / self.divisor, dtype=np.float64)

    def denominators(self, sums: Sums) -> NDArray[np.float64]:
        return np.asarray(sums[self.denominator], dtype=np.float64)

    def value(self, sums: Sums) -> float:
        """Over all examples."""
        # `fsum`: the ranks' blocks come in any order, and the figure must not depend on it.
        total = math.fsum(sums[self.numerator].tolist())
        return self.of_ratio(total / self.divisor / math.fsum(sums[self.denominator].tolist()))

    def of_ratio(self, ratio: float) -> float:
        match self.shown_as:
            case "ratio":
                return ratio
            case "root":
                return math.sqrt(ratio)
            case "rest":
                return 1.0 - ratio

    def is_defined(self, sums: Sums) -> bool:
        """Whether there is anything to measure against."""
        return bool(self.denominators(sums).sum() > 0)


class MetricSet(NamedTuple):
    """How models of one kind of data are evaluated."""

    measures: tuple[Measure, ...]
    """The first decides who is champion."""
    gate_baseline: str
    """The simple model, fitted on the training split, that a first model must beat."""
    predicts: Literal["tokens", "class", "number"]

    @property
    def decisive(self) -> Measure:
        return self.measures[0]


TEXT = MetricSet((Measure("bits_per_byte", "nats", "bytes", divisor=math.log(2)),), "bigram", "tokens")
TOKEN_IDS = MetricSet((Measure("bits_per_token", "nats", "targets", divisor=math.log(2)),), "bigram", "tokens")
"""Of ids nobody knows how many bytes they stand for. Every document's end marker is a target, too."""
CLASSES = MetricSet(
    (Measure("log_loss", "nats", "targets"), Measure("accuracy", "correct", "targets", greater_is_better=True)),
    "class prior",
    "class",
)
NUMBERS = MetricSet(
    (
        # In the data's own unit, squared: comparable whatever state a model was fitted with.
        Measure("mean_squared_error", "squared_error", "targets"),
        Measure("rmse", "squared_error", "targets", shown_as="root"),
        Measure("r2", "squared_error", "variation", greater_is_better=True, shown_as="rest"),
    ),
    "training mean",
    "number",
)

ROW_SUMS = ("nats", "correct", "squared_error", "targets", "bytes")
"""What can be summed row by row. The variation of labels is of a whole split."""


def validating_measure(metric_set: MetricSet, metric: str | None) -> Measure:
    """The figure that a run is validated by.

    Raises:
        ConfigError: these data have no such figure, or it cannot be summed row by row.
    """
    possible = {each.name: each for each in metric_set.measures if each.denominator in ROW_SUMS}
    if metric is None:
        return metric_set.decisive
    if metric not in possible:
        raise ConfigError(
            f"there is no figure {metric!r} to validate by; these data have {', '.join(possible)}.",
            where="training.validation.metric",
            advice="Name one of them, or take the key out.",
        )
    return possible[metric]


_ROOTS: Final = {"mean_squared_error": "rmse"}


class ShownMeasure(NamedTuple):
    """What people are shown in place of the figure that decides: of a square its root, in the unit of the label."""

    name: str
    is_root: bool

    def of(self, value: float) -> float:
        """What a value of the figure that decides is in this measure."""
        return math.sqrt(max(value, 0.0)) if self.is_root else value

    def interval(self, interval: Interval) -> Interval:
        """Exact: a root keeps the order of all that an interval was drawn from."""
        return Interval(**{name: self.of(value) for name, value in interval.model_dump().items()})


def shown_measure(metric: str, measured: Collection[str]) -> ShownMeasure:
    """Args:
    metric: the measure that decides.
    measured: all that were taken; a root that is not among them is not shown.
    """
    root = _ROOTS.get(metric, "")
    return ShownMeasure(root, is_root=True) if root in measured else ShownMeasure(metric, is_root=False)


GREATER_IS_BETTER = {
    measure.name: measure.greater_is_better
    for metric_set in (TEXT, TOKEN_IDS, CLASSES, NUMBERS)
    for measure in metric_set.measures
}
"""Every figure there is."""


def target_of(encoder: Json, statistics: Json = None) -> str:
    """What models over such shards predict, in words: figures of two different things cannot be compared.

    Args:
        statistics: `FittedState.statistics`, as for `metric_set_of`.
    """
    match ENCODER_SPEC.validate_python(encoder):
        case BytePairSpec() as spec:
            return f"the text in column {spec.column!r}"
        case TokenIdsSpec() as spec:
            return f"the tokens in column {spec.column!r}"
        case ImageEncoderSpec() as spec:
            return f"the class in column {spec.label!r}"
        case TabularEncoderSpec() as spec:
            return f"the {spec.label_kind} in column {spec.label!r}"
        case CustomEncoderSpec() as spec:
            facts = CustomEncoderFacts.model_validate(statistics)
            what = {TEXT: "text", TOKEN_IDS: "tokens", CLASSES: "class", NUMBERS: "number"}[_custom_metric_set(facts)]
            return f"the {what} of {spec.name}" if facts.target is None else f"the {what} in column {facts.target!r}"


def metric_set_for(workspace: Workspace, manifest: ShardManifest) -> MetricSet:
    """The metric set for these shards.

    Raises:
        ConfigError: there is nothing to predict in them.
        IntegrityError: their fitted state is gone or damaged.
    """
    encoder = manifest.spec["encoder"]
    # Loaded only where a user's own encoder has to say what its rows are.
    is_own = encoder["kind"] == "own"
    return metric_set_of(encoder, workspace.load(manifest.fitted, FittedState).statistics if is_own else None)


def metric_set_of(encoder: Json, statistics: Json = None) -> MetricSet:
    """The metric set for shards of this encoder, such as `ShardManifest.spec["encoder"]`.

    Args:
        statistics: `FittedState.statistics`, in which a user's own encoder says what its rows are.

    Raises:
        ConfigError: there is nothing to predict in them.
    """
    match ENCODER_SPEC.validate_python(encoder):
        case BytePairSpec():
            return TEXT
        case TokenIdsSpec():
            return TOKEN_IDS
        case ImageEncoderSpec():
            return CLASSES
        case TabularEncoderSpec() as spec if spec.predicts_class:
            return CLASSES
        case TabularEncoderSpec() as spec if spec.predicts_number:
            return NUMBERS
        case CustomEncoderSpec():
            return _custom_metric_set(CustomEncoderFacts.model_validate(statistics))
    raise ConfigError(
        "shards with nothing to predict cannot be evaluated.",
        where="shards.encoder",
        advice="Name the column in `label`.",
    )


def _custom_metric_set(facts: CustomEncoderFacts) -> MetricSet:
    if isinstance(facts.shape, TokenShape):
        return TOKEN_IDS if facts.token_sizes_bytes is None else TEXT
    return CLASSES if num_classes_of(facts.shape) else NUMBERS
