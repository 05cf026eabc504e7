"""Made-up rows of a shape, and shapes that data may have: for trying a recipe before there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headway.training.config.encoder_specs import EncoderSpec, ImageEncoderSpec, TabularEncoderSpec, TokenSpec
from headway.training.config.shapes import (
    CustomShape,
    DataShape,
    ImageShape,
    TabularNumberShape,
    TabularShape,
    TokenShape,
)
from headway.training.data.encode.data_shape import token_shape
from headway.training.data.encode.numeric_block import MOST_PARTS

if TYPE_CHECKING:
    from torch import Tensor

LIKELY_CLASSES: Final = (2, 3, 10)
LIKELY_CARDINALITY: Final = 4


def plausible_shapes(encoder: EncoderSpec, num_label_values: int | None) -> tuple[DataShape, ...]:
    """Shapes that encoded data may have, before the encoder was fitted; none for an encoder of the user's own.

    Args:
        num_label_values: values that the label may have; None where nobody has listed them.
    """
    # How many classes the data have is not known yet; a recipe has to work for one likely number.
    classes = LIKELY_CLASSES if num_label_values is None else (num_label_values,)
    match encoder:
        case TabularEncoderSpec():
            sizes = {
                "num_numeric": len(encoder.numeric) + MOST_PARTS * len(encoder.times),
                "cardinalities": (LIKELY_CARDINALITY,) * len(encoder.categorical),
            }
            if encoder.predicts_number:
                return (TabularNumberShape.model_validate({**sizes, "mean": 0.0, "deviation": 1.0}),)
            known = classes if encoder.predicts_class else (0,)
            return tuple(TabularShape.model_validate({**sizes, "num_classes": number}) for number in known)
        case ImageEncoderSpec():
            channels, height, width = encoder.payload_shape
            return tuple(
                ImageShape(channels=channels, height=height, width=width, num_classes=number) for number in classes
            )
    return (token_shape(encoder),) if isinstance(encoder, TokenSpec) else ()


def synthetic_batch(shape: DataShape, rows: int) -> dict[str, Tensor]:
    """Columns as a recipe gets them, drawn from torch's global generator."""
    import torch

    if isinstance(shape, TokenShape):
        # One more than the context: targets are the tokens shifted by one.
        tokens = torch.randint(shape.vocab_size, (rows, shape.context_tokens + 1))
        return {"tokens": tokens, "document": torch.zeros((rows, 1), dtype=torch.int64)}
    if isinstance(shape, TabularNumberShape):
        label = shape.mean + shape.deviation * torch.randn((rows, 1))
    else:
        label = torch.randint(shape.num_classes, (rows, 1)) if shape.num_classes else torch.zeros((rows, 1))
    if isinstance(shape, CustomShape):
        own = {column.name: torch.zeros((rows, *column.shape), dtype=_dtype(column.dtype)) for column in shape.columns}
        return {"label": label} | own
    if isinstance(shape, ImageShape):
        return {"image": torch.randint(256, (rows, shape.channels, shape.height, shape.width)), "label": label}
    ids = [torch.randint(size, (rows, 1)) for size in shape.cardinalities]
    return {
        **({"numeric": torch.randn((rows, shape.num_numeric))} if shape.num_numeric else {}),
        "label": label,
        **({"categorical": torch.cat(ids, dim=1)} if ids else {}),
    }


def _dtype(name: str) -> Any:
    """As a rank gets it: integers are widened."""
    import torch

    return getattr(torch, name) if name == "bool" or name.startswith("float") else torch.int64
