"""How rows of the source become rows of the shards: one configuration for each kind of encoder."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, model_validator

from headway.data_contracts.store.documents import Frozen

RANGE: Final = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")

SequenceTokens = Annotated[
    int, Field(ge=1, le=1 << 17, description="Tokens a sequence predicts; a row stores one more.")
]
ClassColumn = Annotated[
    str, Field(min_length=1, description="Column of the class to predict; its values become numbers from 0, in order.")
]


class BytePairSpec(Frozen):
    """Byte-level byte-pair encoding of a text column into packed sequences of uint16 tokens."""

    kind: Literal["byte-pair"] = "byte-pair"
    column: str = Field(default="text", min_length=1, description="Column of the text (string or binary).")
    vocab_size: int = Field(
        default=2048,
        ge=258,
        le=65536,
        description="Tokens in the vocabulary, with 256 bytes and 2 markers; at most 65536, to fit 16 bits.",
    )
    sequence_tokens: SequenceTokens = 256
    fit_mb: int = Field(
        default=128,
        ge=1,
        description="Megabytes (10^6) of text that the vocabulary is fitted on, at most: documents drawn by hash. "
        "They are held in memory.",
    )

    @property
    def fitting(self) -> dict[str, Any]:
        """What decides the fitted state: another sequence length is no reason to fit again."""
        return self.model_dump(mode="json", exclude={"sequence_tokens"})


class TokenIdsSpec(Frozen):
    """Tokens that the source holds already, packed into sequences; ids are stored 2 higher, above the markers."""

    kind: Literal["token-ids"] = "token-ids"
    column: str = Field(
        default="tokens", min_length=1, description="List column of whole numbers, one list a document."
    )
    vocab_size: int = Field(ge=1, le=(1 << 31) - 2, description="Ids of the source lie in [0, vocab_size).")
    sequence_tokens: SequenceTokens = 256

    @property
    def fitting(self) -> dict[str, Any]:
        """Nothing is learnt; a state fitted for other ids is still another."""
        return self.model_dump(mode="json", exclude={"sequence_tokens"})


class TabularEncoderSpec(Frozen):
    """Columns of numbers and of categories, as a float32 and an int32 block, and a column to predict."""

    kind: Literal["tabular"] = "tabular"
    numeric: tuple[str, ...] = Field(default=(), description="Columns of numbers, in the order of the block.")
    categorical: tuple[str, ...] = Field(
        default=(), description="Columns of whole numbers, booleans or texts; a value unknown to training becomes 0."
    )
    times: tuple[str, ...] = Field(
        default=(),
        exclude_if=lambda times: not times,
        description="Columns of dates or times. Each joins the block of numbers as how far through the training rows "
        "it is, and as sine and cosine of the minute of the day, the weekday and the day of the year.",
    )
    label: str | None = Field(default=None, min_length=1, description="Column to predict, if there is one.")
    label_kind: Literal["class", "number"] = Field(
        default="class", description="`class`: numbered from 0 in order of value; `number`: stored as it is (float32)."
    )
    standardise: bool = Field(
        default=True, description="Shift and scale each number to mean 0 and deviation 1 over the training split."
    )
    missing: Literal["refuse", "mean"] = Field(
        default="refuse",
        description="What a null or NaN among the numbers becomes: an error, or the training mean. A missing time "
        "becomes an error, or 0 in each of its parts: neither early nor late, and no hour, weekday or season.",
    )
    max_categories: int = Field(
        default=65536, ge=1, le=1 << 24, description="Values of a column that keep a number; the rarest lose theirs."
    )

    @model_validator(mode="after")
    def _check(self) -> TabularEncoderSpec:
        if not self.numeric and not self.categorical and not self.times:
            raise ValueError("give numeric or categorical columns, or times")
        fields = {
            "numeric": self.numeric,
            "categorical": self.categorical,
            "times": self.times,
            "label": (self.label,) if self.label else (),
        }
        places: dict[str, list[str]] = {}
        for field, names in fields.items():
            for name in names:
                places.setdefault(name, []).append(f"`{field}`")
        twice = [f"`{name}` in {' and in '.join(named)}" for name, named in places.items() if len(named) > 1]
        if twice:
            raise ValueError(f"a column goes to one place: there is {'; '.join(twice)}. Take it out of all but one")
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that a model reads."""
        return (*self.numeric, *self.times, *self.categorical)

    @property
    def predicts_class(self) -> bool:
        return self.label is not None and self.label_kind == "class"

    @property
    def predicts_number(self) -> bool:
        return self.label is not None and self.label_kind == "number"

    @property
    def fitting(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"standardise", "missing"})


class ImageEncoderSpec(Frozen):
    """Pictures as uint8 blocks, and the class to predict."""

    kind: Literal["image"] = "image"
    pixels: tuple[str, ...] = Field(
        min_length=1,
        description="One column that holds the whole picture (binary or list), or a column for each pixel; "
        "`pixel_{0..63}` stands for 64 columns.",
    )
    shape: tuple[int, ...] = Field(
        min_length=2, max_length=3, description="[height, width] of a picture, or [channels, height, width]."
    )
    max_value: float = Field(default=255.0, gt=0, description="The source's brightest value, stored as 255.")
    label: ClassColumn = "label"

    @model_validator(mode="after")
    def _check(self) -> ImageEncoderSpec:
        if min(self.shape) < 1:
            raise ValueError("shape has a side below 1")
        if any(name.count("{") + name.count("}") and not RANGE.search(name) for name in self.pixels):
            raise ValueError("a range of columns is written like pixel_{0..63}")
        # Before they are written out.
        if sum(map(_num_columns, self.pixels)) > self.num_values:
            raise ValueError(f"pixels name more columns than the {self.num_values:,} that shape asks for")
        names = self.columns
        if len(names) not in (1, self.num_values) or len(set(names)) != len(names):
            raise ValueError(f"pixels name {len(set(names))} columns, shape asks for 1 or {self.num_values}")
        return self

    @property
    def payload_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self.shape if len(self.shape) == 3 else (1, *self.shape)

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def columns(self) -> tuple[str, ...]:
        """The pixels' columns, ranges written out."""
        return tuple(name for written in self.pixels for name in _written_out(written))

    @property
    def fitting(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class CustomEncoderSpec(Frozen):
    """An encoder of the user's own, as `custom_encoder.py` has it; its code is frozen with its state."""

    kind: Literal["own"] = "own"
    name: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="The encoder: package.module:Class.")
    options: dict[str, Any] = Field(default_factory=dict, description="The encoder's own fields.")

    @property
    def fitting(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def _num_columns(written: str) -> int:
    found = RANGE.search(written)
    return 1 if found is None else max(0, int(found[2]) - int(found[1]) + 1)


def _written_out(written: str) -> list[str]:
    found = RANGE.search(written)
    if found is None:
        return [written]
    first, last = int(found[1]), int(found[2])
    return [f"{written[: found.start()]}{number}{written[found.end() :]}" for number in range(first, last + 1)]


EncoderSpec = Annotated[
    BytePairSpec | TokenIdsSpec | TabularEncoderSpec | ImageEncoderSpec | CustomEncoderSpec, Field(discriminator="kind")
]
TokenSpec = BytePairSpec | TokenIdsSpec
ENCODER_SPEC: TypeAdapter[BytePairSpec | TokenIdsSpec | TabularEncoderSpec | ImageEncoderSpec | CustomEncoderSpec] = (
    TypeAdapter(EncoderSpec)
)
