"""What should be on a server, from the pipeline files and a profile. Pure: it asks neither the server nor a clock."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.cost_bound import PROFILE
from headway.flows.config.launchers_in_use import launchers_in_use
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.profiles import PROBE_WITHIN_S, GameDaySpec, HousekeepingSpec, ProbeSpec
from headway.flows.config.triggers import TriggersSpec
from headway.flows.deploy import automations
from headway.flows.deploy.resources import (
    GAME_DAY,
    HOUSEKEEPING,
    MOVE_CHAMPION,
    PROBE,
    REPORT,
    RETRAIN,
    TRIALS,
    WATCH,
    DesiredState,
    Resource,
)
from headway.flows.prefect_api.devices import queue_name
from headway.flows.windows.schedules import schedules
from headway.tasks.core.devices import LIMITS
from headway.training.launch.base.gang import LaunchSpec

ENTRYPOINTS = {
    RETRAIN: "headway.flows.retrain_flow.retrain",
    TRIALS: "headway.flows.search.trials",
    MOVE_CHAMPION: "headway.flows.champion_flow.move_champion",
    WATCH: "headway.flows.watch.watch",
    HOUSEKEEPING: "headway.flows.housekeeping_flow.housekeeping",
    REPORT: "headway.flows.report_flow.report",
    GAME_DAY: "headway.flows.game_day_flow.game_day",
    PROBE: "headway.flows.probe_flow.probe",
}
REPORTED_AT = {"week": "0 6 * * mon", "month": "0 6 1 * *", "quarter": "0 6 1 1,4,7,10 *"}
"""In UTC, by period."""
MAX_WAITING = 1000
"""Who waits is counted, not limited."""


def desired(wanted: DesiredState) -> tuple[Resource, ...]:
    """Everything, by kind.

    Raises:
        ConfigError: a pipeline's windows never open, it occupies more than the profile has, or its cost is bound and
            the profile has no prices.
    """
    profile = wanted.profile
    _require_prices(wanted)
    pool = {"description": f"Retrains of {wanted.project}, {wanted.profile_name}. [{wanted.mark}]"}
    return (
        Resource(kind="work pool", name=profile.pool.name, fields={**pool, "concurrency_limit": profile.pool.limit}),
        *(
            Resource(kind="concurrency limit", name=f"{wanted.mark}:{name}", fields={"limit": slots})
            for name, slots in profile.limits.items()
        ),
        *_queues(wanted),
        *(
            Resource(kind="variable", name=name, fields={"value": value, "tags": [wanted.mark]})
            for name, value in profile.variables.items()
        ),
        *(_retrain(wanted, name, spec) for name, spec in wanted.pipelines.items()),
        *(_trials(wanted, name, spec) for name, spec in wanted.pipelines.items() if spec.trials),
        _move_champion(wanted),
        *(() if profile.housekeeping is None else [_housekeeping(wanted, profile.housekeeping)]),
        *(_report(wanted, period) for period in dict.fromkeys(profile.reports)),
        *(() if profile.game_day is None else [_game_day(wanted, profile.game_day)]),
        *(() if profile.probe is None else _probes(wanted, profile.probe)),
        *(_watch(wanted, name, spec.triggers) for name, spec in wanted.pipelines.items() if spec.triggers),
        automations.zombies(wanted),
        automations.waiting_runs(wanted),
        automations.lost_starts(wanted),
        automations.starving(wanted),
        automations.cost_bounds(wanted),
        automations.failed_runs(wanted),
        automations.missed_windows(wanted),
        automations.champions(wanted),
        *(
            automations.on_event(wanted, name, spec.triggers.event)
            for name, spec in wanted.pipelines.items()
            if spec.triggers and spec.triggers.event
        ),
    )


def _require_prices(wanted: DesiredState) -> None:
    bound = [name for name, spec in wanted.pipelines.items() if spec.cost_bound]
    if bound and not wanted.profile.prices.device_hour_usd:
        raise ConfigError(
            f"its cost is bound, and the profile {wanted.profile_name} has no prices.",
            where=f"{bound[0]}: cost_bound",
            advice="Give the profile `prices: {device_hour_usd: {any: USD}}`.",
        )


def _queues(wanted: DesiredState) -> Iterator[Resource]:
    """Limits that count who waits for devices, by priority.

    Raises:
        ConfigError: a pipeline occupies what the profile has not, or never so much.
    """
    limits = wanted.profile.limits
    for name, spec in wanted.pipelines.items():
        for device, number in spec.occupies.items():
            if limits.get(device, 0) < number:
                raise ConfigError(
                    f"it occupies {number} {device}, of which the profile {wanted.profile_name} has "
                    f"{limits.get(device, 'none')}.",
                    where=f"{name}: occupies.{device}",
                    advice=f"Give the profile `limits: {{{device}: NUMBER}}`.",
                )
    queues = {
        queue_name(wanted.mark, device, spec.priority) for spec in wanted.pipelines.values() for device in spec.occupies
    }
    for queue in sorted(queues):
        yield Resource(kind="concurrency limit", name=queue, fields={"limit": MAX_WAITING})


def _retrain(wanted: DesiredState, name: str, spec: PipelineSpec) -> Resource:
    planned = () if spec.windows is None else schedules(spec.windows, wanted.now)
    description = (
        f"Retrain **{name}**, which makes the model {spec.registry.model}.\n\n"
        "snapshot → validate → shard → train → verify → evaluate → register. What has not changed is found, not made "
        "again. Cancelling keeps a checkpoint; the next run continues from it."
    )
    timetable: list[Json] = [
        {
            "slug": each.slug,
            "schedule": {key: value for key in ("cron", "rrule", "timezone") if (value := getattr(each, key))},
            "active": wanted.profile.schedules_active,
            # Instead of the deployment's own: Prefect merges no deeper.
            "parameters": {"request": {"pipeline": name, "in_window": True}},
        }
        for each in sorted(planned, key=lambda each: each.slug)
    ]
    is_watched, usual = spec.triggers is not None, {"request": {"pipeline": name}}
    env = _own_environment(wanted, spec)
    return _deployment(wanted, RETRAIN, name, description, usual, timetable, is_watched=is_watched, env=env)


def _trials(wanted: DesiredState, name: str, spec: PipelineSpec) -> Resource:
    description = (
        f"Train **{name}** with each setting that its file's `trials` says, rank them, and continue the best as a "
        "retrain does. A trial that was trained before is found. Cancelling keeps checkpoints; the next run continues."
    )
    usual: dict[str, Json] = {"request": {"pipeline": name}}
    return _deployment(wanted, TRIALS, name, description, usual, [], env=_own_environment(wanted, spec))


def _own_environment(wanted: DesiredState, spec: PipelineSpec) -> dict[str, str]:
    """By whom the devices that its ranks occupy are counted, and whose prices its bound on the cost goes by."""
    return ({LIMITS: wanted.mark} if spec.occupies else {}) | (
        {PROFILE: wanted.profile_name} if spec.cost_bound else {}
    )


def _watch(wanted: DesiredState, name: str, spec: TriggersSpec) -> Resource:
    description = (
        f"Look whether a retrain of **{name}** is due, and ask for one: once for the same data, and only while its "
        "windows are open. The state's name says what came of a look."
    )
    request: Json = {"pipeline": name, "retrain": f"{RETRAIN}/{name}{wanted.profile.suffix}"}
    look: Json = {
        "slug": "look",
        "schedule": {"interval": spec.check_every_s, "timezone": "UTC"},
        "active": wanted.profile.schedules_active,
        "parameters": {"request": request},
    }
    return _deployment(wanted, WATCH, name, description, {"request": request}, [look], is_watched=True)


def _move_champion(wanted: DesiredState) -> Resource:
    description = (
        "Make a version champion, or bring an earlier champion back. It is verified first; a promotion is held to the "
        "pipeline's policy."
    )
    return _deployment(wanted, MOVE_CHAMPION, "champion", description, {}, [])


def _housekeeping(wanted: DesiredState, spec: HousekeepingSpec) -> Resource:
    description = (
        "End runs that MLflow shows as running and nobody trains any more, list what no model, ref, run or cached "
        "stage needs, and delete it where the form says so. Read again what champions and unfinished runs need."
    )
    hour, minute = (int(number) for number in spec.at.split(":"))
    request: Json = spec.model_dump(exclude={"at"})
    daily: Json = {
        "slug": "daily",
        "schedule": {"cron": f"{minute} {hour} * * *", "timezone": "UTC"},
        "active": wanted.profile.schedules_active,
        "parameters": {"request": request},
    }
    return _deployment(wanted, HOUSEKEEPING, "workspace", description, {"request": request}, [daily], is_watched=True)


def _report(wanted: DesiredState, period: str) -> Resource:
    description = f"What failed in a {period}, what it cost, who is champion, and what to decide."
    request: Json = {"period": period}
    # What is the default stays unsaid, so that a deployment is not changed by it.
    if prices := wanted.profile.prices.model_dump(mode="json", exclude_defaults=True):
        request["prices"] = prices
    after: Json = {
        "slug": period,
        "schedule": {"cron": REPORTED_AT[period], "timezone": "UTC"},
        "active": wanted.profile.schedules_active,
        "parameters": {"request": request},
    }
    return _deployment(wanted, REPORT, period, description, {"request": request}, [after])


def _game_day(wanted: DesiredState, spec: GameDaySpec) -> Resource:
    description = (
        "Plant failures in a sandbox of the worker's, and judge whether they are seen, named and recovered from. "
        "A missed objective fails the run. Nothing but its report is written into the workspace."
    )
    hour, minute = (int(number) for number in spec.at.split(":"))
    days = {"week": "* * tue", "month": "1 * *"}[spec.every]
    request: dict[str, Json] = {"drills": list(spec.drills)}
    if spec.launch is not None:
        request["launch"] = spec.launch.model_dump(mode="json", exclude_defaults=True)
    planned: Json = {
        "slug": spec.every,
        "schedule": {"cron": f"{minute} {hour} {days}", "timezone": "UTC"},
        "active": wanted.profile.schedules_active,
        "parameters": {"request": request},
    }
    return _deployment(wanted, GAME_DAY, "sandbox", description, {"request": request}, [planned])


def _probes(wanted: DesiredState, spec: ProbeSpec) -> list[Resource]:
    """One for each launcher in use, where none is named: a launcher that fails hides no other."""
    launches = [spec.launch] if spec.launch is not None else launchers_in_use(wanted.pipelines).values()
    return [_probe(wanted, spec, launch) for launch in launches]


def _probe(wanted: DesiredState, spec: ProbeSpec, launch: LaunchSpec) -> Resource:
    description = (
        "Retrain a small pipeline of made-up data, through every stage, to see whether this worker, its launcher and "
        "the workspace's store still can. It has a workspace of its own, in the folder `probes` of the other."
    )
    request: dict[str, Json] = {"interval_s": spec.interval_s}
    # What is the default stays unsaid, so that a deployment is not changed by it.
    if said := launch.model_dump(mode="json", exclude_defaults=True):
        request["launch"] = said
    if spec.within_s != PROBE_WITHIN_S:
        request["within_s"] = spec.within_s
    planned: Json = {
        "slug": spec.every,
        "schedule": {"cron": {"hour": "0 * * * *", "day": "0 0 * * *"}[spec.every], "timezone": "UTC"},
        "active": wanted.profile.schedules_active,
        "parameters": {"request": request},
    }
    return _deployment(wanted, PROBE, launch.launcher, description, {"request": request}, [planned])


def _deployment(
    wanted: DesiredState,
    flow: str,
    name: str,
    description: str,
    parameters: dict[str, Json],
    timetable: list[Json],
    *,
    is_watched: bool = False,
    env: Mapping[str, str] | None = None,
) -> Resource:
    profile = wanted.profile
    tags = {"headway", flow, wanted.mark, *profile.tags}
    if not is_watched:
        tags.add(wanted.unwatched)
    given = {
        **(env or {}),
        "HEADWAY_PROJECT": wanted.project_folder,
        "PYTHONSAFEPATH": "1",  # never import from the folder a run happens to start in
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(profile.heartbeat_s),
        **profile.env,
    }
    return Resource(
        kind="deployment",
        name=f"{flow}/{name}{profile.suffix}",
        fields={
            "description": description,
            "version": version("headway"),
            "tags": sorted(tags),
            "entrypoint": ENTRYPOINTS[flow],
            "parameters": parameters,
            "parameter_openapi_schema": _offering(wanted.forms[flow], wanted.pipelines),
            # A wrong form is refused where it is filled in, and not by a run that fails at night.
            "enforce_parameter_schema": True,
            "work_pool_name": profile.pool.name,
            "job_variables": {"env": {key: value for key, value in sorted(given.items()) if value is not None}},
            # A night missed while no worker was up is not caught up with in a storm: one at a time, others cancelled.
            "concurrency_limit": 1,
            "concurrency_options": {"collision_strategy": "CANCEL_NEW"},
            "pull_steps": [],  # the worker's environment has Headway installed
            "schedules": timetable,
        },
    )


def _offering(form: Json, pipelines: Iterable[str]) -> Json:
    """The form with a list of the pipelines that are deployed, wherever it asks for one."""
    form = copy.deepcopy(form)
    for definition in form.get("definitions", {}).values():
        field = definition.get("properties", {}).get("pipeline")
        if field is not None and field.get("type") == "string":
            field["enum"] = [*([""] if field.get("default") == "" else []), *sorted(pipelines)]
            field.pop("examples", None)
    return form
