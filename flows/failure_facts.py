"""What is known of a failure, put on a card where a retrain fails, from what is on disk anyway.

The card is kept beside the flow run's ledger, shown in the terminal and as an artifact. Whatever goes wrong while it is
made, the failure itself is what is raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from data_contracts.errors import ContractViolation, EnvironmentProblem, HeadwayError, RunBusy, RunStopped
from data_contracts.object_store import Patience
from data_contracts.publication import Workspace
from flows.commands import command_name, elsewhere
from flows.failure_card import FailureCard, Tried, markdown
from flows.failure_next import MENDED, next_steps
from flows.last_retrains import StandingFailure, write_failure
from flows.output import print_line
from flows.pipeline_spec import PipelineSpec
from flows.request import RetrainRequest, TrainingRequest
from tasks.artifacts import artifact_key, show_markdown
from tasks.context import RunContext
from tasks.run_progress import read_steps
from training.checkpoint.layout import MANIFEST_NAME, step_of
from training.launch.logs import last_lines
from training.launch.protocol import AttemptFiles
from training.launch.retry_budget import RECORDS_NAME, AttemptRecord, AttemptRecords
from training.launch.spec import attempt_folder
from training.launch.supervisor import ITS_LAST_LINES
from training.ledger import Event

NAME = "failure.md"
BRIEFLY = Patience(deadline_s=15.0, attempt_s=10.0)
"""Of a store to which a run says its last words: it may be why the run failed."""
LAST_LINES = 12
DEFECT = "This is a defect of Headway, or of a library: report it with the traceback."


class _Notes:
    """A listener that remembers which stage failed, and in which folder ranks ran."""

    def __init__(self) -> None:
        self.stage, self.run_dir = "", None

    stage: str
    run_dir: Path | None

    def __call__(self, event: Event) -> None:
        name = str(event["event"])
        if name == "task" and event.get("outcome", "ok") != "ok":
            self.stage = str(event["task"])
        elif name == "run.folder":
            self.run_dir = Path(str(event["path"]))


@contextlib.contextmanager
def failure_card(context: RunContext, request: TrainingRequest, pipeline: PipelineSpec) -> Iterator[None]:
    """Whatever fails in the body leaves a card. A stop, and an interrupt, is no failure.

    A stop's own words say which checkpoint was kept; of an interrupt, which has none, it is told here.
    """
    notes = _Notes()
    context.ledger.listeners.append(notes)
    # What trials come to says nothing of the pipeline's retrains.
    is_retrain = isinstance(request, RetrainRequest)
    brief = dataclasses.replace(context, workspace=Workspace(context.workspace.uri, BRIEFLY))
    brief.workspace.presence = context.workspace.presence
    try:
        yield
    except (RunStopped, RunBusy):  # nothing is wrong with a run that another process works on
        raise
    except Exception as error:
        try:
            card = make_card(brief, request, pipeline, error, notes.stage, notes.run_dir)
            # Who looks on is told first: it may be the disk that is full. Who looks no more, at a closed terminal, say,
            # must not cost the card.
            with contextlib.suppress(OSError, ValueError):
                context.ledger.event("flow.card", **card.model_dump(mode="json"))
            show_markdown(artifact_key(card.pipeline, "failure"), lambda: markdown(card), card.title)
            page = context.workspace.local_path(f"ledger/{card.flow_run}/{NAME}")
            try:
                if is_retrain:
                    write_failure(brief.workspace, _in_short(card, page))
            finally:
                _keep(page, markdown(card), context.workspace)
        except Exception as second:
            error.add_note(f"Nor could a failure card be written: {second}")
        raise
    except BaseException:
        if notes.run_dir is not None:
            step = max(_checkpoints_here(notes.run_dir), default=None)
            kept = "no checkpoint yet" if step is None else f"the checkpoint of step {step:,}"
            context.ledger.event("run.interrupted", run=notes.run_dir.name, step=step, message=kept)
        raise


def _keep(page: Path, text: str, workspace: Workspace) -> None:
    """Write the card, into the folder for temporary files where the workspace cannot take it."""
    try:
        workspace.require_there()
        page.write_text(text)
    except (FileNotFoundError, PermissionError, EnvironmentProblem):
        descriptor, name = tempfile.mkstemp(prefix="headway-failure-", suffix=".md")
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        print_line(f"headway: the workspace cannot keep the failure card; it is {name}", sys.stderr)


def _in_short(card: FailureCard, page: Path) -> StandingFailure:
    return StandingFailure(
        pipeline=card.pipeline,
        stage=card.stage,
        failed_unix_s=card.unix_s,
        host=socket.gethostname(),
        cause=card.cause,
        what=card.what if not card.where else f"{card.where}: {card.what}",
        advice=card.advice,
        card=str(page),
        flow_run=card.flow_run,
    )


def make_card(
    context: RunContext,
    request: TrainingRequest,
    pipeline: PipelineSpec,
    error: Exception,
    stage: str,
    run_dir: Path | None,
) -> FailureCard:
    """All that is known of a failure.

    Args:
        run_dir: where this flow run's ranks ran, if any did.
    """
    attempts = [] if run_dir is None else _attempts(run_dir, context.budget_scope)
    failed = _failed([record for _, record in attempts])
    said = error if isinstance(error, HeadwayError) else HeadwayError(f"{type(error).__name__}: {error}", advice=DEFECT)
    try:
        step = None if run_dir is None else _newest_checkpoint(context.workspace, run_dir)
        coming = next_steps(context.workspace, pipeline, error, step)
    except EnvironmentProblem as away:  # as far as this machine knows: there is a card all the same
        step = None if run_dir is None else max(_checkpoints_here(run_dir), default=None)
        coming = f"Not known while the workspace does not answer ({away.where}: {away.what})"
    except OSError as refused:
        step, coming = None, f"Not known while the workspace cannot be read ({refused})."
    log = "" if failed is None else failed.log
    return FailureCard(
        pipeline=context.pipeline,
        workspace=context.workspace.uri,
        flow_run=context.budget_scope,
        unix_s=time.time(),
        stage=stage,
        error=type(error).__name__,
        cause=said.cause if said is error else "defect",
        exit_code=said.exit_code,
        what=said.what,
        where=said.where,
        advice=said.advice.partition(ITS_LAST_LINES)[0].rstrip(),
        ledger=str(context.workspace.local_path(f"ledger/{context.budget_scope}")),
        run="" if run_dir is None else run_dir.name,
        rank=None if failed is None else failed.rank,
        host="" if failed is None else failed.host,
        last_lines=last_lines(Path(log), LAST_LINES) if log else [],
        last_good_step=step,
        failed_step=None if run_dir is None or failed is None else _failed_step(run_dir, attempts, failed),
        tried=[_tried(gang, record) for gang, record in attempts],
        next=coming,
        commands=_commands(request, run_dir, failed, error),
    )


def _attempts(run_dir: Path, scope: str) -> list[tuple[str, AttemptRecord]]:
    """Of every gang of this flow run, oldest first."""
    found = [
        (_gang(path.parent, run_dir), record)
        for path in run_dir.glob(f"**/{RECORDS_NAME}")
        for record in AttemptRecords(path.parent).in_scope(scope)
    ]
    return sorted(found, key=lambda each: each[1].begin_unix_s)


def _failed(records: list[AttemptRecord]) -> AttemptRecord | None:
    """The newest that failed; None where another did its work since: then it is no rank that the error comes from."""
    for record in reversed(records):
        if record.state != "stopped":
            return record if record.state == "failed" else None
    return None


def _failed_step(run_dir: Path, attempts: list[tuple[str, AttemptRecord]], failed: AttemptRecord) -> int | None:
    """The newest step that anything knows of: on a full disk a rank's last word is newer than its ledger."""
    gang = next(gang for gang, record in attempts if record is failed)
    if gang != "train":
        return None
    folder = attempt_folder(run_dir, failed.attempt)
    markers = AttemptFiles(folder).read_markers().values()
    spools = (read_steps(spool)[-1:] for spool in folder.glob("ledger/rank-*.jsonl"))
    steps = [
        failed.step,
        *(marker.step for marker in markers),
        *(int(step["step"]) for last in spools for step in last),
    ]
    return max((step for step in steps if step is not None), default=None)


def _gang(folder: Path, run_dir: Path) -> str:
    return "train" if folder == run_dir else folder.relative_to(run_dir).parts[0]


def _tried(gang: str, record: AttemptRecord) -> Tried:
    duration_s = None if record.end_unix_s is None else record.end_unix_s - record.begin_unix_s
    return Tried(
        gang=gang,
        attempt=record.attempt,
        ended=record.state,
        cause=record.cause,
        step=record.step,
        duration_s=duration_s,
        what=record.what,
    )


def _newest_checkpoint(workspace: Workspace, run_dir: Path) -> int | None:
    published = [] if workspace.is_local else workspace.names(f"runs/{run_dir.name}/checkpoints")
    there = {step for step in map(step_of, published) if step}
    return max(there | _checkpoints_here(run_dir), default=None)


def _checkpoints_here(run_dir: Path) -> set[int]:
    """Steps of those on this machine."""
    found = (step_of(path.parent.name) for path in run_dir.glob(f"checkpoints/*/{MANIFEST_NAME}"))
    return {step for step in found if step}


def _commands(
    request: TrainingRequest, run_dir: Path | None, failed: AttemptRecord | None, error: Exception
) -> dict[str, str]:
    name, where = command_name(), elsewhere(request.workspace)
    mended = MENDED.get(error.cause) if isinstance(error, HeadwayError) else None
    if mended is not None:
        check = f"{name} contract check {shlex.quote(request.pipeline)}{where}"
        look = {"look again": check} if error.__class__ is ContractViolation else {}
        return look | {f"once {mended} is mended": request.command}
    if run_dir is None:
        return {"go on": request.command}  # of what failed before training, status and logs know nothing
    found = {}
    if failed is not None:
        rank = "" if failed.rank is None else f" --rank {failed.rank}"
        found["what it wrote"] = f"{name} logs {run_dir.name}{rank}{where}"
    return found | {"go on": request.command, "look around": f"{name} status{where}"}
