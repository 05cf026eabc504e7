"""What encoded data decide about a model: one shape for each kind of row."""

from __future__ import annotations

import math
from typing import ClassVar, Final

from headway.data_contracts.store.documents import Frozen, Json, PayloadColumn

GAUSSIAN_NATS: Final = math.log(2 * math.pi) / 2
"""What a unit Gaussian charges for its own mean."""


class TokenShape(Frozen):
    """Rows of `context_tokens` + 1 tokens, to be predicted one after another.

    - The documents of a shard group are one stream: token 0 (`packing.EOT_ID`), the first document's tokens, token 0,
      the second's, and so on. Token 0 opens each document, an empty one too; nothing closes one. There is no other BOS
      or EOS: an encoder whose model wants one puts its own id into the document.
    - Row r holds positions [r L, r L + L] of the stream, L being `context_tokens`: the recipe shifts, inputs are
      `tokens[:, :-1]` and targets `tokens[:, 1:]`. Rows cross documents; attention is not cut between them.
    - Token 1 (`packing.PAD_ID`) fills the last row of a group and is no target: its loss is 0 and its `valid` False.
      There is no -100; a recipe tells padding by the id.
    - Batches hold `tokens` (rows, L + 1) and `document` (rows, 1), which counts the group's documents from 0 and names
      the one that a row's first token belongs to. Both come as int64; on disk tokens are uint16 where the vocabulary
      fits, else uint32.
    - Byte-pairs have both markers in their vocabulary, as tokens 0 and 1. Ids of a source (`token-ids`) and of an
      encoder of the user's own are stored 2 higher (`packing.NUM_MARKERS`), so that none is mistaken for a marker.
    """

    content: ClassVar[str] = "token sequences"

    vocab_size: int
    """Ids in shards lie in [0, vocab_size): both markers are counted."""
    context_tokens: int
    """Targets of each row."""


class ImageShape(Frozen):
    """Images of uint8, (channels, height, width), each of one class."""

    content: ClassVar[str] = "images"

    channels: int
    """3 of colours, 1 of grey."""
    height: int
    """In pixels."""
    width: int
    """In pixels."""
    num_classes: int
    """Labels lie in [0, num_classes)."""


class TabularShape(Frozen):
    """Records of standardised numbers and category ids, each of one class."""

    content: ClassVar[str] = "records of a class each"

    num_numeric: int
    """Numbers in each row of `numeric`."""
    cardinalities: tuple[int, ...]
    """Ids that each categorical column may have, the one for unknown values included."""
    num_classes: int
    """Labels lie in [0, num_classes)."""


class TabularNumberShape(Frozen):
    """The same records, each with a number to predict."""

    content: ClassVar[str] = "records of a number each"

    num_numeric: int
    """Numbers in each row of `numeric`."""
    cardinalities: tuple[int, ...]
    """As in `TabularShape`."""
    mean: float
    """Of the number, over the training split."""
    deviation: float
    """Its standard deviation, over the training split."""

    def rmse(self, nats: float) -> float:
        """A built-in regressor's mean loss in the number's own unit: their Gaussians have the split's deviation."""
        # Rounding may leave a perfect fit a little below the constant.
        return math.sqrt(2 * max(nats - GAUSSIAN_NATS, 0.0)) * self.deviation


class CustomShape(Frozen):
    """Rows of columns that an encoder of the user's own names, each with a class or a number to predict."""

    content: ClassVar[str] = "rows of an encoder's own columns"

    columns: tuple[PayloadColumn, ...]
    """Beside `label`, which is there always."""
    num_classes: int = 0
    """0: the label is a number."""
    facts: Json = None
    """What else the encoder wants a recipe to know."""


DataShape = TokenShape | ImageShape | TabularShape | TabularNumberShape | CustomShape
