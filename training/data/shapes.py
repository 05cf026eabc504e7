"""What encoded data decide about a model: one shape for each kind of row."""

from __future__ import annotations

from typing import ClassVar

from data_contracts.documents import Frozen, Json, PayloadColumn


class TokenShape(Frozen):
    """Rows of `context_tokens` + 1 tokens, to be predicted one after another."""

    content: ClassVar[str] = "token sequences"

    vocab_size: int
    context_tokens: int


class ImageShape(Frozen):
    """Images of uint8, (channels, height, width), each of one class."""

    content: ClassVar[str] = "images"

    channels: int
    height: int
    width: int
    num_classes: int


class TabularShape(Frozen):
    """Records of standardised numbers and category ids, each of one class."""

    content: ClassVar[str] = "records of a class each"

    num_numeric: int
    cardinalities: tuple[int, ...]
    """Ids that each categorical column may have, the one for unknown values included."""
    num_classes: int


class TabularNumberShape(Frozen):
    """The same records, each with a number to predict."""

    content: ClassVar[str] = "records of a number each"

    num_numeric: int
    cardinalities: tuple[int, ...]
    mean: float
    """Of the number, over the training split."""
    deviation: float


class OwnShape(Frozen):
    """Rows of columns that an encoder of the user's own names, each with a class or a number to predict."""

    content: ClassVar[str] = "rows of an encoder's own columns"

    columns: tuple[PayloadColumn, ...]
    """Beside `label`, which is there always."""
    num_classes: int = 0
    """0: the label is a number."""
    facts: Json = None
    """What else the encoder wants a recipe to know."""


DataShape = TokenShape | ImageShape | TabularShape | TabularNumberShape | OwnShape
