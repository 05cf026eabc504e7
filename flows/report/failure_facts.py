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

from headway.data_contracts.store.errors import (
    EXIT_DEFECT,
    ContractViolation,
    EnvironmentProblem,
    HeadwayError,
    RunBusy,
    RunStopped,
)
from headway.data_contracts.store.object_store import Patience
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.request import RetrainRequest, TrainingRequest
from headway.flows.console.commands import command_name, workspace_option
from headway.flows.console.output import print_line
from headway.flows.report.failure_card import FailureCard, markdown
from headway.flows.report.next_steps import next_steps, what_to_fix
from headway.tasks.core.artifacts import artifact_key, show_markdown
from headway.tasks.core.context import RunContext
from headway.tasks.core.run_progress import read_steps
from headway.tasks.ownership.pipeline_history import FailedRetrain, record_failure
from headway.training.checkpoint.layout import MANIFEST_NAME, step_of
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import RECORDS_NAME, AttemptRecord, AttemptRecords
from headway.training.launch.diagnosis.logs import last_lines
from headway.training.launch.supervise.supervisor import ITS_LAST_LINES
from headway.training.observe.ledger import Event

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

    A stop's own words say which checkpoint was kept; of an interrupt, which has none, it is reported here.
    """
    notes = _Notes()
    context.ledger.listeners.append(notes)
    # What trials come to says nothing of the pipeline's retrains.
    is_retrain = isinstance(request, RetrainRequest)
    brief = dataclasses.replace(context, workspace=Workspace(context.workspace.uri, BRIEFLY))
    # A card must not make the folder of a workspace that went away anew.
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
                    record_failure(brief.workspace, _in_short(card, page))
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


def _in_short(card: FailureCard, page: Path) -> FailedRetrain:
    return FailedRetrain(
        pipeline=card.pipeline,
        stage=card.stage,
        failed_unix_s=card.unix_s,
        host=socket.gethostname(),
        failure=card.failure,
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
    try:
        step = None if run_dir is None else _newest_checkpoint(context.workspace, run_dir)
        coming = next_steps(context.workspace, pipeline, error, step)
    except EnvironmentProblem as away:  # as far as this machine knows: there is a card all the same
        step = None if run_dir is None else max(_checkpoints_here(run_dir), default=None)
        coming = f"Not known while the workspace does not answer ({away.where}: {away.what})"
    except OSError as refused:
        step, coming = None, f"Not known while the workspace cannot be read ({refused})."
    return FailureCard(
        pipeline=context.pipeline,
        workspace=context.workspace.uri,
        flow_run=context.budget_scope,
        unix_s=time.time(),
        stage=stage,
        failure=_described(error, Failure() if failed is None else failed.failure),
        ledger=str(context.workspace.local_path(f"ledger/{context.budget_scope}")),
        run="" if run_dir is None else run_dir.name,
        last_lines=[] if failed is None or not failed.failure.log else last_lines(Path(failed.failure.log), LAST_LINES),
        last_good_step=step,
        failed_step=None if run_dir is None or failed is None else _failed_step(run_dir, attempts, failed),
        attempts=attempts,
        next=coming,
        commands=_commands(request, run_dir, failed, error),
    )


def _described(error: Exception, first: Failure) -> Failure:
    """What a person has to know, and which rank failed first."""
    if not isinstance(error, HeadwayError):
        what = f"{type(error).__name__}: {error}"
        defect = Failure(cause="defect", error=type(error).__name__, exit_code=EXIT_DEFECT, what=what, advice=DEFECT)
        return dataclasses.replace(defect, rank=first.rank, host=first.host)
    message = Failure.of(error)
    advice = message.advice.partition(ITS_LAST_LINES)[0].rstrip()
    return dataclasses.replace(message, advice=advice, rank=first.rank, node=first.node, host=first.host, log=first.log)


def _attempts(run_dir: Path, scope: str) -> list[tuple[str, AttemptRecord]]:
    """Of every gang of this flow run, oldest first."""
    found = [
        (_gang(path.parent, run_dir), record)
        for path in run_dir.glob(f"**/{RECORDS_NAME}")
        for record in AttemptRecords(path.parent).in_scope(scope)
    ]
    return sorted(found, key=lambda each: each[1].start_unix_s)


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


def _newest_checkpoint(workspace: Workspace, run_dir: Path) -> int | None:
    # Another machine may have published newer ones than lie here.
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
    name, where = command_name(), workspace_option(request.workspace)
    mended = what_to_fix(error)
    if mended is not None:
        check = f"{name} contract check {shlex.quote(request.pipeline)}{where}"
        look = {"look again": check} if error.__class__ is ContractViolation else {}
        return look | {f"once {mended} is mended": request.command}
    if run_dir is None:
        return {"resume": request.command}  # of what failed before training, status and logs know nothing
    found = {}
    if failed is not None:
        rank = "" if failed.failure.rank is None else f" --rank {failed.failure.rank}"
        found["what it wrote"] = f"{name} logs {run_dir.name}{rank}{where}"
    return found | {"resume": request.command, "look around": f"{name} status{where}"}
