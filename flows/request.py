"""What a retrain is asked with: one model, so that the Prefect form, the CLI and a schedule ask alike."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, Field


def default_workspace() -> str:
    return os.environ.get("HEADWAY_WORKSPACE", "workspace")


class RetrainRequest(BaseModel):
    """Retrain one model from its pipeline file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pipeline: str = Field(
        title="Pipeline",
        description="Path of a pipeline file, or the name of one in `deployments/`.",
        examples=["stdlib-lm"],
    )
    workspace: str = Field(
        default_factory=default_workspace,
        title="Workspace",
        description="Folder or URI that holds data, checkpoints and models.",
    )
    may_promote: bool = Field(
        default=True,
        title="May become champion",
        description="Off: train, evaluate and register, but leave the champion as it is.",
    )
    note: str = Field(default="", title="Note", description="Why this retrain was asked for; kept in the ledger.")
