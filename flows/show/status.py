"""`headway status`, `stop` and `profile`: what goes on in a workspace, and what a run that goes on is asked for."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Never

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from headway.data_contracts.store import plain_text, refs
from headway.data_contracts.store.documents import Link, RunSpec, Sha256
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.places import MISPLACED, all_named, entries
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.flows.console.console import headed, plain_console
from headway.flows.run.running_retrains import RunningRetrain, read_running, words
from headway.flows.windows.holds import shown_hold
from headway.tasks.core import lease_records
from headway.tasks.core.run_progress import read_progress
from headway.tasks.ownership.pipeline_history import (
    PIPELINES,
    FailedRetrain,
    FinishedRetrain,
    Hold,
    PipelineEvent,
    RunState,
    read,
)
from headway.tasks.prove.scrub import ScrubReport, read_report
from headway.tasks.registry import decisions, model_refs
from headway.tasks.registry.promotion_decision import Decision
from headway.tasks.rows.fold_scores import fold_of
from headway.training.checkpoint.layout import RESULT_NAME, committed_steps, step_of
from headway.training.engine import profiling
from headway.training.launch.base import run_lock, stop_request
from headway.training.launch.base.retry_budget import RECORDS_NAME, AttemptRecord, AttemptRecords
from headway.training.observe.ledger import SpoolTail

DOCUMENT = re.compile(r"([0-9a-f]{64})\.json")
POINTED_AT = {f"refs/{PIPELINES}": (PipelineEvent.kind,), "refs/models": (Decision.kind,)}
"""Kinds of documents that are published for refs of a place alone, by that place."""
COPIED = ("card", "resume")
"""Facts that a person copies."""
MIN_WIDTH = 20
ENDED_BETWEEN: Mapping[RunState | None, str] = {
    "started": "its owner was killed, or failed, before the retrain's last stage was done.",
    "stopped": "it was stopped before the retrain's last stage was done.",
}
"""Why a run ended while none of its attempts was at work, by what its pipeline's history says of it."""


class ModelStatus(BaseModel):
    model: str
    num_versions: int
    champion: str | None
    challenger: str | None
    """The newest version, if that is not the champion."""
    champion_since: str | None
    reason: str
    rolled_back_from: str | None = None
    """The version that was champion, where today's came back by a rollback; `reason` speaks of that one."""
    challenger_reason: str = ""
    """Who retired a challenger that is not champion, and what the policy said of it."""
    waits: str | None = None
    """The version that waits for a person's approval."""


class RunStatus(BaseModel):
    run: str
    pipeline: str
    """Empty where the run's document is gone."""
    is_running: bool
    owner: str
    is_remote: bool = False
    """Another machine has it, as far as this one's clock can tell."""
    step: int | None
    num_checkpoints: int
    checkpoint_step: int | None = None
    """Of the newest."""
    finished: bool
    folder: str
    ended: str = ""
    """Why its newest attempt ended, where that was not its last step."""
    continued_by: str = ""
    """The command that continues it."""
    fold: str = ""
    """Whose model it trains, such as `fold 2 of 5`; empty: a pipeline's own."""


class WaitingStatus(BaseModel):
    """A pipeline whose windows close before its run is finished."""

    pipeline: str
    run: str
    windows_cut: int
    starving: bool
    what: str


class RequestStatus(BaseModel):
    """A retrain that triggers asked for, and that no retrain has finished since."""

    pipeline: str
    why: str
    requested_at: str
    """ISO 8601, in UTC."""


class SearchStatus(BaseModel):
    """A search that windows began, and continue."""

    pipeline: str
    started_at: str
    """ISO 8601, in UTC."""


class KeptStatus(BaseModel):
    """What refs tell: of models, and of how pipelines' retrains ended."""

    workspace: str
    models: list[ModelStatus]
    waiting: list[WaitingStatus] = []
    requested: list[RequestStatus] = []
    searching: list[SearchStatus] = []
    held: list[Hold] = []
    failed: list[FailedRetrain] = []
    """Of each pipeline whose newest retrain to end by itself failed."""
    finished: list[FinishedRetrain] = []
    """The newest of each pipeline's retrains that came to its end."""
    scrub: ScrubReport | None = None
    """What the newest look at stored files came to."""
    lost: list[str] = []
    """Places of the workspace that are gone, though what they pointed at is there."""


class Status(KeptStatus):
    runs: list[RunStatus]
    running: list[RunningRetrain] = []
    """On this machine, whatever stage they are in."""
    damaged: dict[str, str] = {}
    """What is wrong with the history of a model that `models` leaves out, by the place of its refs."""


def read_status(workspace_uri: str) -> Status:
    """Raises `EnvironmentProblem`: there is no workspace, or it cannot be used."""
    workspace = Workspace.existing(workspace_uri)
    damaged = dict[str, str]()
    # In this order: one that ends in between has its end in the history.
    running = read_running(workspace)
    history = _histories(workspace)
    kept = _kept(workspace, history, damaged)
    at_work = {retrain.pipeline for retrain in running}
    left = {now.run: now for now in history if now.state in ENDED_BETWEEN and now.pipeline not in at_work}
    return Status(**dict(kept), runs=_runs(workspace, left), running=running, damaged=damaged)


def _runs(workspace: Workspace, left: Mapping[str, PipelineEvent]) -> list[RunStatus]:
    here = {path.name for path in entries(workspace.local_root / "runs")}
    documents = (DOCUMENT.fullmatch(name) for name in workspace.names(f"documents/{RunSpec.kind}"))
    described = {name[1][:16]: name[1] for name in documents if name}
    # A run of another machine may have published no more than its claim.
    there = {name for top in ("runs", lease_records.OWNERS) for name in workspace.names(top)}
    return [
        _run_or_what_lies_there(workspace, name, described.get(name), left.get(name)) for name in sorted(here | there)
    ]


def _run_or_what_lies_there(
    workspace: Workspace, name: str, described: Sha256 | None, left: PipelineEvent | None
) -> RunStatus:
    """A loop of links, or a file where a folder belongs, in the place of one run hides none of the others."""
    try:
        return _run(workspace, name, described, left)
    except IntegrityError as error:
        problem = error.what
    except OSError as error:
        if error.errno not in MISPLACED:
            raise
        problem = f"it cannot be read ({error.strerror} at {error.filename})."
    return RunStatus(
        run=name,
        pipeline=_pipeline(workspace, described),
        is_running=False,
        owner="",
        step=None,
        num_checkpoints=0,
        finished=False,
        folder=str(workspace.local_root / "runs" / name),
        ended=problem,
    )


def read_kept(workspace: Workspace, damaged: dict[str, str] | None = None) -> KeptStatus:
    """What does not take longer the more runs there were.

    Args:
        damaged: gets what is wrong with a model's history, which is left out then.

    Raises:
        IntegrityError: it is damaged, and nobody wants to be told so.
    """
    return _kept(workspace, _histories(workspace), damaged)


def _histories(workspace: Workspace) -> list[PipelineEvent]:
    return [_history_of(workspace, name) for name in workspace.names(f"refs/{PIPELINES}")]


def _kept(workspace: Workspace, history: list[PipelineEvent], damaged: dict[str, str] | None) -> KeptStatus:
    asks = [now.requested for now in history if now.requested is not None]
    return KeptStatus(
        workspace=workspace.uri,
        models=[*_models(workspace, damaged)],
        waiting=[_waiting(now) for now in history if now.windows_cut],
        requested=[RequestStatus(pipeline=ask.pipeline, why=ask.why, requested_at=ask.requested_at) for ask in asks],
        searching=[
            SearchStatus(pipeline=now.pipeline, started_at=now.search.started_at)
            for now in history
            if now.search is not None and now.search.state == "started"
        ],
        held=[now.hold for now in history if now.hold is not None],
        failed=[now.failed for now in history if now.failed is not None],
        finished=[now.finished for now in history if now.finished is not None],
        scrub=read_report(workspace),
        lost=_lost(workspace),
    )


def _lost(workspace: Workspace) -> list[str]:
    """Without its refs a workspace looks like a new one: no champion, no hold, no failure."""
    gone = [
        place
        for place, kinds in POINTED_AT.items()
        if not workspace.names(place) and any(workspace.names(f"documents/{kind}") for kind in kinds)
    ]
    return ["refs"] if gone and not workspace.names("refs") else gone


def _history_of(workspace: Workspace, pipeline: str) -> PipelineEvent:
    """Damage holds a pipeline, and hides all else."""
    with contextlib.suppress(IntegrityError):
        return read(workspace, pipeline)
    return PipelineEvent(pipeline=pipeline, hold=shown_hold(workspace, pipeline))


def _waiting(now: PipelineEvent) -> WaitingStatus:
    fields = {name: getattr(now, name) for name in ("pipeline", "run", "windows_cut", "starving")}
    return WaitingStatus(**fields, what=now.cut)


def _models(workspace: Workspace, damaged: dict[str, str] | None) -> Iterator[ModelStatus]:
    for name in workspace.names("refs/models"):
        try:
            yield _model(workspace, name)
        except IntegrityError as error:
            if damaged is None:
                raise
            damaged[f"refs/models/{name}"] = str(error)


def _model(workspace: Workspace, name: str) -> ModelStatus:
    champion = refs.current(workspace, model_refs.alias_ref(name, "champion"))
    before = None
    if champion is not None and model_refs.champion_detail(name, champion).how == "rollback":
        history = refs.history(workspace, model_refs.alias_ref(name, "champion"))
        before = history[-2].target if len(history) > 1 else None
    challenger = model_refs.alias_entry(workspace, name, "challenger")
    decided = None if challenger is None else next(decisions.decisions(workspace, name, challenger.target), None)
    gone = None if challenger is None else model_refs.retirement_of(workspace, name, challenger.target)
    retired = "" if gone is None else f"retired by {model_refs.retired_by(name, gone)}: {gone.reason}"
    judged = "" if decided is None else decided.decision.reason
    return ModelStatus(
        model=name,
        # A registration that has a number in several stores is one version.
        num_versions=len({entry.target for entry in model_refs.versions(workspace, name)}),
        champion=None if champion is None else model_refs.version_of(workspace, name, champion.target),
        challenger=None if challenger is None else model_refs.version_of(workspace, name, challenger.target),
        champion_since=None if champion is None else champion.moved_at,
        reason="" if champion is None else champion.reason,
        rolled_back_from=None if before is None else model_refs.version_of(workspace, name, before),
        # A retrain that finds it retired has that among its own reasons.
        challenger_reason=judged if retired in judged else "; ".join(filter(None, [retired, judged])),
        waits=decisions.awaiting(workspace, name),
    )


def _run(workspace: Workspace, name: str, described: Sha256 | None, left: PipelineEvent | None) -> RunStatus:
    """What this machine knows of a run, and what of it was published by any.

    Args:
        described: the run's whole digest, if its document is there.
        left: how its pipeline stands, where that is in the midst of this run and no retrain of it goes on here.
    """
    folder = workspace.local_path(f"runs/{name}")
    here = run_lock.holder_of(folder)
    finished = workspace.exists(f"runs/{name}/{RESULT_NAME}")
    # The store is asked only where nothing here says who has the run.
    is_over = finished and left is None
    there = None if workspace.is_local or here or is_over else lease_records.remote_owner(workspace, name)
    owner = here or there
    kept = set(committed_steps(folder / "checkpoints"))
    if not workspace.is_local:
        published = workspace.names(f"runs/{name}/checkpoints")
        kept |= {step for step in map(step_of, published) if step is not None}
    # While somebody works on the run, its newest attempt has no end to be shown.
    newest = None if run_lock.is_at_work(folder) else newest_attempt(folder)
    ended = "" if newest is None else _why_ended(newest, None if owner else left)
    fold = _fold(workspace, described)
    return RunStatus(
        run=name,
        pipeline=_pipeline(workspace, described),
        is_running=owner is not None,
        owner=owner or "",
        is_remote=there is not None,
        step=max([*filter(None, [read_progress(folder).step]), *kept], default=None),
        num_checkpoints=len(kept),
        checkpoint_step=max(kept, default=None),
        finished=finished,
        folder=str(folder),
        ended=ended,
        fold=fold,
        # A fold's model is trained again by the retrain that it evaluates, and resumed by nobody else.
        continued_by=_continued_by(newest, name, is_resumable=described is not None and not finished and not fold)
        if newest is not None and ended
        else "",
    )


def _why_ended(attempt: AttemptRecord, left: PipelineEvent | None) -> str:
    """Why the newest attempt, or its retrain after it, ended before its time; empty: neither did.

    Of a retrain that ended between two attempts, or before there was a version, the pipeline's history alone tells.
    """
    if attempt.state != "done":
        return attempt.failure.what
    if left is None:
        return ""
    # What failed has an entry of its own, with its card.
    has_failed = left.failed is not None and left.failed.failed_unix_s >= (attempt.end_unix_s or 0.0)
    return "" if has_failed else ENDED_BETWEEN[left.state]


def newest_attempt(folder: Path) -> AttemptRecord | None:
    """Of the run's training, verification, evaluation or export, whichever began last."""
    records = [record for path in all_named(RECORDS_NAME, folder) for record in AttemptRecords(path.parent).all()]
    return max(records, key=lambda record: record.start_unix_s, default=None)


def _continued_by(attempt: AttemptRecord, run: str, *, is_resumable: bool) -> str:
    """The command that resumes the run, whatever became of its pipeline's files since.

    A retrain does only while data, code and configuration are what they were; else it begins another run.

    Args:
        is_resumable: its training is not finished, and what it was started with is on record.
    """
    try:
        typed = shlex.split(attempt.continued_by)
    except ValueError:
        return ""  # a record lies where others may write, and nobody types what is no command
    if "trials" in typed and attempt.failure.reason == "step reached":
        return ""  # it waits at a rung, for good where others went on: nothing is left to be done about it
    if "retrain" not in typed or not is_resumable:
        return attempt.continued_by
    place = typed.index("retrain")
    # Nothing waits for a window that is resumed by hand.
    options = [each for each in typed[place + 2 :] if each != "--in-window"]
    return shlex.join([*typed[:place], "resume", run, "--pipeline", *typed[place + 1 : place + 2], *options])


def _fold(workspace: Workspace, run: Sha256 | None) -> str:
    with contextlib.suppress(IntegrityError, FileNotFoundError):
        if run is not None:
            return str(fold_of(workspace, workspace.load(Link(kind=RunSpec.kind, sha256=run), RunSpec)) or "")
    return ""


def _pipeline(workspace: Workspace, run: Sha256 | None) -> str:
    with contextlib.suppress(IntegrityError):
        return "" if run is None else workspace.load(Link(kind=RunSpec.kind, sha256=run), RunSpec).pipeline
    return ""


def runs_named(status: Status, name: str) -> list[RunStatus]:
    """Those whose id begins so, and those that a flow run of this id trained: an alert shows no other."""
    trained: set[str] = set()
    with contextlib.suppress(ValueError):
        # Also a check: a name that is no flow run's id could lead out of the folder.
        spool = Workspace(status.workspace).local_path(f"ledger/{uuid.UUID(name)}/flow.jsonl")
        trained = {Path(event["path"]).name for event in SpoolTail(spool).stream() if event["event"] == "run.folder"}
    return [run for run in status.runs if run.run in trained or run.run.startswith(name)]


def run_asked(workspace_uri: str, run: str) -> RunStatus:
    """The one run that is meant.

    Args:
        run: the beginning of its id, or of a flow run's; empty: the one that runs here, or else the newest.

    Raises:
        ConfigError: there is no such run, or several.
    """
    status = read_status(workspace_uri)
    if run:
        matching = runs_named(status, run)
    else:
        here = [each for each in status.runs if each.is_running and not each.is_remote]
        matching = here or sorted(status.runs, key=_newest_first)[:1]
    if len(matching) != 1:
        known = ", ".join(each.run for each in status.runs) or "none"
        named = f"{run!r} names" if run else "there are"
        raise ConfigError(f"{named} {len(matching)} runs.", advice=f"Runs here: {known}.")
    return matching[0]


def _newest_first(status: RunStatus) -> float:
    """By when it was trained: a champion is evaluated again beside each challenger."""
    try:
        return -max((path.stat().st_mtime for path in entries(Path(status.folder) / "attempts")), default=0.0)
    except OSError:
        return 0.0  # its status says what lies there


def request_stop(workspace_uri: str, run: str, reason: str) -> str:
    """Leave the request where the run's owner finds it.

    Raises:
        ConfigError: no such run going on, or several that begin so.
    """
    requested = _running_folder(workspace_uri, run)
    stop_request.request_stop(Path(requested.folder), reason or "asked by `headway stop`")
    return f"{requested.run} is asked to keep a checkpoint and end; the same retrain continues it."


def request_profile(workspace_uri: str, run: str, num_steps: int) -> str:
    """Leave the request where the run's ranks find it.

    Raises:
        ConfigError: no such run going on, or several that begin so.
    """
    requested = _running_folder(workspace_uri, run)
    traces = profiling.request_profile(Path(requested.folder), num_steps=num_steps)
    return (
        f"{requested.run} was asked to trace its next {count(num_steps, 'step')}, or those that are left. Each rank "
        f"writes one, for chrome://tracing or ui.perfetto.dev:\n{requested.folder}/{traces}"
    )


def _running_folder(workspace_uri: str, run: str) -> RunStatus:
    """The one run at work whose name begins so."""
    status = read_status(workspace_uri)
    named = runs_named(status, run)
    matching = [each for each in named if each.is_running]
    if len(matching) != 1:
        known = f"Running: {', '.join(each.run for each in status.runs if each.is_running) or 'none'}."
        over = [each for each in named if not each.is_running]
        if not matching and len(over) == 1:
            raise _over(over[0], known)
        raise ConfigError(f"{run!r} names {len(matching)} running runs.", advice=known)
    if matching[0].is_remote:
        raise ConfigError(
            f"run {matching[0].run} runs on another machine ({matching[0].owner}).", advice="Ask for it there."
        )
    return matching[0]


def _over(run: RunStatus, is_running: str) -> ConfigError:
    """What who asks something of a run reads, if nobody works on it any more."""
    where = "before its first step" if run.step is None else f"at step {run.step:,}"
    why = f": {run.ended}" if run.ended else "."
    again = f"`{run.continued_by}` resumes it. " if run.continued_by else ""
    what = f"run {run.run} {'is finished' if run.finished else 'has ended'}, {where}{why}"
    return ConfigError(what, where=run.folder, advice=f"{again}{is_running}")


def print_status(status: Status, console: Console | None = None) -> None:
    """A name a line, what is known of it below, so that 80 columns are enough."""
    console = console or plain_console()
    console.print(f"workspace  {status.workspace}\n")
    for place in status.lost:
        _print_entry(console, f"{place}  GONE", LOST)
    for place, what in status.damaged.items():
        _print_entry(console, f"{place}  DAMAGED", {"what": what})
    for model in status.models:
        _print_entry(console, f"{model.model}  {count(model.num_versions, 'version')}", _model_facts(model))
    if not status.models:
        console.print("no models yet")
    for damaged in status.scrub.damaged if status.scrub else ():
        facts = {"what": damaged.fault, "needed by": damaged.needed_by, "to do": "`headway scrub`, once it is mended"}
        _print_entry(console, f"{damaged.path}  DAMAGED", facts)
    finished = {retrain.pipeline: f"finished {retrain.finished_at} on {retrain.host}" for retrain in status.finished}
    for failure in status.failed:
        stage = f" in stage {failure.stage}" if failure.stage else ""
        _print_entry(
            console,
            f"{failure.pipeline}  FAILED{stage}",
            _failure_facts(failure, finished.pop(failure.pipeline, "none on record has finished")),
        )
    for name, when in finished.items():
        _print_entry(console, f"{name}  retrains", {"last": when})
    for hold in status.held:
        _print_entry(console, f"{hold.pipeline}  HELD", {"by": hold.by, "why": hold.why, "since": hold.since})
    for ask in status.requested:
        _print_entry(console, f"{ask.pipeline}  retrain asked for", {"why": ask.why, "since": ask.requested_at})
    for search in status.searching:
        facts = {"started": search.started_at, "next": "each window continues it, once its retrain is done"}
        _print_entry(console, f"{search.pipeline}  searches", facts)
    for retrain in status.running:
        _print_entry(console, f"{retrain.pipeline}  RUNNING", words(retrain, time.time()))
    console.print()
    at_stage = {retrain.run: retrain.stage for retrain in status.running if retrain.run}
    for run in status.runs:
        trained = f"trained, in stage {at_stage[run.run]}" if at_stage.get(run.run) else "finished"
        state = "running" if run.is_running else trained if run.finished else "unfinished"
        _print_entry(console, f"{run.run}  {state}", _run_facts(run))
    if not status.runs:
        console.print("no runs yet")
    for pipeline in status.waiting:
        state = "STARVING" if pipeline.starving else "resumes in its next window"
        console.print()
        _print_entry(console, f"{pipeline.pipeline}  {state}", {"windows": f"{pipeline.what}."})


LOST = {
    "what": "what it pointed at is there: champions, holds and histories are lost, and not merely none",
    "to do": "Bring it back from a backup before anything retrains: a retrain would begin as in a new workspace.",
}
WATCH_S = 2.0
CLEAR = "\x1b[H\x1b[J"


def watch(workspace_uri: str) -> Never:
    """Show the status anew every two seconds, in place, until Ctrl-C.

    Raises:
        ConfigError: standard output is no terminal.
    """
    if not sys.stdout.isatty():
        advice = "Without --watch it is printed once; --json is for programs."
        raise ConfigError("needs a terminal.", where="--watch", advice=advice)
    while True:
        page = io.StringIO()
        # Made whole before anything is cleared, so that it does not flicker.
        print_status(read_status(workspace_uri), plain_console(page, width=shutil.get_terminal_size().columns))
        when = time.strftime("%H:%M:%S")
        sys.stdout.write(f"{CLEAR}{page.getvalue()}\n{when}, every {WATCH_S:g} s; Ctrl-C ends this view, not the run\n")
        sys.stdout.flush()
        time.sleep(WATCH_S)


def _model_facts(model: ModelStatus) -> dict[str, str]:
    champion = "none" if model.champion is None else f"v{model.champion} since {model.champion_since}"
    # There is none beside a champion that is the newest version, which goes without saying.
    missing = "none" if model.champion is None else ""
    challenger = missing if model.challenger is None else f"v{model.challenger}"
    if model.challenger is not None and model.challenger_reason:
        challenger += f": {model.challenger_reason}"
    waits = "" if model.waits is None else f"v{model.waits}, for `headway promote` or `headway refuse`"
    why = "why"
    if model.rolled_back_from is not None:
        champion += f", rolled back to from v{model.rolled_back_from}"
        why = f"why not v{model.rolled_back_from}"
    return {"champion": champion, why: model.reason, "challenger": challenger, "waits": waits}


def _failure_facts(failure: FailedRetrain, finished: str) -> dict[str, str]:
    return {
        "at": f"{failure.failed_at} on {failure.host}",
        "what": failure.failure.what_and_where,
        "to do": failure.failure.advice,
        "card": failure.card,
        "last": finished,
    }


def _run_facts(run: RunStatus) -> dict[str, str]:
    step = "none yet" if run.step is None else f"{run.step:,}"
    newest = "" if run.checkpoint_step is None else f", the newest of step {run.checkpoint_step:,}"
    return {
        "pipeline": run.pipeline,
        "model of": run.fold,
        "step": f"{step}, {count(run.num_checkpoints, 'checkpoint')}{newest}",
        "owner": run.owner,
        "ended": run.ended,
        "resume": run.continued_by,
    }


def _print_entry(console: Console, title: str, facts: dict[str, str]) -> None:
    """Facts are folded at spaces alone, and what is copied not at all, so that paths stay in one piece."""
    console.print(headed(title))
    message = {name: plain_text.lines(fact) for name, fact in facts.items() if fact}
    indent = max(map(len, message), default=0) + 4
    width = max(console.width - indent, MIN_WIDTH)
    for name, fact in message.items():
        lines = [
            part for line in fact.splitlines() for part in ([line] if name in COPIED else _folded(line, width)) or [""]
        ]
        for number, line in enumerate(lines):
            console.print(Text(f"{f'  {name}' if number == 0 else '':<{indent}}{line}"), soft_wrap=True)


def _folded(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
