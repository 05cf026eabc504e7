"""What is on a server, in the shape of what should be there: only what `headway deploy` decides about."""

from __future__ import annotations

from typing import Any

from headway.data_contracts.store.documents import Json
from headway.flows.deploy.resources import ExistingResource
from headway.flows.prefect_api.client import PrefectClient

SETS = ("after", "expect", "for_each")
"""Of a trigger; the server hands them out in any order."""
TRIGGER = ("type", "posture", *SETS, "match", "match_related", "threshold", "within")
ACTION = ("type", "state", "message", "block_document_id", "subject", "body", "source")


def actual(server: PrefectClient, mark: str) -> tuple[ExistingResource, ...]:
    """All pools, limits, variables, deployments and automations, whosever they are.

    Raises:
        EnvironmentProblem: what answers is no Prefect server.
        httpx.HTTPError: the server refuses, or does not answer.
    """
    with server.reading():
        return _actual(server, mark)


def _actual(server: PrefectClient, mark: str) -> tuple[ExistingResource, ...]:
    flows = {each["id"]: each["name"] for each in server.all("/flows/filter")}
    deployments = [_deployment(each, flows, mark) for each in server.all("/deployments/filter")]
    names = {each.id: each.name for each in deployments}
    return (
        *(_pool(each, deployments, mark) for each in server.all("/work_pools/filter")),
        *(_limit(each, mark) for each in server.all("/v2/concurrency_limits/filter")),
        *(_variable(each, mark) for each in server.all("/variables/filter")),
        *deployments,
        *(_automation(each, mark, names) for each in server.all("/automations/filter")),
    )


def _pool(read: dict[str, Any], deployments: list[ExistingResource], mark: str) -> ExistingResource:
    name = read["name"]
    description = read["description"] or ""
    others = tuple(each.name for each in deployments if not each.ours and each.fields["work_pool_name"] == name)
    return ExistingResource(
        kind="work pool",
        name=name,
        fields={"description": description, "concurrency_limit": read["concurrency_limit"]},
        id=read["id"],
        # Pools and limits have no tags in Prefect: the mark stands in the description, or in the name.
        ours=f"[{mark}]" in description,
        used_by_others=others,
    )


def _limit(read: dict[str, Any], mark: str) -> ExistingResource:
    name = read["name"]
    return ExistingResource(
        kind="concurrency limit",
        name=name,
        fields={"limit": read["limit"]},
        id=read["id"],
        ours=name.startswith(f"{mark}:"),
    )


def _variable(read: dict[str, Any], mark: str) -> ExistingResource:
    fields = {"value": read["value"], "tags": read["tags"]}
    return ExistingResource(kind="variable", name=read["name"], fields=fields, id=read["id"], ours=mark in read["tags"])


def _deployment(read: dict[str, Any], flows: dict[str, str], mark: str) -> ExistingResource:
    limit, options = read["global_concurrency_limit"] or {}, read["concurrency_options"] or {}
    same = ("description", "version", "entrypoint", "parameters", "parameter_openapi_schema")
    return ExistingResource(
        kind="deployment",
        name=f"{flows.get(read['flow_id'], '')}/{read['name']}",
        fields={
            **{field: read[field] for field in (*same, "enforce_parameter_schema", "work_pool_name", "job_variables")},
            "tags": sorted(read["tags"]),
            "concurrency_limit": limit.get("limit"),
            "concurrency_options": {"collision_strategy": options.get("collision_strategy")},
            "pull_steps": read["pull_steps"] or [],
            "schedules": sorted((_schedule(each) for each in read["schedules"]), key=lambda each: str(each["slug"])),
        },
        id=read["id"],
        ours=mark in read["tags"],
    )


def _schedule(read: dict[str, Any]) -> dict[str, Json]:
    rule = {key: value for key in ("cron", "rrule", "interval", "timezone") if (value := read["schedule"].get(key))}
    return {"slug": read["slug"], "schedule": rule, "active": read["active"], "parameters": read["parameters"]}


def _automation(read: dict[str, Any], mark: str, deployments: dict[str, str]) -> ExistingResource:
    trigger = {key: read["trigger"].get(key) for key in TRIGGER}
    for each in SETS:
        trigger[each] = sorted(trigger[each] or ())
    for each in ("match", "match_related"):
        trigger[each] = _unwrapped(trigger[each])
    actions = [{key: each[key] for key in ACTION if each.get(key) is not None} for each in read["actions"]]
    # By name: what is wanted is written down before the server gave any deployment an id.
    for action, each in zip(actions, read["actions"], strict=True):
        if each.get("deployment_id") is not None:
            action["deployment"] = deployments.get(each["deployment_id"], "")
    return ExistingResource(
        kind="automation",
        name=read["name"],
        fields={
            **{field: read[field] for field in ("description", "enabled", "tags")},
            "trigger": trigger,
            "actions": actions,
        },
        id=read["id"],
        ours=mark in read["tags"],
    )


def _unwrapped(match: Json) -> Json:
    """A list of one value is that value."""
    if not isinstance(match, dict):
        return match
    return {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in match.items()}
