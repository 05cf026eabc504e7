"""What to make of the source files: the configuration of stage *shard*."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from data_contracts.documents import Frozen

TRAIN: Final = "train"
HELDOUT: Final = "heldout"
SPLITS: Final = (TRAIN, HELDOUT)


class BytePairSpec(Frozen):
    """Byte-level byte-pair encoding into packed sequences of uint16 tokens."""

    kind: Literal["byte-pair"] = "byte-pair"
    vocab_size: int = Field(
        default=2048,
        ge=258,
        le=65536,
        description="Tokens in the vocabulary, with 256 bytes and 2 markers; at most 65536, to fit 16 bits.",
    )
    sequence_tokens: int = Field(
        default=256, ge=1, le=1 << 17, description="Tokens a sequence predicts; a row stores one more."
    )

    @property
    def fitting(self) -> dict[str, str | int]:
        """What decides the fitted state: another sequence length is no reason to fit again."""
        return {"kind": self.kind, "vocab_size": self.vocab_size}


class ShardSpec(Frozen):
    """How files become shards. Every field is part of the shards' identity."""

    encoder: BytePairSpec = Field(default_factory=BytePairSpec, description="How a file becomes rows.")
    num_groups: int = Field(
        default=8, ge=1, le=65536, description="Groups of files; a changed file re-encodes its own group alone."
    )
    heldout_fraction: float = Field(
        default=0.05, gt=0, lt=1, description="Share of the files kept from training, for evaluation."
    )
    split_salt: str = Field(
        default="headway", description="Changes which files are held out; a file never moves while it stays the same."
    )
    rows_per_row_group: int = Field(default=4096, ge=1, le=1 << 20, description="Rows in a Parquet row group.")
    rows_per_shard: int = Field(default=65536, ge=1, description="Rows in a shard file.")
    seed: int = Field(default=0, ge=0, description="Orders files and rows inside their group.")
