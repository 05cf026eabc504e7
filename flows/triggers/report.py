"""What a look at the triggers came to, for a person or a machine."""

from __future__ import annotations

import functools

from prefect.settings import PREFECT_API_URL
from pydantic import BaseModel
from rich.table import Table

from headway.flows.console.console import headed, plain_console, print_table
from headway.flows.triggers.evaluation import Due, TriggerEvaluation, WatchedPipeline, evaluate_triggers, open_watched
from headway.flows.triggers.metrics import TriggerMetric
from headway.flows.windows.holds import shown_hold
from headway.tasks.ownership.pipeline_history import Hold


class RequestReport(BaseModel):
    why: str
    requested_at: str
    """ISO 8601, in UTC."""
    by: str
    key: str


class TriggersReport(BaseModel):
    pipeline: str
    is_due: bool
    why: str
    key: str | None
    """Of the ask; None where none is due."""
    requested: RequestReport | None
    """What was asked for and no retrain has finished since."""
    last_retrain_unix_s: float | None
    """When the last finished retrain began."""
    held: Hold | None
    """Who lets no retrain of it begin, due or not; None: nobody."""
    figures: list[TriggerMetric]


def report(pipeline: str, workspace: str) -> TriggersReport:
    """Look, and ask for nothing.

    Raises:
        ConfigError: the pipeline file, or it has no triggers.
        EnvironmentProblem: events are asked for, and the server that is named does not answer.
    """
    watched = open_watched(pipeline, workspace)
    found = _look(watched)
    due, history = found.decision if isinstance(found.decision, Due) else None, found.history
    ask = history.requested
    return TriggersReport(
        pipeline=found.pipeline,
        is_due=due is not None,
        why=found.decision.why,
        key=None if due is None else due.ask.key,
        requested=None
        if ask is None
        else RequestReport(why=ask.why, requested_at=ask.requested_at, by=ask.by, key=ask.key),
        last_retrain_unix_s=None if history.snapshot is None else history.taken_unix_s,
        held=shown_hold(watched.workspace, found.pipeline),
        figures=list(found.figures),
    )


def _look(watched: WatchedPipeline) -> TriggerEvaluation:
    if not (watched.triggers.event and PREFECT_API_URL.value()):
        return evaluate_triggers(watched, None)
    from headway.flows.prefect_api.client import connected
    from headway.flows.triggers.run_requests import newest_event

    with connected() as server:
        return evaluate_triggers(watched, functools.partial(newest_event, server))


def print_report(found: TriggersReport) -> None:
    console = plain_console()
    console.print(headed(found.pipeline, f"  {'due' if found.is_due else 'not due'}: {found.why}"))
    if found.requested is not None:
        console.print(f"asked      at {found.requested.requested_at} by {found.requested.by}: {found.requested.why}")
    if found.held is not None:
        console.print(f"HELD       {found.held}")
    console.print()
    table = Table("trigger", "", "is", "limit", "", box=None, padding=(0, 2))
    for figure in found.figures:
        value = "" if figure.value is None else f"{figure.value:.4g}"
        limit = "" if figure.limit is None else f"{figure.limit:g}"
        table.add_row(figure.trigger, figure.what, value, limit, figure.detail)
    print_table(console, table)
