"""What the watch asks of a Prefect server: the newest event, runs that are active, and one retrain for one ask."""

from __future__ import annotations

import datetime
import uuid
from typing import Any, NamedTuple

import httpx
from prefect.exceptions import PrefectHTTPStatusError

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError
from headway.flows.prefect_api.client import PrefectClient
from headway.flows.triggers.evaluation import Event
from headway.flows.windows.admission import INFRASTRUCTURE
from headway.tasks.core.stopped import STOPPED

SOON = datetime.timedelta(seconds=60)
"""A start that is due so soon takes what is due: another one beside it would only be cancelled."""
MAX_TRIES = 5
"""Runs for one ask that came to nothing by no fault of the data or the model."""
BY_LIMIT = "Deployment concurrency limit reached."
"""How Prefect begins the message of a run that it cancels because another one of its deployment is running."""
ACTIVE = ("PENDING", "RUNNING", "CANCELLING")


class RequestedRun(NamedTuple):
    """The flow run that stands for an ask."""

    run: str
    """Its name."""
    state: str
    is_over: bool
    """It ended, and another one would end likewise: for a person to look at."""


def deployment_id(server: PrefectClient, name: str) -> str:
    """Raises `ConfigError`: it is not on the server."""
    try:
        with server.reading():
            return str(server.ask("GET", f"/deployments/name/{name}")["id"])
    except PrefectHTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise
        raise ConfigError(
            "there is no such deployment.", where=f"{server.url}: {name}", advice="Make it by `headway deploy PROFILE`."
        ) from error


def newest_event(server: PrefectClient, name: str, since_unix_s: float) -> Event | None:
    """As far back as the server keeps events."""
    now = datetime.datetime.now(datetime.UTC)
    since = datetime.datetime.fromtimestamp(since_unix_s, datetime.UTC)
    requested = {"event": {"name": [name]}, "occurred": {"since": since.isoformat(), "until": (now + SOON).isoformat()}}
    with server.reading():
        # Prefect hands out the newest first.
        found = server.ask("POST", "/events/filter", {"filter": requested, "limit": 1})["events"]
        if not found:
            return None
        # Both are kept in the workspace: what is longer than these would be kept, too.
        occurred = datetime.datetime.fromisoformat(found[0]["occurred"])
        return Event(id=str(uuid.UUID(found[0]["id"])), occurred=occurred.isoformat())


def active_runs(server: PrefectClient, deployment: str) -> str:
    """The run of a deployment that is active, or starts in a moment; empty where none does."""
    soon = (datetime.datetime.now(datetime.UTC) + SOON).isoformat()
    of_it: Json = {"deployments": {"id": {"any_": [deployment]}}}
    for wanted in (
        {"state": {"type": {"any_": list(ACTIVE)}}},
        {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": soon}},
    ):
        with server.reading():
            found = server.ask("POST", "/flow_runs/filter", {**of_it, "flow_runs": wanted, "limit": 1})
            if found:
                return f"run {found[0]['name']} is {str(found[0]['state']['name']).lower()}"
    return ""


def request_run(server: PrefectClient, deployment: str, key: str, parameters: dict[str, Json]) -> RequestedRun:
    """One flow run for one key, whoever asks how often; another one only where the last came to nothing.

    What a person cancelled or stopped, or what failed, is not asked for again: it has its own cause and message.
    """
    with server.reading():
        return _requested(server, deployment, key, parameters)


def _requested(server: PrefectClient, deployment: str, key: str, parameters: dict[str, Json]) -> RequestedRun:
    run: dict[str, Any] = {}
    for number in range(1, MAX_TRIES + 1):
        # Prefect answers with the run that has this key, however that ended; only another number makes another run.
        run = server.ask(
            "POST",
            f"/deployments/{deployment}/create_flow_run",
            {"parameters": parameters, "idempotency_key": f"{deployment}:{key}:{number}"},
        )
        state = run["state"]
        if state["type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            return RequestedRun(run["name"], str(state["name"]), is_over=False)
        # Completed and still asked for: its window was closed, or it took other data.
        by_limit = str(state["message"] or "").startswith(BY_LIMIT)
        came_to_nothing = state["type"] in ("COMPLETED", "CRASHED") or state["name"] == INFRASTRUCTURE or by_limit
        if state["name"] == STOPPED or not came_to_nothing:
            break
    return RequestedRun(run["name"], str(run["state"]["name"]), is_over=True)
