"""What a checkpoint is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from headway.data_contracts.store.documents import DeviceFingerprint, Link
from headway.training.checkpoint.pieces import State


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What a checkpoint says: the same on every rank, but for the pieces it holds of `tensors`."""

    run: Link
    step: int
    num_samples: int
    tensors: State
    """Those that may change as soon as `Checkpointer.save` has returned: weights and buffers."""
    scalars: Mapping[str, float | int | str]
    proof_batch: Mapping[str, Tensor]
    proof_loss: float
    fingerprint: DeviceFingerprint
    moments: State = field(default_factory=dict)
    """More of them, which nothing changes before `Checkpointer.finish_staging` has returned: the optimizer's."""
