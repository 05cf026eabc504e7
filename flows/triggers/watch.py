"""The flow `watch`: look whether a retrain is due, and ask the server for one. Its state's name says what came of it.

| state | meaning |
|---|---|
| `NotDue` | nothing is over its limit |
| `Asked` | a retrain was asked for, or the one asked for before has not started yet |
| `WaitsForWindow` | due, and the windows are closed: the next window's own start takes it |
| `HeldBack` | due, and a person holds the pipeline |
| `WaitsForRun` | a retrain goes on, or starts in a moment: the look after its end decides |
| `AskedInVain` | the retrain asked for failed, or a person ended it: nothing is asked again for the same data |
"""

from __future__ import annotations

import datetime
import functools
from typing import Literal, NamedTuple, get_args

from prefect import State, flow
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field

from data_contracts.errors import RefConflict
from flows.deploy.server import Server, connected
from flows.environment import default_workspace
from flows.holds import standing_hold
from flows.request import RetrainRequest
from flows.triggers import asking
from flows.triggers.look import Due, NotDue, Watched, look, open_watched
from flows.triggers.records import read_standing, record_ask
from flows.windows.admission import open_pipeline
from flows.windows.gate import Skip, decide, opens_next


class WatchRequest(BaseModel):
    """Look whether a retrain of one pipeline is due."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pipeline: str = Field(title="Pipeline", description="A pipeline file, or the name of one in deployments/.")
    retrain: str = Field(title="Retrain", description="The deployment that retrains it, such as retrain/stdlib-lm.")
    workspace: str = Field(
        default="", title="Workspace", description="Left empty: the worker's HEADWAY_WORKSPACE, or its project's."
    )


Ending = Literal["NotDue", "Asked", "WaitsForWindow", "HeldBack", "WaitsForRun", "AskedInVain"]
ENDED_BY_NAME: tuple[Ending, ...] = get_args(Ending)


class Outcome(NamedTuple):
    state: Ending
    said: str


@flow(name="watch", flow_run_name="watch {request.pipeline}", persist_result=False)
def watch(request: WatchRequest) -> State[None]:
    """Ask for a retrain if one is due.

    Args:
        request: Which pipeline, and which deployment retrains it.
    """
    came = watch_once(request)
    return Completed(name=came.state, message=came.said)


def watch_once(request: WatchRequest) -> Outcome:
    """Look, record the ask, then ask: who is killed between the two asks at the next look, with the same key.

    Raises:
        HeadwayError: what cannot be looked at, or no server that answers.
    """
    watched = open_watched(request.pipeline, request.workspace or default_workspace())
    with connected() as server:
        deployment = asking.deployment_id(server, request.retrain)
        # Before a look, which may read all data beside a training that goes on.
        if run := asking.going_on(server, deployment):
            return Outcome("WaitsForRun", f"{run}: the look after its end decides.")
        found = look(watched, functools.partial(asking.newest_event, server))
        if isinstance(found.decision, NotDue):
            return Outcome("NotDue", found.decision.why)
        due = found.decision
        if (hold := standing_hold(watched.workspace, watched.spec.pipeline)) is not None:
            return Outcome("HeldBack", f"{due.why}. {hold}")
        if closed := _closed(request, watched):
            return Outcome("WaitsForWindow", f"{due.why}. {closed}")
        if run := asking.going_on(server, deployment):
            return Outcome("WaitsForRun", f"{due.why}. {run}: the look after its end decides.")
        if not due.is_recorded:
            try:
                record_ask(watched.workspace, due.ask, found.standing, why=due.why)
            except RefConflict:
                return _asked_by_another(server, deployment, request, watched)
        return _ask(server, deployment, request, watched, due)


def _closed(request: WatchRequest, watched: Watched) -> str:
    """Why nothing may train now, and when it may; empty where it may."""
    if watched.spec.windows is None:
        return ""
    pipeline = open_pipeline(RetrainRequest(pipeline=request.pipeline, workspace=watched.workspace.uri))
    decision = decide(pipeline.timetable, datetime.datetime.now(datetime.UTC))
    if not isinstance(decision, Skip):
        return ""
    return f"{decision.state}: {decision.reason} {opens_next(pipeline.windows, decision.next_opening)}"


def _asked_by_another(server: Server, deployment: str, request: WatchRequest, watched: Watched) -> Outcome:
    """Another watch was first, or a retrain finished meanwhile."""
    standing = read_standing(watched.workspace, watched.spec.pipeline)
    if standing.asked is None or standing.asked_entry is None:
        return Outcome("NotDue", "a retrain finished while the data were looked at; the next look decides.")
    due = Due(why=standing.asked_entry.reason, ask=standing.asked, is_recorded=True)
    return _ask(server, deployment, request, watched, due)


def _ask(server: Server, deployment: str, request: WatchRequest, watched: Watched, due: Due) -> Outcome:
    wanted = {
        "pipeline": request.pipeline,
        "in_window": watched.spec.windows is not None,
        "note": f"{due.why} (ask {due.ask.key})",
        **({"workspace": request.workspace} if request.workspace else {}),
    }
    made = asking.ask(server, deployment, due.ask.key, {"request": wanted})
    said = f"{due.why}. Run {made.run} is {made.state.lower()}"
    if made.is_over:
        return Outcome("AskedInVain", f"{said}, and is not asked for again until data or events are new.")
    return Outcome("Asked", f"{said}.")
