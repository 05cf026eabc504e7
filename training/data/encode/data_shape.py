"""What a recipe needs to know of the encoded data, from the encoder's spec and the fitted statistics alone."""

from __future__ import annotations

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.encoder_specs import (
    ENCODER_SPEC,
    BytePairSpec,
    CustomEncoderSpec,
    EncoderSpec,
    ImageEncoderSpec,
    TabularEncoderSpec,
    TokenIdsSpec,
    TokenSpec,
)
from headway.training.config.shapes import DataShape, ImageShape, TabularNumberShape, TabularShape, TokenShape
from headway.training.data.encode.custom_encoder import CustomEncoderFacts
from headway.training.data.encode.numeric_block import numeric_names
from headway.training.data.encode.packing import NUM_MARKERS
from headway.training.data.encode.table_statistics import NumberStatistics, table_statistics


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
            case ImageEncoderSpec():
                channels, height, width = spec.payload_shape
                num_classes = len(statistics["label"]["values"])
                return ImageShape(channels=channels, height=height, width=width, num_classes=num_classes)
            case TabularEncoderSpec():
                return _tabular_shape(spec, statistics)
            case CustomEncoderSpec():
                return CustomEncoderFacts.model_validate(statistics).shape
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError("the encoder's spec and the fitted statistics do not belong together.") from error


def classes_of(spec: EncoderSpec, statistics: Json) -> tuple[int | str, ...]:
    """What the source calls the classes, by their numbers; none of an encoder of one's own, and of other labels."""
    if isinstance(spec, TabularEncoderSpec) and spec.predicts_class:
        return table_statistics(spec, statistics).label_values
    return tuple(statistics["label"]["values"]) if isinstance(spec, ImageEncoderSpec) else ()


def _tabular_shape(spec: TabularEncoderSpec, statistics: Json) -> TabularShape | TabularNumberShape:
    learnt = table_statistics(spec, statistics)
    num_numeric, label = len(numeric_names(learnt)), learnt.label
    # One more than the values: number 0 is for those that training never saw.
    cardinalities = tuple(len(column.values) + 1 for column in learnt.categorical)
    if spec.predicts_number:
        assert isinstance(label, NumberStatistics)  # or it were not this spec's
        # A constant label has no deviation, and dividing by zero would make it infinite.
        mean, deviation = label.mean, label.deviation or 1.0
        return TabularNumberShape(num_numeric=num_numeric, cardinalities=cardinalities, mean=mean, deviation=deviation)
    num_classes = len(learnt.label_values) if spec.predicts_class else 0
    return TabularShape(num_numeric=num_numeric, cardinalities=cardinalities, num_classes=num_classes)


def token_shape(spec: TokenSpec) -> TokenShape:
    """The shape that a spec of tokens tells without being fitted."""
    # Byte-pair vocabularies hold the markers already; ids of the source are stored above them.
    num_markers = NUM_MARKERS if isinstance(spec, TokenIdsSpec) else 0
    return TokenShape(vocab_size=spec.vocab_size + num_markers, context_tokens=spec.sequence_tokens)
