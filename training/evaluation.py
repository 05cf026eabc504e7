"""Evaluation: what a checkpoint makes of held-out documents, the same bits on any number of ranks.

Rows are cut into blocks by the manifest alone; ranks share the blocks out and need not meet. Each block's loss is
summed by document; `merge` adds the blocks up exactly (`math.fsum`), in an order that no rank decides.

As a rank: `python -m training.evaluation --workspace URI --request FILE --out DIR`. Importing this costs no torch.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.documents import FittedState, Frozen, Link, RunSpec, Sha256, ShardManifest
from data_contracts.errors import ConfigError, IntegrityError, TrainingFailed
from data_contracts.publication import Workspace

if TYPE_CHECKING:
    from torch import nn

    from training.checkpoint.verify import Verified
    from training.data.loader import ShardReader
    from training.launch.rank import Rank
    from training.recipes.protocol import Recipe

BLOCK_ROWS = 16
Losses = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]
"""From rows by column to nats of every target, (rows, context), 0 at padding."""


class EvaluationRequest(Frozen):
    checkpoint: str
    """The checkpoint's folder."""
    run: Sha256
    manifest: Sha256
    """The shards to evaluate on, encoded by the same fitted state as the run's own."""
    split: str = "heldout"
    baselines: bool = True
    """Also score a bigram model, fitted on the manifest's training split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentScores:
    """Per document, sorted by path: what the model paid and for how many bytes."""

    documents: tuple[str, ...]
    nats: NDArray[np.float64]
    num_tokens: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    baselines: dict[str, float]
    """Bits per byte of other models on the same documents."""

    @property
    def bits(self) -> NDArray[np.float64]:
        return self.nats / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        return math.fsum(self.bits.tolist()) / int(self.size_bytes.sum())


def merge(folder: Path, num_ranks: int) -> DocumentScores:
    """Put the ranks' parts together.

    Raises:
        TrainingFailed: a rank's part is missing, or blocks are missing or doubled.
    """
    parts = [_read_part(folder / part_name(rank)) for rank in range(num_ranks)]
    blocks = sorted((block for part in parts for block in part["blocks"]), key=lambda block: int(block["block"]))
    if [block["block"] for block in blocks] != list(range(parts[0]["num_blocks"])):
        raise TrainingFailed("the ranks' parts do not make up the whole split.", where=str(folder))
    scores = _by_document(blocks, "nats")
    documents = tuple(sorted(scores))
    sizes = {path: sum(block["documents"][path]["bytes"] for block in blocks if path in block["documents"]) for path in documents}
    tokens = {path: sum(block["documents"][path]["tokens"] for block in blocks if path in block["documents"]) for path in documents}
    return DocumentScores(
        documents=documents,
        nats=np.array([scores[path] for path in documents]),
        num_tokens=np.array([tokens[path] for path in documents]),
        size_bytes=np.array([sizes[path] for path in documents]),
        baselines={},
    )
