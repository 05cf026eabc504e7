"""The flow `watch`: evaluate a pipeline's triggers, and request a retrain where one is due. Its final state's name is
the result.

| state | meaning |
|---|---|
| `NotDue` | nothing is over its limit |
| `Requested` | a retrain was requested, or the one requested before has not started yet |
| `WaitingForWindow` | due, and the windows are closed: the next window's own start takes it |
| `PipelinePaused` | due, and a person holds the pipeline |
| `WaitingForRun` | a retrain is running or about to start: the check after its end decides |
| `PreviousRequestFailed` | the retrain requested for these data failed or was cancelled: it is not requested again |
"""

from __future__ import annotations

import datetime
import functools
from typing import Literal, NamedTuple, get_args

from prefect import State, flow
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field

from headway.data_contracts.store.errors import RefConflict
from headway.flows.config.request import RetrainRequest
from headway.flows.console.environment import default_workspace
from headway.flows.prefect_api.client import PrefectClient, connected
from headway.flows.triggers import run_requests
from headway.flows.triggers.evaluation import Due, NotDue, WatchedPipeline, evaluate_triggers, open_watched
from headway.flows.windows.admission import open_pipeline
from headway.flows.windows.gate import Skip, decide, opens_next
from headway.flows.windows.holds import current_hold
from headway.tasks.ownership.pipeline_history import read, record_ask


class WatchRequest(BaseModel):
    """Look whether a retrain of one pipeline is due."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pipeline: str = Field(title="Pipeline", description="A pipeline file, or the name of one in deployments/.")
    retrain: str = Field(title="Retrain", description="The deployment that retrains it, such as retrain/stdlib-lm.")
    workspace: str = Field(
        default="", title="Workspace", description="Left empty: the worker's HEADWAY_WORKSPACE, or its project's."
    )


Ending = Literal["NotDue", "Requested", "WaitingForWindow", "PipelinePaused", "WaitingForRun", "PreviousRequestFailed"]
ENDED_BY_NAME: tuple[Ending, ...] = get_args(Ending)


class WatchOutcome(NamedTuple):
    state: Ending
    message: str


@flow(name="watch", flow_run_name="watch {request.pipeline}", persist_result=False)
def watch(request: WatchRequest) -> State[None]:
    """Ask for a retrain if one is due.

    Args:
        request: Which pipeline, and which deployment retrains it.
    """
    came = watch_once(request)
    return Completed(name=came.state, message=came.message)


def watch_once(request: WatchRequest) -> WatchOutcome:
    """Look, record the ask, then ask: who is killed between the two asks at the next look, with the same key.

    Raises:
        HeadwayError: what cannot be looked at, or no server that answers.
    """
    watched = open_watched(request.pipeline, request.workspace or default_workspace())
    with connected() as server:
        deployment = run_requests.deployment_id(server, request.retrain)
        # Before a look, which may read all data beside a training that runs.
        if run := run_requests.active_runs(server, deployment):
            return WatchOutcome("WaitingForRun", f"{run}: the look after its end decides.")
        found = evaluate_triggers(watched, functools.partial(run_requests.newest_event, server))
        if isinstance(found.decision, NotDue):
            return WatchOutcome("NotDue", found.decision.why)
        due = found.decision
        if (hold := current_hold(watched.workspace, watched.spec.pipeline)) is not None:
            return WatchOutcome("PipelinePaused", f"{due.why}. {hold}")
        if closed := _closed(request, watched):
            return WatchOutcome("WaitingForWindow", f"{due.why}. {closed}")
        # Once more, since looking at the data may have taken long.
        if run := run_requests.active_runs(server, deployment):
            return WatchOutcome("WaitingForRun", f"{due.why}. {run}: the look after its end decides.")
        if not due.is_recorded:
            try:
                record_ask(watched.workspace, due.ask, found.history)
            except RefConflict:
                return _requested_by_another(server, deployment, request, watched)
        return _ask(server, deployment, request, watched, due)


def _closed(request: WatchRequest, watched: WatchedPipeline) -> str:
    """Why nothing may train now, and when it may; empty where it may."""
    if watched.spec.windows is None:
        return ""
    pipeline = open_pipeline(RetrainRequest(pipeline=request.pipeline, workspace=watched.workspace.uri))
    decision = decide(pipeline.timetable, datetime.datetime.now(datetime.UTC))
    if not isinstance(decision, Skip):
        return ""
    return f"{decision.state}: {decision.reason} {opens_next(pipeline.windows, decision.next_opening)}"


def _requested_by_another(
    server: PrefectClient, deployment: str, request: WatchRequest, watched: WatchedPipeline
) -> WatchOutcome:
    """Another watch was first, or a retrain finished meanwhile."""
    requested = read(watched.workspace, watched.spec.pipeline).requested
    if requested is None:
        return WatchOutcome("NotDue", "a retrain finished while the data were looked at; the next look decides.")
    return _ask(server, deployment, request, watched, Due(ask=requested, is_recorded=True))


def _ask(
    server: PrefectClient, deployment: str, request: WatchRequest, watched: WatchedPipeline, due: Due
) -> WatchOutcome:
    wanted = {
        "pipeline": request.pipeline,
        "in_window": watched.spec.windows is not None,
        "note": f"{due.why} (ask {due.ask.key})",
        **({"workspace": request.workspace} if request.workspace else {}),
    }
    made = run_requests.request_run(server, deployment, due.ask.key, {"request": wanted})
    message = f"{due.why}. Run {made.run} is {made.state.lower()}"
    if made.is_over:
        return WatchOutcome(
            "PreviousRequestFailed", f"{message}, and is not asked for again until data or events are new."
        )
    return WatchOutcome("Requested", f"{message}.")
