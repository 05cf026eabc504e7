"""`headway hold` and `headway release`: no door retrains a pipeline that a person holds; on record, with who and why.

`refs/holds/<pipeline>` is appended to, never rewritten; its newest entry counts.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import BaseModel

from data_contracts import refs
from data_contracts.documents import Document
from data_contracts.errors import ConfigError, IntegrityError
from data_contracts.publication import Workspace
from flows.commands import hold_command, release_command
from flows.environment import project_folder
from flows.pipeline_spec import NAME_PATTERN, find_pipeline_file, load_pipeline
from tasks.identity import who

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
    """ISO 8601, in UTC; empty, as `who`, where the record cannot be read."""

    def __str__(self) -> str:
        return f"{self.who} holds {self.pipeline} since {self.since}: {self.why}" if self.since else self.why


def standing_hold(workspace: Workspace, pipeline: str) -> Hold | None:
    """None where nobody holds it.

    Raises:
        IntegrityError: the newest record is damaged; to guess what a person decided would be worse than to stop.
    """
    entry = refs.current(workspace, _ref(pipeline))
    if entry is None or workspace.load(entry.target, HoldDecision).action == "release":
        return None
    return Hold(pipeline=pipeline, who=str(entry.detail.get("who", "somebody")), why=entry.reason, since=entry.moved_at)


def shown_hold(workspace: Workspace, pipeline: str) -> Hold | None:
    """For who only looks: what damage stops is held as well, by nobody knows whom."""
    try:
        return standing_hold(workspace, pipeline)
    except IntegrityError as error:
        anew = hold_command(pipeline, workspace.uri)
        why = f"its record is damaged, so no retrain begins; `{anew}` writes it anew ({error.where})"
        return Hold(pipeline=pipeline, who="", why=why, since="")


def hold(workspace_uri: str, pipeline: str, *, why: str, name: str = "") -> str:
    """From now on no retrain of it begins, by whatever door. Who holds what is held already gives it another reason.

    Args:
        pipeline: its file; empty where its name is given.

    Raises:
        ConfigError: no such pipeline, or no reason.
        RefConflict: another decision came first; nothing was recorded.
    """
    held = name_of(pipeline, name)
    before = shown_hold(Workspace(workspace_uri), held)
    _record(workspace_uri, held, "hold", why)
    lifts = release_command(pipeline, workspace_uri, name=name)
    said = f"{held} is held: no retrain begins until `{lifts}`. {NOT_STOPPED}"
    if before is None or not before.since:
        return said
    return (
        f"{said}\nIt was held already, by {before.who} since {before.since}: {before.why}\n"
        "That stays on record; your reason is what everybody is told now, and one release lets it go."
    )


def release(workspace_uri: str, pipeline: str, *, why: str, name: str = "") -> str:
    """Retrains may begin again.

    Args:
        pipeline: its file; empty where its name is given.

    Raises:
        ConfigError: no such pipeline, no reason, or nobody holds it.
        EnvironmentProblem: no workspace, or it cannot be used.
        RefConflict: another decision came first; nothing was recorded.
    """
    held = name_of(pipeline, name)
    if shown_hold(Workspace.existing(workspace_uri), held) is None:
        raise ConfigError("nobody holds this pipeline.", where=held)
    _record(workspace_uri, held, "release", why)
    return f"{held} is let go: its schedules, triggers and windows count again, and nothing is started now."


def _record(workspace_uri: str, pipeline: str, action: Literal["hold", "release"], why: str) -> None:
    if not why.strip():
        raise ConfigError("a decision needs its reason.", where="--why", advice="Whoever is on call will read it.")
    workspace, ref = Workspace.create(workspace_uri), _ref(pipeline)
    decision = workspace.publish_document(HoldDecision(pipeline=pipeline, action=action))
    # By its number, since a decision is made anew also where the last one cannot be read.
    before = refs.newest_number(workspace, ref)
    refs.move(workspace, ref, decision, expected=before, reason=why.strip(), detail={"who": who()})


def name_of(pipeline: str, name: str = "") -> str:
    """The name in a pipeline's file, or the one that is given because there is no file to read it from.

    Raises:
        ConfigError: the file, none or both are given, or no pipeline can have such a name.
    """
    if bool(pipeline) == bool(name):
        raise ConfigError("say which pipeline: by its file, or with --name where that cannot be read.")
    if not name:
        return load_pipeline(find_pipeline_file(pipeline, project_folder())).pipeline
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(f"no pipeline is named {name!r}.", where="--name", advice="Names are lower case and dashes.")
    return name


def _ref(pipeline: str) -> str:
    return f"holds/{pipeline}"
