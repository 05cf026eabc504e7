"""What to make of the source files: the configuration of stage *shard*."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from headway.data_contracts.store.documents import Frozen
from headway.training.config.encoder_specs import (
    BytePairSpec,
    EncoderSpec,
    ImageEncoderSpec,
    TabularEncoderSpec,
    TokenIdsSpec,
)
from headway.training.config.fold import Fold
from headway.training.config.given_split import GivenSplit

__all__ = [
    "BytePairSpec",
    "EncoderSpec",
    "ImageEncoderSpec",
    "ShardSpec",
    "SkewLimits",
    "TabularEncoderSpec",
    "TokenIdsSpec",
]

TRAIN: Final = "train"
HELDOUT: Final = "heldout"
VALIDATION: Final = "validation"
SPLITS: Final = (TRAIN, HELDOUT)
"""Of every pipeline; `ShardSpec.splits` has the third as well."""
EXECUTION: Final = ("memory_mb", "group_tasks")
"""Fields that say how the work is done, and never show in what it makes."""
MIN_MEMORY_MB: Final = 8
MAX_VALIDATION_FRACTION: Final = 0.5
Codec = Literal["none", "lz4", "zstd"]


class SkewLimits(Frozen):
    """How uneven the groups of a split may be; a figure left out is not evaluated."""

    max_rows_ratio: float | None = Field(default=None, ge=1, description="Rows of the largest group over the mean.")
    max_bytes_ratio: float | None = Field(
        default=None, ge=1, description="Shard bytes of the largest group over the mean."
    )
    max_label_difference: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="How far a class's share of a shard may lie from its share of the split; of 1,024 classes at most.",
    )
    min_rows: int = Field(
        default=1000, ge=1, description="Shares of a shard with fewer rows are left to chance, and not checked."
    )


class ShardSpec(Frozen):
    """How files become shards."""

    encoder: EncoderSpec = Field(default_factory=BytePairSpec, description="How a row of the source becomes rows.")
    group_by: Literal["hash", "file", "folder"] = Field(
        default="hash",
        description="Which files make a group: the hash of their path into num_groups, each file alone, or a folder's. "
        "A changed file re-encodes its own group alone.",
    )
    num_groups: int = Field(default=8, ge=1, le=65536, description="Groups of files, where group_by is `hash`.")
    heldout_fraction: float = Field(
        default=0.05, gt=0, lt=1, description="Share of the data kept from training, for evaluation."
    )
    validation_fraction: float = Field(
        default=0.0,
        ge=0,
        le=MAX_VALIDATION_FRACTION,
        exclude_if=lambda fraction: fraction == 0,
        description="Share of the data that neither trains nor evaluates: `training.validation` looks at it while "
        "the run trains.",
    )
    split_by: Literal["file", "row", "key", "given"] = Field(
        default="file",
        description="What is held out whole, by hash: files (by path), rows (by path and number), or all rows of one "
        "split_key. `given`: as `split` says, which sets it.",
    )
    split: GivenSplit | None = Field(
        default=None,
        description="The split itself, in place of a share by hash: `{column: part, train: [train], heldout: [test]}`, "
        "or globs of files, `{heldout: [2026/**]}`.",
    )
    split_key: str | None = Field(
        default=None, min_length=1, description="Column whose value decides the split, where split_by is `key`."
    )
    split_salt: str = Field(
        default="headway", description="Changes what is held out; nothing moves while it stays the same."
    )
    fold: SkipJsonSchema[Fold | None] = Field(
        default=None,
        exclude_if=lambda fold: fold is None,
        description="What is held out in place of a share: a part of cross-validation. No pipeline file says it; "
        "`evaluation.folds` makes a spec of each.",
    )
    rows_per_row_group: int = Field(default=4096, ge=1, le=1 << 20, description="Rows in a Parquet row group, at most.")
    rows_per_shard: int = Field(default=1 << 20, ge=1, description="Rows in a shard file, at most.")
    shard_mb: int = Field(default=64, ge=1, le=1024, description="Megabytes (10^6) of rows in a shard file, at most.")
    codec: Codec = Field(
        default="none",
        description="`none`: hot, mapped where it lies; `lz4` or `zstd`: cold, smaller, decoded once into a cache.",
    )
    seed: int = Field(default=0, ge=0, description="Orders files and rows inside their group.")
    fit: int = Field(
        default=0,
        ge=0,
        description="Raise it to fit tokenizer, statistics and classes anew, on today's training split; `headway plan` "
        "says what that undoes.",
    )
    skew: SkewLimits = Field(default_factory=SkewLimits, description="How uneven groups may be.")
    memory_mb: int = Field(
        default=512,
        ge=MIN_MEMORY_MB,
        description="Megabytes (10^6) of rows held at once, over all threads; more is spilled to scratch. No bit of "
        "the shards depends on it.",
    )

    group_tasks: bool = Field(
        default=False,
        description="Make each group a Prefect task of its own, so that the flow's task runner can share them out; as "
        "many at once as there are cores, if memory_mb, which they share, holds a shard for each.",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_split_is_given(cls, fields: Any) -> Any:
        return {"split_by": "given", **fields} if isinstance(fields, dict) and fields.get("split") else fields

    @model_validator(mode="after")
    def _check(self) -> ShardSpec:
        if (self.split_by == "given") != (self.split is not None):
            raise ValueError("split goes with `split_by: given`, and the other way round")
        if (self.split_by == "key") != (self.split_key is not None):
            raise ValueError("split_key goes with `split_by: key`, and the other way round")
        if self.validation_fraction and self.split is not None:
            raise ValueError("validation_fraction is for a split by hash; list what validates in split.validation")
        if self.fold is not None and self.split is not None:
            raise ValueError("folds are by hash, and `split` gives the rows that are held out")
        if self.heldout_fraction + self.validation_fraction >= 1:
            raise ValueError("heldout_fraction and validation_fraction together leave nothing to train on")
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """All that may show in the manifest."""
        # 0 is left out: a manifest without the field says the same.
        return self.model_dump(mode="json", exclude={*EXECUTION, *self._ungiven, *(() if self.fit else ("fit",))})

    @property
    def group_identity(self) -> dict[str, Any]:
        """All that may show in the bytes of a group's shards."""
        return self.model_dump(mode="json", exclude={*EXECUTION, *self._ungiven, "skew", "fit"})

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that rows fall into."""
        validates = self.validation_fraction > 0 if self.split is None else bool(self.split.validation)
        return (*SPLITS, VALIDATION) if validates else SPLITS

    def share_of(self, split: str) -> float:
        """Of all rows, those in a split; of a given split, about."""
        validates = self.validation_fraction
        if self.split is not None and self.split.validation:
            validates = min(self.heldout_fraction, (1 - self.heldout_fraction) / 2)  # nobody said how many
        held_out = self.heldout_fraction if self.fold is None else 1 / self.fold.of
        shares = {HELDOUT: held_out, VALIDATION: validates}
        return shares.get(split, 1 - sum(shares.values()))

    @property
    def splitting(self) -> dict[str, Any]:
        """What decides which rows train."""
        fields = {"heldout_fraction", "validation_fraction", "split_by", "split_key", "split_salt", "split", "fold"}
        return self.model_dump(mode="json", include=fields - self._ungiven)

    @property
    def _ungiven(self) -> set[str]:
        # A manifest without the field says the same.
        return set() if self.split is not None else {"split"}

    @property
    def whole_fraction(self) -> float:
        """The hashes of what is held out lie below this fraction of all of them."""
        return self.heldout_fraction if self.split is None else 1.0
