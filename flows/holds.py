"""`headway hold` and `headway release`: no door retrains a pipeline that a person holds; on record, with who and why.

`refs/holds/<pipeline>` is appended to, never rewritten; its newest entry counts.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel

from data_contracts import refs
from data_contracts.documents import Document
from data_contracts.errors import ConfigError
from data_contracts.publication import Workspace
from flows.commands import release_command
from flows.environment import project_folder
from flows.pipeline_spec import find_pipeline_file, load_pipeline
from tasks.decisions import who

NOT_STOPPED = "A run that is going on is not stopped; `headway stop` does that."


class HoldDecision(Document):
    """What a person decided; who, when and why stand in the ref's entry."""

    kind: ClassVar[str] = "hold-decision"
    pipeline: str
    action: Literal["hold", "release"]


class Hold(BaseModel):
    """A pipeline that is held now."""

    pipeline: str
    who: str
    why: str
    since: str
    """ISO 8601, in UTC."""

    def __str__(self) -> str:
        return f"{self.who} holds {self.pipeline} since {self.since}: {self.why}"


def standing_hold(workspace: Workspace, pipeline: str) -> Hold | None:
    """None where nobody holds it.

    Raises:
        IntegrityError: the newest record is damaged; to guess what a person decided would be worse than to stop.
    """
    entry = refs.current(workspace, _ref(pipeline))
    if entry is None or workspace.load(entry.target, HoldDecision).action == "release":
        return None
    return Hold(pipeline=pipeline, who=str(entry.detail.get("who", "somebody")), why=entry.reason, since=entry.moved_at)


def hold(workspace_uri: str, pipeline: str, *, why: str) -> str:
    """From now on no retrain of it begins, by whatever door.

    Raises:
        ConfigError: no such pipeline, or no reason.
        RefConflict: another decision came first; nothing was recorded.
    """
    name = _record(workspace_uri, pipeline, "hold", why)
    return f"{name} is held: no retrain begins until `{release_command(pipeline, workspace_uri)}`. {NOT_STOPPED}"


def release(workspace_uri: str, pipeline: str, *, why: str) -> str:
    """Retrains may begin again.

    Raises:
        ConfigError: no such pipeline, no reason, or nobody holds it.
        RefConflict: another decision came first; nothing was recorded.
    """
    if standing_hold(Workspace(workspace_uri), _name(pipeline)) is None:
        raise ConfigError("nobody holds this pipeline.", where=pipeline)
    name = _record(workspace_uri, pipeline, "release", why)
    return f"{name} is let go: its schedules, triggers and windows count again, and nothing is started now."


def _record(workspace_uri: str, pipeline: str, action: Literal["hold", "release"], why: str) -> str:
    if not why.strip():
        raise ConfigError("a decision needs its reason.", where="--why", advice="Whoever is on call will read it.")
    name = _name(pipeline)
    workspace, ref = Workspace.create(workspace_uri), _ref(name)
    decision = workspace.publish_document(HoldDecision(pipeline=name, action=action))
    refs.move(
        workspace, ref, decision, expected=refs.current(workspace, ref), reason=why.strip(), detail={"who": who()}
    )
    return name


def _name(pipeline: str) -> str:
    return load_pipeline(find_pipeline_file(pipeline, project_folder())).pipeline


def _ref(pipeline: str) -> str:
    return f"holds/{pipeline}"
