"""When a retrain of each pipeline finished last, and how the newest failed since: for `headway status`, on any machine.

A retrain that does not come to its workspace, such as one whose pipeline file cannot be read, leaves nothing here.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import time
from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, ValidationError, computed_field

from data_contracts.errors import HeadwayError, IntegrityError
from data_contracts.publication import Workspace
from tasks.context import RunContext

LAST_RETRAINS = "retrains"
_FAILED, _FINISHED = "failed.json", "finished.json"


class _Retrain(BaseModel):
    pipeline: str
    host: str
    """Where the flow ran."""
    flow_run: str


class StandingFailure(_Retrain):
    """What a failure card says in short, and where it lies."""

    stage: str
    """Empty where it was none."""
    failed_unix_s: float
    cause: str
    what: str
    advice: str
    card: str
    """The page, as a path on that host."""

    @computed_field
    def failed_at(self) -> str:
        """ISO 8601, in UTC."""
        return _moment(self.failed_unix_s)


class FinishedRetrain(_Retrain):
    """The newest whose model came to be judged and registered, whether it was trained or found."""

    finished_unix_s: float
    begun_unix_s: float
    """When its data were taken, if that is known, else 0: what failed before is over."""

    @computed_field
    def finished_at(self) -> str:
        """ISO 8601, in UTC."""
        return _moment(self.finished_unix_s)


def write_failure(workspace: Workspace, failure: StandingFailure) -> None:
    """In place of the one before."""
    workspace.publish_json(_path(failure.pipeline, _FAILED), failure.model_dump(mode="json"))


def write_finished(context: RunContext, begun_unix_s: float) -> None:
    """In place of the one before. A retrain that registers nothing is none.

    Args:
        begun_unix_s: as `FinishedRetrain`'s.
    """
    if not context.may_register:
        return
    finished = FinishedRetrain(
        pipeline=context.pipeline,
        finished_unix_s=time.time(),
        begun_unix_s=begun_unix_s,
        host=socket.gethostname(),
        flow_run=context.budget_scope,
    )
    with contextlib.suppress(OSError, HeadwayError):  # the work is done, whatever is said of it
        context.workspace.publish_json(_path(context.pipeline, _FINISHED), finished.model_dump(mode="json"))


def read_failures(workspace: Workspace, finished: Iterable[FinishedRetrain]) -> list[StandingFailure]:
    """Of each pipeline the newest, unless a retrain that began later is among those that have finished since."""
    begun = {retrain.pipeline: retrain.begun_unix_s for retrain in finished}
    failed = _read(workspace, _FAILED, StandingFailure)
    return [failure for failure in failed if failure.failed_unix_s > begun.get(failure.pipeline, 0.0)]


def read_finished(workspace: Workspace) -> list[FinishedRetrain]:
    """The newest of each pipeline's, by pipeline."""
    return _read(workspace, _FINISHED, FinishedRetrain)


_Last = TypeVar("_Last", bound=_Retrain)


def _read(workspace: Workspace, name: str, kind: type[_Last]) -> list[_Last]:
    found = []
    for pipeline in sorted(workspace.names(LAST_RETRAINS)):
        # There is none, or another Headway's; or it is no pipeline's folder.
        with contextlib.suppress(IntegrityError, ValidationError, NotADirectoryError):
            found.append(kind.model_validate_json(workspace.read(_path(pipeline, name))))
    return found


def _path(pipeline: str, name: str) -> str:
    return f"{LAST_RETRAINS}/{pipeline}/{name}"


def _moment(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="seconds")
