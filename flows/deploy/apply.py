"""Take the steps of a difference on a server, one after another; each is whole or has not happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.deploy.difference import ResourceChange
from headway.flows.deploy.resources import Kind, Resource
from headway.flows.prefect_api.client import PrefectClient
from headway.flows.prefect_api.foreign_answers import error_message

PATHS: dict[Kind, str] = {
    "work pool": "/work_pools/",
    "concurrency limit": "/v2/concurrency_limits/",
    "variable": "/variables/",
    "deployment": "/deployments/",
    "automation": "/automations/",
}
NOTHING = ("leave", "refuse")


def require_ours(changes: Sequence[ResourceChange], adopt_with: str) -> None:
    """Raises `ConfigError` where a name is taken by what others made: before anything is done."""
    if taken := [change for change in changes if change.action == "refuse"]:
        named = "; ".join(f"{change.kind} {change.name}" for change in taken)
        raise ConfigError(
            f"nothing was changed, since others made, or made for another profile: {named}.",
            where="the Prefect server",
            advice="Give the profile a `suffix` and its variables other names, delete them there, or take them over "
            f"with {adopt_with}.",
        )


def apply(server: PrefectClient, changes: Sequence[ResourceChange], on_done: Callable[[ResourceChange], None]) -> None:
    """Do what `changes` says, in its order.

    Args:
        on_done: receives each step that was taken.

    Raises:
        EnvironmentProblem: the server refused one, or went away; names what was done and what was not. The same
            difference, computed anew, holds the rest.
    """
    steps = [change for change in changes if change.action not in NOTHING]
    for number, change in enumerate(steps):
        try:
            _take(server, change)
        except httpx.HTTPError as error:
            done = ", ".join(map(str, steps[:number])) or "nothing"
            left = ", ".join(map(str, steps[number:]))
            raise EnvironmentProblem(
                f"could not {change}: {error_message(error)}. Done: {done}. Not done: {left}.",
                where=server.url,
                advice="Once that is mended, the same command does the rest.",
            ) from error
        on_done(change)


def _take(server: PrefectClient, change: ResourceChange) -> None:
    path = PATHS[change.kind]
    # The API knows a pool by its name.
    place = f"{path}{change.name if change.kind == 'work pool' else change.id}"
    if change.action == "remove":
        _remove(server, place)
        return
    assert change.wanted is not None
    if change.kind == "deployment":
        # As `prefect deploy` does: one transaction makes it, or puts it in the place of what was there.
        server.ask("POST", path, _deployment(server, change.wanted))
    elif change.kind == "automation":
        method = "POST" if change.action == "create" else "PUT"
        server.ask(method, path if method == "POST" else place, _automation(server, change.wanted))
    elif change.action == "create":
        server.ask("POST", path, _new(change.wanted))
    else:
        server.ask("PATCH", place, change.wanted.fields)


def _remove(server: PrefectClient, place: str) -> None:
    try:
        server.ask("DELETE", place)
    except httpx.HTTPStatusError as error:
        # A step that was taken and whose answer was lost is taken again by the same command.
        if error.response.status_code != httpx.codes.NOT_FOUND:  # gone meanwhile
            raise


def _new(wanted: Resource) -> dict[str, Json]:
    made: dict[str, Json] = {"name": wanted.name, **wanted.fields}
    if wanted.kind == "work pool":
        from prefect.workers.process import ProcessWorker

        made |= {"type": "process", "base_job_template": ProcessWorker.get_default_base_job_template()}
    return made


def _automation(server: PrefectClient, wanted: Resource) -> dict[str, Json]:
    """The API knows the deployment that an automation runs by its id."""
    actions = [dict(each) for each in wanted.fields["actions"]]
    for each in actions:
        if name := each.pop("deployment", None):
            with server.reading():
                each["deployment_id"] = server.ask("GET", f"/deployments/name/{name}")["id"]
    return {"name": wanted.name, **wanted.fields, "actions": actions}


def _deployment(server: PrefectClient, wanted: Resource) -> dict[str, Json]:
    flow, _, name = wanted.name.partition("/")
    with server.reading():
        return {"name": name, "flow_id": server.ask("POST", "/flows/", {"name": flow})["id"], **wanted.fields}
