"""The run that a pipeline is at: started, cut by a window's end, ended; an event of the pipeline's history each.

A run that a window cut, or that has cost what it may, is finished in the next windows on its frozen code and data, and
only then do newer ones count: else a pipeline whose data change daily would start anew in every window and never end.
Who retrains by hand takes what the files say now, and windows continue with that.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from headway.data_contracts.store.documents import Link, RunSpec, Sha256
from headway.data_contracts.store.errors import (
    ConfigError,
    ContractViolation,
    DataError,
    HeadwayError,
    IntegrityError,
    RanksLost,
    RunStopped,
    StopReason,
    TrainingFailed,
)
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.ownership.pipeline_history import FinishedRetrain, PipelineEvent, RunState, append, read
from headway.training.checkpoint.layout import run_folder

UNFINISHED = ("started", "cut", "bounded")
_BY_REASON: Mapping[StopReason | None, RunState] = {"window closed": "cut", "cost bound reached": "bounded"}
PERMANENT = (ConfigError, ContractViolation, DataError, IntegrityError, TrainingFailed)


def cut_run(context: RunContext) -> Link | None:
    """The run that a window's end, or a crash, left unfinished; None where there is none or nothing is left of it."""
    now = read(context.workspace, context.pipeline)
    return _described(context.workspace, now.run) if now.state in UNFINISHED else None


def not_continued(context: RunContext, run: RunSpec) -> str:
    """What to say where the pipeline was in the midst of another run, whose steps this one does not continue from."""
    workspace, now = context.workspace, read(context.workspace, context.pipeline)
    if now.run == run.sha256[:16] or now.state not in (*UNFINISHED, "stopped"):
        return ""
    link = _described(workspace, now.run)
    steps = workspace.names(f"{run_folder(link)}/checkpoints") if link is not None else []
    if link is None or not steps:
        return ""
    before = workspace.load(link, RunSpec)
    names = {"config": "training configuration", "manifest": "data", "start": "model to start from"}
    changed = [
        names.get(field, field)
        for field in ("config", "manifest", "code", "environment", "start")
        if getattr(before, field) != getattr(run, field)
    ]
    return (
        f"run {now.run} is not continued, for its {', '.join(changed)} changed since: this one begins at step 1. "
        f"`headway resume {now.run}` resumes that one"
    )


def _described(workspace: Workspace, run: str) -> Link | None:
    """The document of a run that is known by its folder's name."""
    if not run:
        return None
    names = workspace.names(f"documents/{RunSpec.kind}")
    described = [name.removesuffix(".json") for name in names if name.startswith(run)]
    return Link(kind=RunSpec.kind, sha256=described[0]) if len(described) == 1 else None


def start(context: RunContext, run: Sha256) -> None:
    """What is finished and found once more starts nothing."""
    name = context.at.run = run[:16]

    def started(before: PipelineEvent) -> PipelineEvent | None:
        if before.run != name:
            return _with_run(before, "started", run=name, started_unix_s=time.time())
        is_over = before.state in ("bounded", "stopped", "failed")
        return _with_run(before, "started", run=name) if is_over else None

    append(context.workspace, context.pipeline, started)


def started_at(context: RunContext, run: Link) -> float:
    """Seconds since the epoch when the run was started, where it is the current one; 0 where no record says."""
    now = read(context.workspace, context.pipeline)
    return now.started_unix_s if now.run == run.sha256[:16] else 0.0


def finish(context: RunContext, started_unix_s: float, snapshot: Link | None = None) -> None:
    """The retrain has come to its end: its run is finished and, where that was its aim, registered.

    Args:
        started_unix_s: when its data were taken, or a person requested it: what failed before is over. 0 where no
            record says.
        snapshot: the data, where they are the newest: triggers measure against them from now on.
    """

    def finished(before: PipelineEvent) -> PipelineEvent | None:
        is_at_it = before.state not in (None, "finished") and _is_ours(context, before)
        now = _with_run(before, "finished", run=before.run) if is_at_it else before
        if not context.may_register:  # a retrain that registers nothing is none
            return now if is_at_it else None
        started = started_unix_s if before.finished is None else max(started_unix_s, before.finished.started_unix_s)
        update: dict[str, Any] = {
            "event": "finished",
            "finished": FinishedRetrain(
                pipeline=context.pipeline,
                finished_unix_s=time.time(),
                started_unix_s=started,
                host=socket.gethostname(),
                flow_run=context.budget_scope,
            ),
        }
        if before.failed is not None and before.failed.failed_unix_s <= started:
            update["failed"] = None
        # A run that a window cut had older data than triggers asked for, so that it answers no request.
        if snapshot is not None:
            update |= {
                "snapshot": snapshot,
                "taken_unix_s": context.started_unix_s,
                "requested": None,
                "ever_requested": (),
            }
        return now.model_copy(update=update)

    append(context.workspace, context.pipeline, finished)


@contextlib.contextmanager
def recording_the_end(context: RunContext, starving_after: int | None) -> Iterator[None]:
    """Writes down how the body ends before its time; a machine that dies leaves `started`.

    Args:
        starving_after: windows in a row without a finished run from which on the pipeline starves; None: it has none.
    """
    try:
        yield
    except RunStopped as stopped:
        with _without_hiding(stopped):
            now = _end_own(context, _BY_REASON.get(stopped.reason, "stopped"), starving_after)
            if now is not None and now.starving:
                context.ledger.event(
                    "pipeline.starving", pipeline=now.pipeline, windows=now.windows_cut, message=now.cut
                )
        raise


@contextlib.contextmanager
def abandoning_on_failure(context: RunContext) -> Iterator[None]:
    """Around work on the current run: what fails for good is not carried on, so that the next window takes newer data.

    Raises: what the body raises.
    """
    try:
        yield
    except PERMANENT as error:
        # Lost ranks are the machines' fault: the next window tries the same run again.
        if is_permanent(error):
            with _without_hiding(error):
                _end_own(context, "failed")
        raise


def is_permanent(error: Exception) -> bool:
    """Whether the same code and data would meet it again in the next window."""
    return isinstance(error, PERMANENT) and not isinstance(error, RanksLost)


@contextlib.contextmanager
def _without_hiding(error: HeadwayError) -> Iterator[None]:
    """What went wrong first is what a person has to see."""
    try:
        yield
    except (OSError, HeadwayError) as second:
        error.add_note(f"Nor could it be recorded: {second}")


def record_missed_window(workspace: Workspace, pipeline: str, starving_after: int) -> PipelineEvent:
    """A window was over, or nearly, before a run could begin in it: the pipeline has one less."""
    lost = append(workspace, pipeline, lambda before: _with_run(before, "cut", starving_after=starving_after))
    assert lost is not None  # it is always wanted
    return lost


def _end_own(context: RunContext, state: RunState, starving_after: int | None = None) -> PipelineEvent | None:
    """None, and nothing is written, where another retrain has started another run since: that is the current one."""

    def ended(before: PipelineEvent) -> PipelineEvent | None:
        return _with_run(before, state, starving_after=starving_after) if _is_ours(context, before) else None

    return append(context.workspace, context.pipeline, ended)


def _is_ours(context: RunContext, now: PipelineEvent) -> bool:
    return not now.run or context.at.run in ("", now.run)


def _with_run(
    before: PipelineEvent, state: RunState, *, run: str = "", starving_after: int | None = None, **update: Any
) -> PipelineEvent:
    """Args:
    run: empty: the one it is at.
    """
    # A run that ended is not carried on: a window that is missed now was lost to no run yet.
    if not run and before.state in UNFINISHED:
        run = before.run
    cut = 0 if state in ("finished", "failed") else before.windows_cut + (state == "cut")
    starving = starving_after is not None and cut >= starving_after
    update |= {"event": state, "state": state, "run": run, "windows_cut": cut, "starving": starving}
    return before.model_copy(update=update)
