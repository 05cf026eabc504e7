"""What a server does by itself: marks zombies, and tells people of starts and pipelines that come to nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headway.data_contracts.store.documents import Json
from headway.flows import watch
from headway.flows.accounts.objectives import Severity
from headway.flows.config.profiles import HEARTBEATS_MISSED
from headway.flows.deploy.resources import WATCH, DesiredState, Resource
from headway.flows.prefect_api.champion_event import CHAMPION_MOVED, MODEL
from headway.flows.report.summary import AWAITING_APPROVAL
from headway.flows.triggers.run_requests import BY_LIMIT
from headway.flows.windows.admission import ENDED_BY_NAME, INFRASTRUCTURE, LOST, MISSED_TOO_MANY, STARVING
from headway.tasks.core.stopped import COST_BOUND_REACHED

ENDED = ("Completed", "Failed", "Cancelled", "Crashed", AWAITING_APPROVAL, *ENDED_BY_NAME, *watch.ENDED_BY_NAME)
"""Prefect's events are named after a state's name, not its type."""
FAILED = ("Failed", "Crashed", "TimedOut", INFRASTRUCTURE)
PAUSED = ("Suspended", "Paused")
DO_NOTHING: Json = {"type": "do-nothing"}
"""That it was triggered is an event already."""
LATE_S = 900
"""How long a run waits before somebody hears of it: a worker that is started again is there within minutes."""
LIMIT_REACHED = f"{BY_LIMIT}*"
AS_TEXT = "|string|replace('<', '‹')|replace('>', '›')|replace('@', '＠')|replace('](', '] (')"
"""Jinja for what may hold text of data, such as a column's name: chats take `<!channel>` and `@everyone` for a call to
all, and what stands in brackets for a link of any wording. Each quotes in its own way, so the signs are other ones."""
OF_THE_RUN = (
    "{{ flow_run.name }} is {{ flow_run.state.name }}: "
    "{{ flow_run.state.message|default('', true)|replace('Flow run encountered an exception: ', '')" + AS_TEXT + " }}"
)
OF_THE_CHAMPION = (
    "{{ event.payload.model }} version {{ event.payload.version }}: {{ event.payload.reason" + AS_TEXT + " }}"
)


def zombies(wanted: DesiredState) -> Resource:
    """Who gives no sign of life is Crashed, and somebody hears of that as of whatever fails.

    Not of the alarm itself: a run that ends within its first heartbeat may be taken for one that is silent, and a run
    that has ended keeps its state.
    """
    silent_s = HEARTBEATS_MISSED * wanted.profile.heartbeat_s
    heartbeat = "prefect.flow-run.heartbeat"
    why = (
        f"No sign of life for {silent_s} s: the worker or its machine is gone. The next run resumes from a checkpoint."
    )
    return _automation(
        wanted,
        "zombie runs",
        f"Marks runs as Crashed that gave no sign of life for {silent_s} s, so that the next one may start.",
        _trigger(
            sorted([heartbeat, *(f"prefect.flow-run.{state}" for state in (*ENDED, *PAUSED))]),
            after=[heartbeat],
            within_s=silent_s,
        ),
        actions=[{"type": "change-flow-run-state", "state": "CRASHED", "message": why}],
        is_notified=False,
    )


def waiting_runs(wanted: DesiredState) -> Resource:
    """Somebody hears that no worker takes what is due: nothing fails then, and nothing is retrained."""
    pool, within_s = wanted.profile.pool.name, max(LATE_S, HEARTBEATS_MISSED * wanted.profile.heartbeat_s)
    # One that runs shows that somebody is at work, and that those who wait do so for it.
    at_work = ("Pending", "Running", "heartbeat")
    return _automation(
        wanted,
        "waiting runs",
        f"Fires where a run was due, and within {within_s} s no worker of the pool {pool} took one or reported one "
        f"as running. `prefect worker start --pool {pool}` starts a worker; what was due starts then if its window is "
        "still open.",
        _trigger(
            [f"prefect.flow-run.{state}" for state in at_work], after=["prefect.flow-run.Late"], within_s=within_s
        ),
        for_each=(),  # one alarm for all that wait
        recipient="{{ flow.name }}/{{ deployment.name }}",
        message="{{ flow.name }}/{{ deployment.name }} is due, and no worker takes it.",
    )


def lost_starts(wanted: DesiredState) -> Resource:
    """Somebody hears of a start that another run took."""
    return _automation(
        wanted,
        "lost starts",
        "Fires where a run was cancelled because another of its deployment was running: its start is lost. After an "
        "outage nothing is: the first of the starts that were missed runs for all of them. Where triggers are looked "
        "at, the next look asks again for what the other run did not take.",
        _trigger(
            ["prefect.flow-run.Cancelled"],
            match={"prefect.resource.id": "prefect.flow-run.*", "prefect.state-message": LIMIT_REACHED},
        ),
        severity="ticket",
        tag=wanted.unwatched,
    )


def starving(wanted: DesiredState) -> Resource:
    """Somebody hears of a pipeline that never finishes."""
    return _automation(
        wanted,
        "starving pipelines",
        f"Fires where window after window closes before a run is finished, so that newer data wait. {MISSED_TOO_MANY}",
        _trigger([f"prefect.flow-run.{STARVING}"]),
        severity="ticket",
    )


def cost_bounds(wanted: DesiredState) -> Resource:
    """Somebody hears of a pipeline that may cost no more: nothing trains it before a person raises the bound, or the
    month is over."""
    return _automation(
        wanted,
        "cost bounds",
        "Fires where a retrain stopped, or was refused, because it has cost what `cost_bound` of its pipeline file "
        "lets it. A checkpoint is kept. Raise the bound, or wait for the next month.",
        _trigger([f"prefect.flow-run.{COST_BOUND_REACHED}"]),
        severity="ticket",
    )


def failed_runs(wanted: DesiredState) -> Resource:
    """Somebody hears of a retrain, a watch or a tidying that failed."""
    return _automation(
        wanted,
        "failed runs",
        "Fires where a flow run failed, by the data's or the code's fault or for want of machines. The artifact "
        "PIPELINE-failure on its page says why, what was tried and what to do; so does `headway status`.",
        _trigger(sorted(f"prefect.flow-run.{state}" for state in FAILED)),
    )


def missed_windows(wanted: DesiredState) -> Resource:
    """Somebody hears of a window in which a run was due and none could begin."""
    return _automation(
        wanted,
        "missed windows",
        "Fires where a retrain came when its window was over, or nearly. The next window takes it.",
        _trigger(sorted(f"prefect.flow-run.{state}" for state in LOST)),
        severity="ticket",
    )


def champions(wanted: DesiredState) -> Resource:
    """Somebody hears of a new champion, or of one that came back."""
    return _automation(
        wanted,
        "new champions",
        "Fires where a retrain or a person made a version champion by a deployment.",
        _trigger([CHAMPION_MOVED], match={"prefect.resource.id": f"{MODEL}.*"}),
        severity="ticket",
        recipient="{{ event.payload.model }}",
        message=OF_THE_CHAMPION,
    )


def notifies_nobody(resource: Resource) -> bool:
    """Whether it is an alert that reaches no person: nothing is done when it fires."""
    if resource.kind != "automation":
        return False
    return all(action["type"] == "do-nothing" for action in resource.fields["actions"])


def on_event(wanted: DesiredState, name: str, event: str) -> Resource:
    """Look at once. The look asks the server which events came, so that none is lost with a run."""
    return Resource(
        kind="automation",
        name=f"{wanted.project} {wanted.profile_name}: {event} for {name}",
        fields={
            "description": f"Looks at the triggers of {name} as soon as the event {event} comes.",
            "enabled": wanted.profile.schedules_active,
            "tags": [wanted.mark],
            "trigger": {**_trigger([event], match={}), "match_related": {}, "for_each": []},
            "actions": [
                {"type": "run-deployment", "source": "selected", "deployment": f"{WATCH}/{name}{wanted.profile.suffix}"}
            ],
        },
    )


def _trigger(
    expect: Sequence[Json], *, after: Sequence[Json] = (), match: dict[str, Json] | None = None, within_s: int = 0
) -> dict[str, Json]:
    """One of these events; or that none of them follows on one of `after` in time. By default of flow runs."""
    return {
        **{"type": "event", "posture": "Proactive" if after else "Reactive", "threshold": 1, "within": within_s},
        **{"after": list(after), "expect": list(expect)},
        "match": {"prefect.resource.id": "prefect.flow-run.*"} if match is None else match,
    }


def _automation(
    wanted: DesiredState,
    name: str,
    description: str,
    trigger: dict[str, Json],
    *,
    actions: Sequence[Json] = (DO_NOTHING,),
    is_notified: bool = True,
    severity: Severity = "page",
    tag: str = "",
    for_each: tuple[str, ...] = ("prefect.resource.id",),
    recipient: str = "{{ flow_run.name }}",
    message: str = OF_THE_RUN,
) -> Resource:
    """Args:
    recipient: what it happened to, for the subject of what a person is told: Jinja, over Prefect's event and flow run.
    message: what happened, likewise.
    """
    notifications: list[Json] = []
    if (block := wanted.block_ids.get(severity)) is not None and is_notified:
        # What happened comes first: a pager shows the beginning.
        body = f"{message}\n{{{{ flow_run|ui_url }}}}\n\n{description}"
        subject = f"Headway {severity}: {wanted.project} {wanted.profile_name}: {name}: {recipient}"
        notifications = [{"type": "send-notification", "block_document_id": block, "subject": subject, "body": body}]
    # Runs carry their deployment's tags, and events those of their run: nobody else's are touched.
    ours = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag or wanted.mark}"}
    return Resource(
        kind="automation",
        name=f"{wanted.project} {wanted.profile_name}: {name}",
        fields={
            "description": description,
            "enabled": True,
            "tags": [wanted.mark],
            "trigger": {**trigger, "match_related": ours, "for_each": list(for_each)},
            "actions": [*actions, *notifications],
        },
    )
