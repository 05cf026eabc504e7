"""When a retrain of each pipeline finished last, and how the newest failed since: for `headway status`, on any machine.

A retrain that does not come to its workspace, such as one whose pipeline file cannot be read, leaves nothing here.
"""

from __future__ import annotations

import contextlib
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace

LAST_RETRAINS = "retrains"
_FAILED, _FINISHED = "failed.json", "finished.json"


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


class FinishedRetrain(BaseModel):
    """The newest that came to its end, whether it trained or found all there."""

    pipeline: str
    finished_at: str
    """ISO 8601, in UTC."""
    host: str
    flow_run: str


def write_failure(workspace: Workspace, failure: StandingFailure) -> None:
    """In place of the one before."""
    workspace.publish_json(_path(failure.pipeline, _FAILED), failure.model_dump(mode="json"))


def write_finished(workspace: Workspace, finished: FinishedRetrain) -> None:
    """In place of the one before; no failure stands any more."""
    workspace.publish_json(_path(finished.pipeline, _FINISHED), finished.model_dump(mode="json"))
    workspace.remove(_path(finished.pipeline, _FAILED))


def read_failures(workspace: Workspace) -> list[StandingFailure]:
    """Those that no finished retrain has ended yet, by pipeline."""
    return _read(workspace, _FAILED, StandingFailure)


def read_finished(workspace: Workspace) -> list[FinishedRetrain]:
    """The newest of each pipeline's, by pipeline."""
    return _read(workspace, _FINISHED, FinishedRetrain)


_Last = TypeVar("_Last", bound=BaseModel)


def _read(workspace: Workspace, name: str, kind: type[_Last]) -> list[_Last]:
    found = []
    for pipeline in sorted(workspace.names(LAST_RETRAINS)):
        with contextlib.suppress(IntegrityError, ValidationError):  # there is none, or another Headway's
            found.append(kind.model_validate_json(workspace.read(_path(pipeline, name))))
    return found


def _path(pipeline: str, name: str) -> str:
    return f"{LAST_RETRAINS}/{pipeline}/{name}"
