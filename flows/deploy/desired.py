"""What should be on a server, from the pipeline files and a profile. Pure: it asks neither the server nor a clock."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from data_contracts.documents import Json
from data_contracts.errors import ConfigError
from flows.deploy.profiles import HEARTBEATS_MISSED, HousekeepingSpec, Profile
from flows.deploy.resources import Resource, mark_of
from flows.devices import LIMITS, queue_name
from flows.pipeline_spec import PipelineSpec
from flows.summary import AWAITING_APPROVAL
from flows.triggers import watch
from flows.triggers.asking import BY_LIMIT
from flows.triggers.spec import TriggersSpec
from flows.windows.admission import ENDED_BY_NAME, STARVES, STARVING
from flows.windows.schedules import schedules

RETRAIN = "retrain"
MOVE_CHAMPION = "move-champion"
HOUSEKEEPING = "housekeeping"
WATCH = "watch"
ENTRYPOINTS = {
    RETRAIN: "flows.retrain.retrain",
    MOVE_CHAMPION: "flows.champion_flow.move_champion",
    WATCH: "flows.triggers.watch.watch",
    HOUSEKEEPING: "flows.housekeeping_flow.housekeeping",
}
ENDED = ("Completed", "Failed", "Cancelled", "Crashed", AWAITING_APPROVAL, *ENDED_BY_NAME, *watch.ENDED_BY_NAME)
"""Prefect's events are named after a state's name, not its type."""
PAUSED = ("Suspended", "Paused")
MAX_WAITING = 1000
"""Who waits is counted, not limited."""
LIMIT_REACHED = f"{BY_LIMIT}*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What the desired state is made from."""

    project: str
    profile_name: str
    profile: Profile
    pipelines: Mapping[str, PipelineSpec]
    """By the name that a request gives: the file's."""
    project_folder: str
    forms: Mapping[str, Json]
    """Flow name to the JSON schema of its parameters."""
    now: datetime.datetime
    notify_block_id: str | None = None

    @property
    def mark(self) -> str:
        return mark_of(self.project, self.profile_name)


def desired(wanted: Wanted) -> tuple[Resource, ...]:
    """Everything, by kind.

    Raises:
        ConfigError: a pipeline's windows never open, or it occupies more than the profile has.
    """
    profile = wanted.profile
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
        _move_champion(wanted),
        *(() if profile.housekeeping is None else [_housekeeping(wanted, profile.housekeeping)]),
        *(_watch(wanted, name, spec.triggers) for name, spec in wanted.pipelines.items() if spec.triggers),
        _zombies(wanted),
        _lost_starts(wanted),
        _starving(wanted),
        *(
            _on_event(wanted, name, spec.triggers.event)
            for name, spec in wanted.pipelines.items()
            if spec.triggers and spec.triggers.event
        ),
    )


def _queues(wanted: Wanted) -> Iterator[Resource]:
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


def _retrain(wanted: Wanted, name: str, spec: PipelineSpec) -> Resource:
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
    env = {LIMITS: wanted.mark} if spec.occupies else {}
    return _deployment(wanted, RETRAIN, name, description, usual, timetable, is_watched=is_watched, env=env)


def _watch(wanted: Wanted, name: str, spec: TriggersSpec) -> Resource:
    description = (
        f"Look whether a retrain of **{name}** is due, and ask for one: once for the same data, and only while its "
        "windows are open. The state's name says what came of a look."
    )
    request: Json = {"pipeline": name, "retrain": f"{RETRAIN}/{name}{wanted.profile.suffix}"}
    look: Json = {
        "slug": "look",
        "schedule": {"interval": spec.look_every_s, "timezone": "UTC"},
        "active": wanted.profile.schedules_active,
        "parameters": {"request": request},
    }
    return _deployment(wanted, WATCH, name, description, {"request": request}, [look], is_watched=True)


def _move_champion(wanted: Wanted) -> Resource:
    description = (
        "Make a version champion, or bring an earlier champion back. It is verified first; a promotion is held to the "
        "pipeline's policy."
    )
    return _deployment(wanted, MOVE_CHAMPION, "champion", description, {}, [])


def _housekeeping(wanted: Wanted, spec: HousekeepingSpec) -> Resource:
    description = (
        "End runs that MLflow shows as running and nobody trains any more, and say what no model, ref, run or cached "
        "stage needs; take it away where the form says so."
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


def _deployment(
    wanted: Wanted,
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
        tags.add(_unwatched(wanted))
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
            "parameter_openapi_schema": wanted.forms[flow],
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


def _zombies(wanted: Wanted) -> Resource:
    silent_s = HEARTBEATS_MISSED * wanted.profile.heartbeat_s
    heartbeat = "prefect.flow-run.heartbeat"
    why = (
        f"No sign of life for {silent_s} s: the worker or its machine is gone. The next run goes on from a checkpoint."
    )
    return _automation(
        wanted,
        "zombie runs",
        f"Marks runs as Crashed that gave no sign of life for {silent_s} s, so that the next one may start.",
        {
            "posture": "Proactive",
            "after": [heartbeat],
            "expect": sorted([heartbeat, *(f"prefect.flow-run.{state}" for state in (*ENDED, *PAUSED))]),
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "within": silent_s,
        },
        [{"type": "change-flow-run-state", "state": "CRASHED", "message": why}],
    )


def _lost_starts(wanted: Wanted) -> Resource:
    return _automation(
        wanted,
        "lost starts",
        "Fires where a run was cancelled because another of its deployment was going on: its start is lost. After an "
        "outage nothing is: the first of the starts that were missed runs for all of them. Where triggers are looked "
        "at, the next look asks again for what the other run did not take.",
        {
            "posture": "Reactive",
            "after": [],
            "expect": ["prefect.flow-run.Cancelled"],
            "match": {"prefect.resource.id": "prefect.flow-run.*", "prefect.state-message": LIMIT_REACHED},
            "within": 0,
        },
        [{"type": "do-nothing"}],  # that it was triggered is an event already
        tag=_unwatched(wanted),
    )


def _starving(wanted: Wanted) -> Resource:
    return _automation(
        wanted,
        "starving pipelines",
        f"Fires where window after window closes before a run is finished, so that newer data wait. {STARVES}",
        {
            "posture": "Reactive",
            "after": [],
            "expect": [f"prefect.flow-run.{STARVING}"],
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "within": 0,
        },
        [{"type": "do-nothing"}],
    )


def _unwatched(wanted: Wanted) -> str:
    """The tag of deployments that no watch looks after: where a start of theirs is lost, a person has to know."""
    return f"{wanted.mark}:unwatched"


def _on_event(wanted: Wanted, name: str, event: str) -> Resource:
    """Look at once. The look asks the server which events came, so that none is lost with a run."""
    return Resource(
        kind="automation",
        name=f"{wanted.project} {wanted.profile_name}: {event} for {name}",
        fields={
            "description": f"Looks at the triggers of {name} as soon as the event {event} comes.",
            "enabled": wanted.profile.schedules_active,
            "tags": [wanted.mark],
            "trigger": {
                "type": "event",
                "posture": "Reactive",
                "after": [],
                "expect": [event],
                "match": {},
                "match_related": {},
                "for_each": [],
                "threshold": 1,
                "within": 0,
            },
            "actions": [
                {
                    "type": "run-deployment",
                    "source": "selected",
                    "deployment": f"{WATCH}/{name}{wanted.profile.suffix}",
                }
            ],
        },
    )


def _automation(
    wanted: Wanted,
    name: str,
    description: str,
    trigger: dict[str, Json],
    actions: list[Json],
    *,
    tag: str = "",
) -> Resource:
    told: list[Json] = []
    if wanted.notify_block_id is not None:
        body = f"{description}\n\n{{{{ flow_run.name }}}}: {{{{ flow_run.state.message }}}}\n{{{{ flow_run|ui_url }}}}"
        subject = f"Headway {wanted.project} {wanted.profile_name}: {name}"
        told = [
            {
                "type": "send-notification",
                "block_document_id": wanted.notify_block_id,
                "subject": subject,
                "body": body,
            }
        ]
    # Runs carry their deployment's tags, and events those of their run: nobody else's are touched.
    ours = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag or wanted.mark}"}
    return Resource(
        kind="automation",
        name=f"{wanted.project} {wanted.profile_name}: {name}",
        fields={
            "description": description,
            "enabled": True,
            "tags": [wanted.mark],
            "trigger": {
                "type": "event",
                **trigger,
                "match_related": ours,
                "for_each": ["prefect.resource.id"],
                "threshold": 1,
            },
            "actions": [*actions, *told],
        },
    )
