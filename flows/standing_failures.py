"""How the newest retrain of each pipeline failed, until one finishes: for `headway status`, on whatever machine.

A retrain that does not come to its workspace, such as one whose pipeline file cannot be read, leaves nothing here.
"""

from __future__ import annotations

import contextlib

from pydantic import BaseModel, ValidationError

from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace

FAILURES = "failures"


class StandingFailure(BaseModel):
    """What a failure card says in short, and where it lies."""

    pipeline: str
    stage: str
    """Empty where it was none."""
    failed_at: str
    """ISO 8601, in UTC."""
    host: str
    """Where the flow ran."""
    cause: str
    what: str
    advice: str
    card: str
    """The page, as a path on that host."""
    flow_run: str


def write_failure(workspace: Workspace, failure: StandingFailure) -> None:
    """In place of the one before."""
    workspace.publish_json(_path(failure.pipeline), failure.model_dump(mode="json"))


def end_failure(workspace: Workspace, pipeline: str) -> None:
    """A retrain has finished since."""
    workspace.remove(_path(pipeline))


def read_failures(workspace: Workspace) -> list[StandingFailure]:
    """Those that no finished retrain has ended yet, by pipeline."""
    found = []
    for name in sorted(workspace.names(FAILURES)):
        if name.startswith(".") or not name.endswith(".json"):
            continue  # one that is being written
        with contextlib.suppress(IntegrityError, ValidationError):  # gone since, or another Headway's
            found.append(StandingFailure.model_validate_json(workspace.read(f"{FAILURES}/{name}")))
    return found


def _path(pipeline: str) -> str:
    return f"{FAILURES}/{pipeline}.json"
