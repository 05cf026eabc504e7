"""What a recipe needs to know of the encoded data, from the encoder's spec and the fitted statistics alone."""

from __future__ import annotations

from data_contracts.documents import Json
from data_contracts.errors import IntegrityError
from training.data.encoder_specs import (
    ENCODER_SPEC,
    BytePairSpec,
    ImageSpec,
    OwnSpec,
    TabularSpec,
    TokenIdsSpec,
    TokenSpec,
)
from training.data.own_protocol import OwnFacts
from training.data.packing import NUM_MARKERS
from training.data.shapes import DataShape, ImageShape, TabularNumberShape, TabularShape, TokenShape


def data_shape(encoder: Json, statistics: Json) -> DataShape:
    """The shape of data encoded under a spec and a fitted state.

    Args:
        encoder: the encoder's spec, such as `ShardManifest.spec["encoder"]`.
        statistics: `FittedState.statistics`.

    Raises:
        IntegrityError: the two do not belong together.
    """
    try:
        spec = ENCODER_SPEC.validate_python(encoder)
        match spec:
            case BytePairSpec() | TokenIdsSpec():
                return token_shape(spec)
            case ImageSpec():
                channels, height, width = spec.payload_shape
                num_classes = len(statistics["label"]["values"])
                return ImageShape(channels=channels, height=height, width=width, num_classes=num_classes)
            case TabularSpec():
                return _tabular_shape(spec, statistics)
            case OwnSpec():
                return OwnFacts.model_validate(statistics).shape
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError("the encoder's spec and the fitted statistics do not belong together.") from error


def _tabular_shape(spec: TabularSpec, statistics: Json) -> TabularShape | TabularNumberShape:
    num_numeric, label = len(spec.numeric), statistics["label"]
    cardinalities = tuple(len(column["values"]) + 1 for column in statistics["categorical"])
    if spec.predicts_number:
        mean, deviation = label["mean"], label["deviation"] or 1.0
        return TabularNumberShape(num_numeric=num_numeric, cardinalities=cardinalities, mean=mean, deviation=deviation)
    num_classes = len(label["values"]) if spec.predicts_class else 0
    return TabularShape(num_numeric=num_numeric, cardinalities=cardinalities, num_classes=num_classes)


def token_shape(spec: TokenSpec) -> TokenShape:
    """The shape that a spec of tokens tells without being fitted."""
    num_markers = NUM_MARKERS if isinstance(spec, TokenIdsSpec) else 0
    return TokenShape(vocab_size=spec.vocab_size + num_markers, context_tokens=spec.sequence_tokens)
