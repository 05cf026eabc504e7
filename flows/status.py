"""`headway status`, `stop` and `profile`: what goes on in a workspace, and what a run that goes on is asked for."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from data_contracts import plain_text, refs
from data_contracts.documents import Link, RunSpec, Sha256
from data_contracts.errors import ConfigError, IntegrityError
from data_contracts.publication import Workspace
from data_contracts.report_text import count
from flows.console import headed, plain_console
from flows.holds import Hold, shown_hold
from flows.last_retrains import FinishedRetrain, StandingFailure, read_failures, read_finished
from flows.running_retrains import RunningRetrain, read_running, words
from flows.tables import print_table
from flows.triggers.records import read_standing
from tasks import claim_records, current_run, decisions, model_refs
from training import profiling
from training.checkpoint.layout import MANIFEST_NAME, RESULT_NAME, step_of
from training.launch import run_lock, stop_request
from training.launch.retry_budget import RECORDS_NAME, AttemptRecord, AttemptRecords
from training.ledger import Event, SpoolTail


class ModelStatus(BaseModel):
    model: str
    num_versions: int
    champion: str | None
    challenger: str | None
    champion_since: str | None
    reason: str
    waits: str | None = None
    """The version that waits for a person's approval."""


class RunStatus(BaseModel):
    run: str
    pipeline: str
    """Empty where the run's document is gone."""
    going_on: bool
    owner: str
    is_elsewhere: bool = False
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
    """The command that goes on."""


class WaitingStatus(BaseModel):
    """A pipeline whose windows close before its run is finished."""

    pipeline: str
    run: str
    windows_cut: int
    starving: bool
    what: str


class AskStatus(BaseModel):
    """A retrain that triggers asked for, and that no retrain has finished since."""

    pipeline: str
    why: str
    asked_at: str
    """ISO 8601, in UTC."""


class Status(BaseModel):
    workspace: str
    models: list[ModelStatus]
    runs: list[RunStatus]
    waiting: list[WaitingStatus] = []
    asked: list[AskStatus] = []
    held: list[Hold] = []
    failed: list[StandingFailure] = []
    """Of each pipeline whose newest retrain to end by itself failed."""
    finished: list[FinishedRetrain] = []
    """The newest of each pipeline's retrains that came to its end."""
    running: list[RunningRetrain] = []
    """On this machine, whatever stage they are in."""


def read_status(workspace_uri: str) -> Status:
    """Raises `EnvironmentProblem`: there is no workspace, or it cannot be used."""
    workspace = Workspace.existing(workspace_uri)
    models = [_model(workspace, name) for name in workspace.names("refs/models")]
    here = {path.name for path in workspace.local_root.glob("runs/*")}
    described = {name[:16]: name.removesuffix(".json") for name in workspace.names(f"documents/{RunSpec.kind}")}
    there = {name for top in ("runs", claim_records.OWNERS) for name in workspace.names(top)}
    runs = [_run(workspace, name, described.get(name)) for name in sorted(here | there)]
    waiting = [*filter(None, (_waiting(workspace, name) for name in workspace.names("refs/runs")))]
    asked = [ask for name in workspace.names("refs/retrains") for ask in _asked(workspace, name)]
    held = [*filter(None, (shown_hold(workspace, name) for name in workspace.names("refs/holds")))]
    finished = read_finished(workspace)
    return Status(
        workspace=workspace.uri,
        models=models,
        runs=runs,
        waiting=waiting,
        asked=asked,
        held=held,
        failed=read_failures(workspace, finished),
        finished=finished,
        running=read_running(workspace),
    )


def _waiting(workspace: Workspace, pipeline: str) -> WaitingStatus | None:
    now = current_run.read(workspace, pipeline)
    if now is None or now.windows_cut == 0:
        return None
    fields = {name: getattr(now, name) for name in ("pipeline", "run", "windows_cut", "starving")}
    return WaitingStatus(**fields, what=str(now))


def _asked(workspace: Workspace, pipeline: str) -> Iterator[AskStatus]:
    with contextlib.suppress(IntegrityError):  # who looks for triggers is told
        if (entry := read_standing(workspace, pipeline).asked_entry) is not None:
            yield AskStatus(pipeline=pipeline, why=entry.reason, asked_at=entry.moved_at)


def _model(workspace: Workspace, name: str) -> ModelStatus:
    champion = refs.current(workspace, model_refs.alias_ref(name, "champion"))
    challenger = refs.current(workspace, model_refs.alias_ref(name, "challenger"))
    return ModelStatus(
        model=name,
        num_versions=len({entry.target for entry in model_refs.versions(workspace, name)}),
        champion=None if champion is None else model_refs.version_of(workspace, name, champion.target),
        challenger=None if challenger is None else model_refs.version_of(workspace, name, challenger.target),
        champion_since=None if champion is None else champion.moved_at,
        reason="" if champion is None else champion.reason,
        waits=decisions.awaiting(workspace, name),
    )


def _run(workspace: Workspace, name: str, described: Sha256 | None) -> RunStatus:
    """What this machine knows of a run, and what of it was published by any.

    Args:
        described: the run's whole digest, if its document is there.
    """
    folder = workspace.local_path(f"runs/{name}")
    here = run_lock.holder_of(folder)
    finished = workspace.exists(f"runs/{name}/{RESULT_NAME}")
    there = None if workspace.is_local or here or finished else claim_records.owner_elsewhere(workspace, name)
    owner = here or there
    checkpoints = {step_of(path.parent.name) for path in folder.glob(f"checkpoints/*/{MANIFEST_NAME}")}
    if not workspace.is_local:
        checkpoints |= {step_of(published) for published in workspace.names(f"runs/{name}/checkpoints")}
    kept = checkpoints - {None}
    newest = None if run_lock.is_at_work(folder) else _newest_attempt(folder)
    is_open = newest is not None and newest.state != "done"
    return RunStatus(
        run=name,
        pipeline=_pipeline(workspace, described),
        going_on=owner is not None,
        owner=owner or "",
        is_elsewhere=there is not None,
        step=max([*(int(event["step"]) for event in _steps(folder)), *filter(None, kept)], default=None),
        num_checkpoints=len(kept),
        checkpoint_step=max(filter(None, kept), default=None),
        finished=finished,
        folder=str(folder),
        ended=newest.what if newest is not None and is_open else "",
        continued_by=newest.continued_by if newest is not None and is_open else "",
    )


def _newest_attempt(folder: Path) -> AttemptRecord | None:
    """Of the run's training, verification, evaluation or export, whichever began last."""
    records = [record for path in folder.glob(f"**/{RECORDS_NAME}") for record in AttemptRecords(path.parent).all()]
    return max(records, key=lambda record: record.begin_unix_s, default=None)


def _pipeline(workspace: Workspace, run: Sha256 | None) -> str:
    with contextlib.suppress(IntegrityError):
        return "" if run is None else workspace.load(Link(kind=RunSpec.kind, sha256=run), RunSpec).pipeline
    return ""


def _steps(folder: Path) -> Iterator[Event]:
    spools = sorted(folder.glob("attempts/*/ledger/rank-0.jsonl"))
    return (event for spool in spools[-1:] for event in SpoolTail(spool).stream() if event["event"] == "step")


def runs_named(status: Status, name: str) -> list[RunStatus]:
    """Those whose id begins so, and those that a flow run of this id trained: an alert shows no other."""
    trained: set[str] = set()
    with contextlib.suppress(ValueError):
        spool = Workspace(status.workspace).local_path(f"ledger/{uuid.UUID(name)}/flow.jsonl")
        trained = {Path(event["path"]).name for event in SpoolTail(spool).stream() if event["event"] == "run.folder"}
    return [run for run in status.runs if run.run in trained or run.run.startswith(name)]


def request_stop(workspace_uri: str, run: str, reason: str) -> str:
    """Leave the request where the run's owner finds it.

    Raises:
        ConfigError: no such run going on, or several that begin so.
    """
    asked = _going_on(workspace_uri, run)
    stop_request.request_stop(Path(asked.folder), reason or "asked by `headway stop`")
    return f"{asked.run} is asked to keep a checkpoint and end; the same retrain continues it."


def request_profile(workspace_uri: str, run: str, num_steps: int) -> str:
    """Leave the request where the run's ranks find it.

    Raises:
        ConfigError: no such run going on, or several that begin so.
    """
    asked = _going_on(workspace_uri, run)
    traces = profiling.request_profile(Path(asked.folder), num_steps=num_steps)
    return (
        f"{asked.run} is asked for a trace of its next {count(num_steps, 'step')}, or those that are left. Each rank "
        f"writes one, for chrome://tracing or ui.perfetto.dev:\n{asked.folder}/{traces}"
    )


def _going_on(workspace_uri: str, run: str) -> RunStatus:
    """The one run that goes on and begins so."""
    status = read_status(workspace_uri)
    named = runs_named(status, run)
    matching = [each for each in named if each.going_on]
    if len(matching) != 1:
        known = f"Going on: {', '.join(each.run for each in status.runs if each.going_on) or 'none'}."
        over = [each for each in named if not each.going_on]
        if not matching and len(over) == 1:
            raise _over(over[0], known)
        raise ConfigError(f"{run!r} names {len(matching)} runs that are going on.", advice=known)
    if matching[0].is_elsewhere:
        raise ConfigError(f"run {matching[0].run} goes on elsewhere ({matching[0].owner}).", advice="Ask for it there.")
    return matching[0]


def _over(run: RunStatus, going_on: str) -> ConfigError:
    """What who asks something of a run is told, if it goes on no more."""
    where = "before its first step" if run.step is None else f"at step {run.step:,}"
    why = f": {run.ended}" if run.ended else "."
    again = f"`{run.continued_by}` goes on with it. " if run.continued_by else ""
    what = f"run {run.run} {'is finished' if run.finished else 'has ended'}, {where}{why}"
    return ConfigError(what, where=run.folder, advice=f"{again}{going_on}")


def print_status(status: Status, console: Console | None = None) -> None:
    """A name a line, what is known of it below, so that 80 columns are enough."""
    console = console or plain_console()
    console.print(f"workspace  {status.workspace}\n")
    for model in status.models:
        _print_entry(console, f"{model.model}  {count(model.num_versions, 'version')}", _model_facts(model))
    if not status.models:
        console.print("no models yet")
    finished = {retrain.pipeline: f"finished {retrain.finished_at} on {retrain.host}" for retrain in status.finished}
    for failure in status.failed:
        stage = f" in stage {failure.stage}" if failure.stage else ""
        _print_entry(
            console,
            f"{failure.pipeline}  FAILED{stage}",
            _told(failure, finished.pop(failure.pipeline, "none on record has finished")),
        )
    for name, when in finished.items():
        _print_entry(console, f"{name}  retrains", {"last": when})
    for hold in status.held:
        _print_entry(console, f"{hold.pipeline}  HELD", {"by": hold.who, "why": hold.why, "since": hold.since})
    for ask in status.asked:
        _print_entry(console, f"{ask.pipeline}  retrain asked for", {"why": ask.why, "since": ask.asked_at})
    for retrain in status.running:
        _print_entry(console, f"{retrain.pipeline}  RUNNING", words(retrain, time.time()))
    console.print()
    at_stage = {retrain.run: retrain.stage for retrain in status.running if retrain.run}
    for run in status.runs:
        trained = f"trained, in stage {at_stage[run.run]}" if at_stage.get(run.run) else "finished"
        state = "going on" if run.going_on else trained if run.finished else "unfinished"
        _print_entry(console, f"{run.run}  {state}", _run_facts(run))
    if not status.runs:
        console.print("no runs yet")
    for pipeline in status.waiting:
        state = "STARVING" if pipeline.starving else "goes on in its next window"
        console.print()
        _print_entry(console, f"{pipeline.pipeline}  {state}", {"windows": f"{pipeline.what}."})


def _model_facts(model: ModelStatus) -> dict[str, str]:
    champion = "none" if model.champion is None else f"v{model.champion} since {model.champion_since}"
    # A version that won is both; of the two it is what matters.
    has_won = model.challenger is not None and model.challenger == model.champion
    challenger = "" if has_won else "none" if model.challenger is None else f"v{model.challenger}"
    waits = "" if model.waits is None else f"v{model.waits}, for `headway promote` or `headway refuse`"
    return {"champion": champion, "why": model.reason, "challenger": challenger, "waits": waits}


def _told(failure: StandingFailure, finished: str) -> dict[str, str]:
    return {
        "at": f"{failure.failed_at} on {failure.host}",
        "what": failure.what,
        "to do": failure.advice,
        "card": failure.card,
        "last": finished,
    }


def _run_facts(run: RunStatus) -> dict[str, str]:
    step = "none yet" if run.step is None else f"{run.step:,}"
    newest = "" if run.checkpoint_step is None else f", the newest of step {run.checkpoint_step:,}"
    return {
        "pipeline": run.pipeline,
        "step": f"{step}, {count(run.num_checkpoints, 'checkpoint')}{newest}",
        "owner": run.owner,
        "ended": run.ended,
        "go on": run.continued_by,
    }


def _print_entry(console: Console, title: str, facts: dict[str, str]) -> None:
    console.print(headed(title))
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, fact in facts.items():
        if fact:
            table.add_row(f"  {name}", Text(plain_text.lines(fact), overflow="fold"))
    print_table(console, table, wrapped=True)
