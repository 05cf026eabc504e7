"""What a person may type next."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from headway.data_contracts.store.published_files import canonical_uri
from headway.flows.console.environment import default_workspace


def command_name() -> str:
    """`headway`, or the path it was started by where a shell would not find that."""
    started = Path(sys.argv[0])
    found = shutil.which("headway")
    if started.name != "headway" or (found is not None and Path(found).resolve() == started.resolve()):
        return "headway"
    return str(started.relative_to(Path.cwd()) if started.is_relative_to(Path.cwd()) else started)


def workspace_option(workspace: str) -> str:
    """The option that a command needs for a workspace that is not the usual one."""
    is_usual = canonical_uri(workspace) == canonical_uri(default_workspace())
    return "" if is_usual else f" --workspace {shlex.quote(workspace)}"


def retrain_command(pipeline: str, workspace: str, *options: str) -> str:
    """Starts a retrain, and continues one that was stopped."""
    return " ".join([f"{command_name()} retrain {shlex.quote(pipeline)}{workspace_option(workspace)}", *options])


def trials_command(pipeline: str, workspace: str, *options: str) -> str:
    """Tries settings out, and continues where that was stopped."""
    return " ".join([f"{command_name()} trials {shlex.quote(pipeline)}{workspace_option(workspace)}", *options])


def tune_command(pipeline: str, workspace: str, *options: str) -> str:
    """Measures what moves no bit; one that was stopped begins again."""
    return " ".join([f"{command_name()} tune {shlex.quote(pipeline)}{workspace_option(workspace)}", *options])


def resume_command(run: str, pipeline: str, workspace: str, *options: str) -> str:
    """Goes on with a run."""
    command = f"{command_name()} resume {run} --pipeline {shlex.quote(pipeline)}{workspace_option(workspace)}"
    return " ".join([command, *options])


def hold_command(name: str, workspace: str) -> str:
    """Holds a pipeline, of which only the name is known."""
    return f"{command_name()} hold --name {name}{workspace_option(workspace)} --why REASON"


def release_command(pipeline: str, workspace: str, *, name: str = "") -> str:
    """Lets a pipeline go that somebody holds."""
    which = f"--name {name}" if name else shlex.quote(pipeline)
    return f"{command_name()} release {which}{workspace_option(workspace)} --why REASON"
