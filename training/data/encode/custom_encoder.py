"""What an encoder of the user's own brings: how rows of the source become rows of the shards, and what that learns.

It runs in a process of its own, on the archive that its code was frozen into: it may be slow Python, and no rank, flow
or other encoder ever imports it. `fit` and `encode` must give the same bytes for the same rows, whatever process,
order of groups or batch size; both are tried twice on a sample before anything is spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from headway.data_contracts.store.documents import Frozen, Json, PayloadColumn
from headway.training.config.shapes import (
    CustomShape,
    DataShape,
    ImageShape,
    TabularNumberShape,
    TabularShape,
    TokenShape,
)
from headway.training.data.encode.packing import NUM_MARKERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

ADVICE: Final = "In Python `help(headway.Encoder)` says what an encoder must bring."
DTYPES: Final = (
    *("bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)
LABEL: Final = "label"
TOKENS: Final = "tokens"


class EncoderState(NamedTuple):
    """What `fit` learnt; it becomes the fitted state, and the encoder gets it back as it was."""

    state: Json = None
    """A JSON value, kept in the fitted state itself."""
    files: Mapping[str, bytes] = {}
    """Larger things by name, each a file of the workspace."""


class CustomEncoder(Protocol):
    """Constructed as `Encoder(spec, fitted)`, where `spec` is an instance of its `spec_type`."""

    spec_type: type[Frozen]
    """The pipeline file's `options:`."""
    shape: DataShape
    """What the rows are: to a recipe, to evaluation, and in the shards.

    - `ImageShape`: columns `image` (uint8) and `label`.
    - `TabularShape`, `TabularNumberShape`: `numeric` (float32), `categorical` (int32) where there are any, and `label`.
    - `CustomShape`: the columns it lists, and `label`.
    - `TokenShape`: `encode` returns documents of tokens, which Headway packs; `vocab_size` counts the encoder's ids.
      This is where a tokenizer from elsewhere plugs in. Its ids are returned as they are: Headway stores them 2 higher
      and puts a separator before each document. So leave out its own BOS, EOS and padding, unless the model is to read
      them as ordinary tokens; `headway.training.config.shapes.TokenShape` says what a recipe then gets.

    A `label` is int32 (rows, 1) in [0, num_classes), or float32 (rows, 1) where a number is predicted. Evaluation
    counts by it: classes by log loss, numbers by squared error, tokens in bits.
    """

    @classmethod
    def fit(cls, spec: Any, batches: Iterator[Any]) -> EncoderState:
        """Learn from the training split alone.

        Args:
            batches: Arrow record batches of bounded size, in an order that the files alone decide. Need not be
                exhausted, nor should all of them be held at once.

        Raises:
            DataError: rows that cannot be learnt from. Any other exception is a defect of the encoder.
        """

    def __init__(self, spec: Any, fitted: EncoderState) -> None: ...

    def encode(self, batch: Any) -> Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]]:
        """A row of each column for each of the batch's, as (rows, *column.shape) of the column's dtype; under a
        `TokenShape` a flat array of whole numbers in [0, vocab_size) for each row.

        A row's bytes may not depend on the rows beside it. Called by one thread at a time.

        Raises:
            DataError: rows that cannot be encoded. Any other exception is a defect of the encoder.
        """


class EncoderMetadata(Protocol):
    """What an encoder may bring besides, for evaluation. Each may be absent."""

    target: str
    """The source's column that is predicted: models of another encoder of the same column are compared with it.

    Absent: only with those of this encoder.
    """
    token_sizes_bytes: Sequence[int]
    """Bytes of the text that each token stands for, by token id: tokens are judged in bits a byte, not a token."""


class CustomEncoderFacts(Frozen):
    """`FittedState.statistics` of an encoder of the user's own: all that is known of its rows without its code."""

    shape: DataShape
    """Of a `TokenShape`, markers are counted in."""
    fitted: Json = None
    """`EncoderState.state`."""
    target: str | None = None
    """As in `EncoderMetadata`."""
    token_sizes_bytes: tuple[int, ...] | None = None
    """By token id as stored: markers stand for no byte."""

    def with_markers(self) -> Self:
        """The encoder's own numbers as they are in shards, where Headway's markers come first."""
        if not isinstance(self.shape, TokenShape):
            return self
        sizes = self.token_sizes_bytes
        return self.model_copy(
            update={
                "shape": self.shape.model_copy(update={"vocab_size": self.shape.vocab_size + NUM_MARKERS}),
                "token_sizes_bytes": None if sizes is None else (*([0] * NUM_MARKERS), *sizes),
            }
        )


def columns_of(shape: DataShape) -> tuple[PayloadColumn, ...]:
    """The columns that `encode` returns for a shape; none of a `TokenShape`."""
    label = PayloadColumn(name=LABEL, dtype="int32" if num_classes_of(shape) else "float32", shape=(1,))
    match shape:
        case TokenShape():
            return ()
        case ImageShape():
            sides = (shape.channels, shape.height, shape.width)
            return (PayloadColumn(name="image", dtype="uint8", shape=sides), label)
        case CustomShape():
            return (*shape.columns, label)
        case TabularShape() | TabularNumberShape():
            numeric = PayloadColumn(name="numeric", dtype="float32", shape=(shape.num_numeric,))
            categorical = PayloadColumn(name="categorical", dtype="int32", shape=(len(shape.cardinalities),))
            return (*(column for column in (numeric, categorical) if column.shape[0]), label)


def num_classes_of(shape: DataShape) -> int:
    """Classes to predict; 0 where it is a number, or a token."""
    return 0 if isinstance(shape, TokenShape | TabularNumberShape) else shape.num_classes
