"""`headway promote` and `headway rollback` as one flow, for the form of a Prefect deployment."""

from __future__ import annotations

from typing import Literal, Self

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field, model_validator

from flows.champion_moves import MoveReport, promote, rollback
from flows.environment import default_workspace


class MoveRequest(BaseModel):
    """Move the champion of one model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(title="Model", description="Name of a registered model.", min_length=1)
    move: Literal["rollback", "promote"] = Field(
        default="rollback",
        title="Move",
        description="rollback brings an earlier champion back; promote makes a version champion that never was.",
    )
    version: str = Field(
        default="",
        title="Version",
        description="Its number. Left empty, a rollback goes to the champion before today's; a promotion needs it.",
    )
    why: str = Field(title="Why", description="Kept in the history.", min_length=1)
    override: str = Field(
        default="",
        title="Override",
        description="Promote it against the policy, for this reason; kept in the history.",
    )
    workspace: str = Field(
        default="", title="Workspace", description="Left empty: the worker's HEADWAY_WORKSPACE, or its project's."
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.move == "promote" and not self.version:
            raise ValueError("a promotion needs the version to promote")
        if self.move == "rollback" and self.override:
            raise ValueError("a rollback asks no policy: there is nothing to override")
        return self


@flow(name="move-champion", flow_run_name="{request.move} {request.model}", persist_result=False)
def move_champion(request: MoveRequest) -> MoveReport:
    """Move the champion of one model, verified first.

    Args:
        request: Which model, where to, and why.
    """
    workspace = request.workspace or default_workspace()
    if request.move == "rollback":
        return rollback(workspace, request.model, why=request.why, to=request.version)
    return promote(workspace, request.model, request.version, why=request.why, override=request.override)
