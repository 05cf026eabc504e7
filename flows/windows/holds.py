"""`headway hold` and `headway release`: a held pipeline is retrained by no door; on record, with who and why."""

from __future__ import annotations

import re
import time
from typing import Literal

from headway.data_contracts.store import refs
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import NAME_PATTERN, find_pipeline_file, load_pipeline
from headway.flows.console.commands import hold_command, release_command
from headway.flows.console.environment import project_folder
from headway.tasks.core.identity import current_user
from headway.tasks.ownership.pipeline_history import Hold, PipelineEvent, append, iso_utc, read, ref_of

NOTHING_ON_RECORD = "Nothing of that name is on record in this workspace: check the name, and --workspace."
NOT_STOPPED = "A running retrain is not stopped; `headway stop` does that."


def current_hold(workspace: Workspace, pipeline: str) -> Hold | None:
    """None where nobody holds it.

    Raises:
        IntegrityError: the newest record is damaged; to guess what a person decided would be worse than to stop.
    """
    return read(workspace, pipeline).hold


def shown_hold(workspace: Workspace, pipeline: str) -> Hold | None:
    """For who only looks: what damage stops is held as well, by nobody knows whom."""
    try:
        return current_hold(workspace, pipeline)
    except IntegrityError as error:
        command = hold_command(pipeline, workspace.uri)
        why = f"its record is damaged, so no retrain begins; `{command}` writes it anew ({error.where})"
        return Hold(pipeline=pipeline, by="", why=why, since="")


def hold(workspace_uri: str, pipeline: str, *, why: str, name: str = "") -> str:
    """From now on no retrain of it begins, by whatever door. Who holds what is held already gives it another reason.

    Args:
        pipeline: its file; empty where its name is given.

    Raises:
        ConfigError: no such pipeline, or no reason.
    """
    held = name_of(workspace_uri, pipeline, name)
    before = shown_hold(Workspace(workspace_uri), held)
    # By its name alone a pipeline can be held before its first retrain, or by a slip of the pen.
    is_unknown = bool(name) and not _is_known(Workspace(workspace_uri), name)
    _record(workspace_uri, held, "held", why)
    lifts = release_command(pipeline, workspace_uri, name=name)
    message = f"{held} is held: no retrain begins until `{lifts}`. {NOT_STOPPED}"
    if is_unknown:
        message = f"{message}\n{NOTHING_ON_RECORD}"
    if before is None or not before.since:
        return message
    return (
        f"{message}\nIt was held already, by {before.by} since {before.since}: {before.why}\n"
        "That stays on record; your reason is now shown to everybody, and one release ends it."
    )


def release(workspace_uri: str, pipeline: str, *, why: str, name: str = "") -> str:
    """Retrains may begin again.

    Args:
        pipeline: its file; empty where its name is given.

    Raises:
        ConfigError: no such pipeline, no reason, or nobody holds it.
        EnvironmentProblem: no workspace, or it cannot be used.
    """
    held = name_of(workspace_uri, pipeline, name)
    if shown_hold(Workspace.existing(workspace_uri), held) is None:
        raise ConfigError("nobody holds this pipeline.", where=held)
    _record(workspace_uri, held, "released", why)
    return f"{held} is let go: its schedules, triggers and windows count again, and nothing is started now."


def _record(workspace_uri: str, pipeline: str, action: Literal["held", "released"], why: str) -> None:
    if not why.strip():
        raise ConfigError("a decision needs its reason.", where="--why", advice="It is shown to who is on call.")

    def decided(before: PipelineEvent) -> PipelineEvent:
        hold = Hold(pipeline=pipeline, by=current_user(), why=why.strip(), since=iso_utc(time.time()))
        return before.model_copy(update={"event": action, "hold": hold if action == "held" else None})

    # A decision is made anew also where the last one cannot be read.
    append(Workspace.create(workspace_uri), pipeline, decided, why=why.strip(), is_repair=True)


def name_of(workspace_uri: str, pipeline: str, name: str = "") -> str:
    """The name in a pipeline's file, or of one that the workspace knows, or the one that is given for lack of both.

    Raises:
        ConfigError: the file, none or both are given, or no pipeline can have such a name.
    """
    if bool(pipeline) == bool(name):
        raise ConfigError("say which pipeline: by its file, or with --name where that cannot be read.")
    if not name:
        try:
            path = find_pipeline_file(pipeline, project_folder())
        except ConfigError:
            if re.fullmatch(NAME_PATTERN, pipeline) and _is_known(Workspace(workspace_uri), pipeline):
                return pipeline
            raise
        return load_pipeline(path).pipeline
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(f"no pipeline is named {name!r}.", where="--name", advice="Names are lower case and dashes.")
    return name


def _is_known(workspace: Workspace, pipeline: str) -> bool:
    """Whether anything ever happened to it, so that its name is not misspelt."""
    return refs.newest_number(workspace, ref_of(pipeline)) > 0
