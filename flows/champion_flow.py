"""`headway promote`, `refuse` and `rollback` as one flow, for the form of a Prefect deployment."""

from __future__ import annotations

from typing import Literal, Self

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field, model_validator

from headway.flows.act.champion_moves import MoveReport, RefusalReport, promote, refuse, rollback
from headway.flows.console.environment import default_workspace
from headway.flows.prefect_api.champion_event import emit_champion_event


class MoveRequest(BaseModel):
    """Move the champion of one model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(title="Model", description="Name of a registered model.", min_length=1)
    move: Literal["rollback", "promote", "refuse"] = Field(
        default="rollback",
        title="Move",
        description="rollback brings an earlier champion back; promote makes a version champion, and approves of one "
        "that waits for it; refuse says no to that.",
    )
    version: str = Field(
        default="",
        title="Version",
        description="Its number. Left empty, a rollback goes to the champion before today's; the others need it.",
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
    def _is_consistent(self) -> Self:
        if self.move != "rollback" and not self.version:
            raise ValueError(f"to {self.move} needs the version to {self.move}")
        if self.move != "promote" and self.override:
            raise ValueError(f"to {self.move} asks no policy: there is nothing to override")
        return self


@flow(name="move-champion", flow_run_name="{request.move} {request.model}", persist_result=False)
def move_champion(request: MoveRequest) -> MoveReport | RefusalReport:
    """Move the champion of one model, verified first; or say no to a version that would be.

    Args:
        request: Which model, where to, and why.
    """
    workspace = request.workspace or default_workspace()
    if request.move == "refuse":
        return refuse(workspace, request.model, request.version, why=request.why)
    if request.move == "rollback":
        moved = rollback(workspace, request.model, why=request.why, to=request.version)
    else:
        moved = promote(workspace, request.model, request.version, why=request.why, override=request.override)
    emit_champion_event(moved.model, moved.to_version, f"{request.move}: {moved.why}")
    return moved
