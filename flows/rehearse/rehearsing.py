"""`headway rehearse`: the real flow on a part of the data, through the pipeline's own launcher, beside all that counts.

Twice: the first flow run stops half-way with a checkpoint, and the second restores it with the whole gang, goes on to
the last step, and has its model verified, evaluated and registered, in a workspace of the rehearsal's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import EnvironmentProblem, HeadwayError, RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.preflight import check_request
from headway.flows.config.request import RetrainRequest
from headway.flows.rehearse import report as reports
from headway.flows.rehearse.place import RehearsalPlace, rehearsal_place
from headway.flows.rehearse.project import TEAMS_OWN, SmallProject, make_small_project
from headway.flows.rehearse.report import RehearsalReport
from headway.flows.retrain_flow import retrain
from headway.flows.run.session import command_started_unix_s, watchers
from headway.flows.windows.admission import entered
from headway.tasks.core.stage_records import newest_record_of
from headway.tasks.core.stopped import raised_if_stopped
from headway.tasks.registry import mlflow_store
from headway.training.config.shards import TRAIN
from headway.training.observe.ledger import Event, Listener, read_events

LAST_LINES = 5
T = TypeVar("T")


class RehearsalRunner:
    """One rehearsal, with what it learnt until it ended, however that was.

    Args:
        request: of the pipeline and workspace that count; no more of it is looked at.
        on_event: every event of the flow runs as it happens.
    """

    def __init__(self, request: RetrainRequest, *, steps: int, keep: bool = False, on_event: Listener) -> None:
        self._request, self._steps, self._keep, self._on_event = request, steps, keep, on_event
        self._events: list[Event] = []
        self._attempts: dict[Path, list[Event]] = {}
        """What each rank wrote down, by its spool."""
        self._shard_bytes = self._num_rows = 0

    def run(self, on_report: Callable[[RehearsalReport], object]) -> None:
        """Rehearse, clean up, and tell.

        Args:
            on_report: of a rehearsal that failed as well, before its error is raised; not where nothing was rehearsed.

        Raises:
            ConfigError, DataError: refused before anything was rehearsed.
            HeadwayError: what the real run would end with.
            EnvironmentProblem: it would go well but for the space or the registry.
        """
        started_s = time.monotonic()
        pipeline, file, workspace = check_request(self._request)
        faults = [*_registry_faults(pipeline)]
        with rehearsal_place(workspace, keep=self._keep) as place:
            project = make_small_project(_impatient(pipeline), file, place.folder, steps=self._steps)
            failure = self._rehearse(project, place)
            self._read(place.workspace)
        kept = str(place.folder) if self._keep else ""
        report = self._report(pipeline, workspace, project, faults, failure, kept, time.monotonic() - started_s)
        on_report(report)
        if failure is not None:
            raise failure
        if report.faults:
            raise EnvironmentProblem(" ".join(report.faults), where=pipeline.pipeline)

    def _rehearse(self, project: SmallProject, place: RehearsalPlace) -> HeadwayError | None:
        # So that stopping, restoring and resuming are rehearsed as well, which a run to its end would not show.
        half = project.steps // 2
        try:
            if half:
                with contextlib.suppress(RunStopped):
                    self._retrain(project, place, stop_at_step=half)
            self._retrain(project, place)
        except HeadwayError as error:
            return error
        return None

    def _retrain(self, project: SmallProject, place: RehearsalPlace, *, stop_at_step: int | None = None) -> None:
        request = RetrainRequest(
            pipeline=str(project.file),
            workspace=place.workspace.uri,
            note="headway rehearse",
            stop_at_step=stop_at_step,
        )
        with (
            _set(watchers, (self._events.append, self._on_event)),
            # Both flow runs are of one command: the second's time account begins with itself.
            _set(command_started_unix_s, time.time()),
            _set(entered, request),  # whose end is ours
            _without_places_of_the_team(),
        ):
            raised_if_stopped(retrain(request))

    def _read(self, workspace: Workspace) -> None:
        for spool in workspace.local_root.glob("runs/*/attempts/*/ledger/rank-*.jsonl"):
            self._attempts[spool] = read_events(spool)
        for name in workspace.names(f"documents/{ShardManifest.kind}"):
            manifest = json.loads(workspace.read(f"documents/{ShardManifest.kind}/{name}"))
            self._num_rows = sum(int(group["num_rows"]) for group in manifest["groups"] if group["split"] == TRAIN)
            self._shard_bytes = sum(
                int(shard["file"]["size_bytes"]) for group in manifest["groups"] for shard in group["shards"]
            )

    def _report(
        self,
        pipeline: PipelineSpec,
        workspace: Workspace,
        project: SmallProject,
        faults: Sequence[str],
        failure: HeadwayError | None,
        kept: str,
        wall_s: float,
    ) -> RehearsalReport:
        leaders = [events for spool, events in sorted(self._attempts.items()) if spool.name == "rank-0.jsonl"]
        steps = [[event for event in events if event["event"] == "step"] for events in leaders]
        every = [event for events in leaders for event in events]
        step_s, checkpoint = reports.warm_step_s(steps), reports.checkpoint_cost(every)
        rehearsed, share = reports.of_stage(self._events), project.subset.share
        training = pipeline.training.for_rows(round(self._num_rows / share))
        trained_s = sum(float(event["duration_s"]) for event in every if event["event"] in reports.OF_TRAINING)
        # A rehearsal starts its gang twice, and the real run once.
        launches = max(1, len(leaders))
        training_s = reports.real_training_s(
            training,
            launch_s=rehearsed.get("launch", 0.0) / launches,
            trained_s=trained_s / launches,
            step_s=step_s,
            checkpoint=checkpoint,
            validation_s=reports.validation_s(every),
        )
        before = {stage: newest_record_of(workspace, pipeline.pipeline, stage) for stage in reports.OF_ALL_DATA}
        costs = reports.stage_costs(
            rehearsed,
            {name: float(record.provenance["duration_s"]) for name, record in before.items() if record is not None},
            share=share,
            training_s=training_s,
        )
        needed = reports.needed_bytes(
            training, shard_bytes=self._shard_bytes, share=share, step_s=step_s, checkpoint=checkpoint
        )
        free = shutil.disk_usage(workspace.local_root if workspace.local_root.exists() else Path.cwd()).free
        known = [cost.real_s for cost in costs]
        found = [*faults, *_space_faults(needed, free), *([] if failure is None else [_message(failure, self._events)])]
        exit_code = failure.exit_code if failure is not None else EnvironmentProblem.exit_code if found else 0
        return RehearsalReport(
            pipeline=pipeline.pipeline,
            workspace=workspace.uri,
            kept=kept,
            launcher=pipeline.launch.launcher,
            nodes=pipeline.launch.nodes,
            ranks_per_node=pipeline.launch.ranks_per_node,
            data=project.subset.message,
            share=share,
            excluded=list(project.excluded),
            steps=project.steps,
            real_steps=training.max_steps,
            wall_s=wall_s,
            stages=costs,
            step_s=step_s,
            checkpoint=checkpoint,
            real_training_s=training_s,
            real_s=None if failure is not None or None in known else sum(filter(None, known)),
            peak_memory_bytes=self._peak_memory_bytes(),
            needed_bytes=needed,
            free_bytes=free,
            notes=reports.notices(self._events),
            faults=found,
            exit_code=exit_code,
        )

    def _peak_memory_bytes(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for spool, events in self._attempts.items():
            rank = int(spool.stem.partition("-")[2])
            for event in events:
                found[rank] = max(found.get(rank, 0), int(event.get("memory_bytes", 0)))
        return dict(sorted(found.items()))


def _impatient(pipeline: PipelineSpec) -> PipelineSpec:
    """What fails once is to be told, not tried again: a rehearsal is the first try."""
    once = pipeline.launch.model_copy(update={"max_attempts": 1, "max_cycles_without_progress": 1})
    return pipeline.model_copy(update={"launch": once})


def _registry_faults(pipeline: PipelineSpec) -> Iterator[str]:
    """A server is asked whether it answers; a database is left alone, since whoever opens one may make tables."""
    if not pipeline.registry.tracking_uri.startswith(("http://", "https://")):
        return
    try:
        mlflow_store.connect(pipeline.registry.tracking_uri)
    except HeadwayError as error:
        yield str(error)


def _space_faults(needed: int | None, free: int) -> Iterator[str]:
    if needed is not None and needed > free:
        sizes = f"{needed / 1e9:,.2f} GB for shards and checkpoints, and {free / 1e9:,.2f} GB are free"
        yield f"the run needs about {sizes}."


def _message(failure: HeadwayError, events: Sequence[Event]) -> str:
    """The failure, and who failed first."""
    cards = [event for event in events if event["event"] == "flow.card"]
    if not cards or (first := cards[-1]["failure"])["rank"] is None:
        return str(failure)
    card = cards[-1]
    host = f" on {first['host']}" if first["host"] else ""
    last = "".join(f"\n{'':<13}{line}" for line in card["last_lines"][-LAST_LINES:])
    return f"{failure}\n{'':<13}first: rank {first['rank']}{host}{', which wrote last:' if last else ''}{last}"


@contextlib.contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def _without_places_of_the_team() -> Iterator[None]:
    """While the body runs, no variable names a server or a workspace that counts."""
    taken = {name: os.environ.pop(name) for name in TEAMS_OWN if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)
