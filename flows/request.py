"""What a retrain is asked with: one model, so that the Prefect form, the CLI and a schedule ask alike."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from flows.environment import default_workspace


class RetrainRequest(BaseModel):
    """Retrain one model from its pipeline file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pipeline: str = Field(
        title="Pipeline",
        description="A pipeline file, or the name of one in the folder deployments.",
        examples=["stdlib-lm"],
    )
    workspace: str = Field(
        default_factory=default_workspace,
        title="Workspace",
        description="Folder or URI that holds data, checkpoints and models. Left empty: the worker's "
        "HEADWAY_WORKSPACE, or the folder workspace of the project.",
    )
    may_promote: bool = Field(
        default=True,
        title="May become champion",
        description="Off: train, evaluate and register, but leave the champion as it is.",
    )
    note: str = Field(default="", title="Note", description="Why this retrain was asked for; kept in the ledger.")

    @field_validator("workspace")
    @classmethod
    def _left_out(cls, value: str) -> str:
        # A form sends an emptied field as an empty text.
        return value or default_workspace()
