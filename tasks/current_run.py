"""The run that a pipeline is at: `runs/<pipeline>` is appended to when one begins, is cut by a window's end, or ends.

A run that a window cut is finished in the next windows on its frozen code and data, and only then do newer ones count:
else a pipeline whose data change daily would begin anew in every window and never end. Who retrains by hand takes what
the files say now, and windows go on with that.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

from pydantic import Field

from data_contracts import refs
from data_contracts.documents import Document, Link, RunSpec, Sha256
from data_contracts.errors import (
    ConfigError,
    ContractViolation,
    DataError,
    HeadwayError,
    IntegrityError,
    RanksLost,
    RefConflict,
    RunStopped,
    TrainingFailed,
)
from data_contracts.publication import Workspace
from tasks.context import RunContext
from training.checkpoint.layout import run_folder

State = Literal["begun", "cut", "stopped", "finished", "given up"]
HOPELESS = (ConfigError, ContractViolation, DataError, IntegrityError, TrainingFailed)


class CurrentRun(Document):
    """Where a pipeline is. A run is named as its folder is: a record of the past keeps none from being cleaned away."""

    kind: ClassVar[str] = "current-run"
    pipeline: str
    run: str = ""
    """Empty where the first window closed before a run was described."""
    state: State
    windows_cut: int = Field(default=0, ge=0)
    """Windows in a row that closed before a run of this pipeline was finished."""
    starving: bool = Field(default=False, exclude_if=operator.not_)
    """They are more than the pipeline's windows may be."""

    def __str__(self) -> str:
        windows = "one window" if self.windows_cut == 1 else f"{self.windows_cut} windows in a row"
        return f"{windows} closed before {f'run {self.run} was finished' if self.run else 'training began'}"


def ref_of(pipeline: str) -> str:
    return f"runs/{pipeline}"


def read(workspace: Workspace, pipeline: str) -> CurrentRun | None:
    """None before the first.

    Raises:
        IntegrityError: the newest entry is damaged.
    """
    entry = refs.current(workspace, ref_of(pipeline))
    return None if entry is None else workspace.load(entry.target, CurrentRun)


def cut_run(context: RunContext) -> Link | None:
    """The run that a window's end, or a crash, left unfinished; None where there is none or nothing is left of it."""
    now = read(context.workspace, context.pipeline)
    return _described(context.workspace, now) if now is not None and now.state in ("begun", "cut") else None


def not_continued(context: RunContext, run: RunSpec) -> str:
    """What to say where the pipeline was in the midst of another run, whose steps this one does not go on from."""
    workspace, now = context.workspace, read(context.workspace, context.pipeline)
    if now is None or now.run == run.sha256[:16] or now.state not in ("begun", "cut", "stopped"):
        return ""
    link = _described(workspace, now)
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
        f"`headway resume {now.run}` goes on with that one"
    )


def _described(workspace: Workspace, now: CurrentRun) -> Link | None:
    """The document of a run that is known by its folder's name."""
    if not now.run:
        return None
    names = workspace.names(f"documents/{RunSpec.kind}")
    described = [name.removesuffix(".json") for name in names if name.startswith(now.run)]
    return Link(kind=RunSpec.kind, sha256=described[0]) if len(described) == 1 else None


def begin(context: RunContext, run: Sha256) -> None:
    """What is finished and found once more begins nothing."""
    name = context.at.run = run[:16]

    def is_wanted(now: CurrentRun | None) -> bool:
        return now is None or now.run != name or now.state in ("stopped", "given up")

    _append(context.workspace, context.pipeline, "begun", run=name, is_wanted=is_wanted)


def begun_at(context: RunContext, run: Link) -> float:
    """Seconds since the epoch when the run was begun, where it is the current one; 0 where no record says."""
    begun_unix_s = 0.0
    for entry in refs.newest_first(context.workspace, ref_of(context.pipeline)):
        now = context.workspace.load(entry.target, CurrentRun)
        if now.run != run.sha256[:16]:
            break
        begun_unix_s = entry.unix_s if now.state == "begun" else begun_unix_s
    return begun_unix_s


def finish(context: RunContext) -> None:
    """Its model is registered."""
    _append_own(context, "finished", is_wanted=lambda now: now is not None and now.state != "finished")


@contextlib.contextmanager
def on_record(context: RunContext, starving_after: int | None) -> Iterator[None]:
    """Writes down how the body ends before its time; a machine that dies leaves `begun`.

    Args:
        starving_after: windows in a row without a finished run from which on the pipeline starves; None: it has none.
    """
    try:
        yield
    except RunStopped as stopped:
        with _without_hiding(stopped):
            state: State = "cut" if stopped.reason == "window closed" else "stopped"
            now = _append_own(context, state, starving_after=starving_after)
            if now is not None and now.starving:
                context.ledger.event(
                    "pipeline.starving", pipeline=now.pipeline, windows=now.windows_cut, message=str(now)
                )
        raise


@contextlib.contextmanager
def giving_up(context: RunContext) -> Iterator[None]:
    """Around work on the current run: what fails for good is not carried on, so that the next window takes newer data.

    Raises: what the body raises.
    """
    try:
        yield
    except HOPELESS as error:
        if is_hopeless(error):
            with _without_hiding(error):
                _append_own(context, "given up")
        raise


def is_hopeless(error: Exception) -> bool:
    """Whether the same code and data would meet it again in the next window."""
    return isinstance(error, HOPELESS) and not isinstance(error, RanksLost)


@contextlib.contextmanager
def _without_hiding(error: HeadwayError) -> Iterator[None]:
    """What went wrong first is what a person is told."""
    try:
        yield
    except (OSError, HeadwayError) as second:
        error.add_note(f"Nor could it be recorded: {second}")


def lose_window(workspace: Workspace, pipeline: str, starving_after: int) -> CurrentRun:
    """A window was over, or nearly, before a run could begin in it: the pipeline has one less."""
    lost = _append(workspace, pipeline, "cut", starving_after=starving_after)
    assert lost is not None  # it is always wanted
    return lost


def _append_own(
    context: RunContext,
    state: State,
    *,
    starving_after: int | None = None,
    is_wanted: Callable[[CurrentRun | None], bool] = lambda _: True,
) -> CurrentRun | None:
    """None, and nothing is written, where another retrain has begun another run since: that is the current one."""

    def is_ours(now: CurrentRun | None) -> bool:
        return is_wanted(now) and (now is None or not now.run or context.at.run in ("", now.run))

    return _append(context.workspace, context.pipeline, state, starving_after=starving_after, is_wanted=is_ours)


def _append(
    workspace: Workspace,
    pipeline: str,
    state: State,
    *,
    run: str = "",
    starving_after: int | None = None,
    is_wanted: Callable[[CurrentRun | None], bool] = lambda _: True,
) -> CurrentRun | None:
    """Follow the newest entry, or the one that another retrain of the pipeline writes at the same moment.

    Args:
        run: empty: the one it is at.
        is_wanted: of the newest entry; where it says no, nothing is written and None is returned.
    """
    rejected: Link | None = None
    while True:
        entry = refs.current(workspace, ref_of(pipeline))
        before = None if entry is None else workspace.load(entry.target, CurrentRun)
        if entry is not None and before is not None and entry.target == rejected:
            return before  # what we would have written: a window that cut two retrains at once was one
        if not is_wanted(before):
            return None
        now = _following(before, pipeline, state, run, starving_after)
        rejected = workspace.publish_document(now)
        with contextlib.suppress(RefConflict):
            refs.move(workspace, ref_of(pipeline), rejected, expected=entry, reason=state)
            return now


def _following(
    before: CurrentRun | None, pipeline: str, state: State, run: str, starving_after: int | None
) -> CurrentRun:
    if not run and before is not None and before.state in ("begun", "cut"):
        run = before.run
    spent = 0 if before is None or state in ("finished", "given up") else before.windows_cut
    cut = spent + (state == "cut")
    starving = starving_after is not None and cut >= starving_after
    return CurrentRun(pipeline=pipeline, run=run, state=state, windows_cut=cut, starving=starving)
