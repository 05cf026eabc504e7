"""From the sample order to the batches of a rank's replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.config import TrainingSpec
from training.data.loader import ShardReader
from training.data.order import sample_rows
from training.seeds import derive

PROOF_SEQUENCES = 4


def step_rows(spec: TrainingSpec, num_rows: int, step: int) -> NDArray[np.int64]:
    """Rows of the global batch of `step`, counted from 0, shape (replicas, micro batch). No worker has a say in it."""
    rows = sample_rows(
        num_rows,
        seed=derive(spec.seed, "order"),
        first_position=step * spec.global_batch_sequences,
        count=spec.global_batch_sequences,
    )
    return rows.reshape(spec.num_replicas, spec.micro_batch_sequences)


def to_tensors(columns: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Arrays as tensors; integers widen to int64, which is what indexing wants."""
    return {
        name: torch.from_numpy(values.astype(np.int64) if values.dtype.kind in "iu" else values).to(device)
        for name, values in columns.items()
    }


def rank_batches(
    reader: ShardReader, spec: TrainingSpec, *, rank: int, replicas_per_rank: int, device: torch.device
) -> Callable[[int], list[dict[str, Tensor]]]:
    """A function from step to the batches of this rank's replicas."""

    def produce(step: int) -> list[dict[str, Tensor]]:
        own = step_rows(spec, reader.num_rows, step)[rank * replicas_per_rank : (rank + 1) * replicas_per_rank]
        return [to_tensors(reader.gather(rows), device) for rows in own]

    return produce


def proof_batch(reader: ShardReader, spec: TrainingSpec, device: torch.device) -> dict[str, Tensor]:
    """The first rows of the sample order, the same for every checkpoint of a run."""
    rows = step_rows(spec, reader.num_rows, 0).reshape(-1)[:PROOF_SEQUENCES]
    return to_tensors(reader.gather(rows), device)
