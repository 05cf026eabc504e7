"""Which keys of a pipeline file a measurement may set, and within which bounds: none of them moves a bit."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from headway.data_contracts.store.documents import Frozen
from headway.tasks.tuning.choice import Settings

RANK_KEYS = ("launch.nodes", "launch.ranks_per_node")
INTERVAL_KEYS = ("training.checkpoints.every_steps", "training.checkpoints.every_s")


class TakenSettings(Frozen):
    """By dotted name; a key that is not there stays as it was."""

    # Strict: a half of a rank, or a number that is written as text, is nothing that was measured.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True, validate_by_alias=True)

    nodes: int = Field(default=1, alias=RANK_KEYS[0], ge=1, le=1024)
    ranks_per_node: int = Field(default=1, alias=RANK_KEYS[1], ge=1, le=1024)
    bucket_bytes: int = Field(default=4096, alias="training.bucket_bytes", ge=4096, le=1 << 30)
    prefetch_threads: int = Field(default=1, alias="launch.loader.prefetch_threads", ge=1, le=64)
    prefetch_bytes: int = Field(default=1, alias="launch.loader.prefetch_bytes", ge=1 << 20, le=4 << 30)
    every_steps: int | None = Field(default=None, alias=INTERVAL_KEYS[0], ge=1, le=10**9)
    every_s: float | None = Field(default=None, alias=INTERVAL_KEYS[1], gt=0, le=1e7)


def _bounded(settings: Any) -> Any:
    TakenSettings.model_validate(settings)
    return settings


Taken = Annotated[Settings, BeforeValidator(_bounded)]
