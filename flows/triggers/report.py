"""What a look at the triggers came to, for a person or a machine."""

from __future__ import annotations

import functools

from prefect.settings import PREFECT_API_URL
from pydantic import BaseModel
from rich.table import Table

from flows.console import headed, plain_console
from flows.holds import Hold, shown_hold
from flows.tables import print_table
from flows.triggers.look import Due, Findings, Watched, look, open_watched
from flows.triggers.measure import Figure


class AskReport(BaseModel):
    why: str
    asked_at: str
    """ISO 8601, in UTC."""
    who: str
    key: str


class TriggersReport(BaseModel):
    pipeline: str
    is_due: bool
    why: str
    key: str | None
    """Of the ask; None where none is due."""
    asked: AskReport | None
    """What was asked for and no retrain has finished since."""
    last_retrain_unix_s: float | None
    """When the last finished retrain began."""
    held: Hold | None
    """Who lets no retrain of it begin, due or not; None: nobody."""
    figures: list[Figure]


def report(pipeline: str, workspace: str) -> TriggersReport:
    """Look, and ask for nothing.

    Raises:
        ConfigError: the pipeline file, or it has no triggers.
        EnvironmentProblem: events are asked for, and the server that is named does not answer.
    """
    watched = open_watched(pipeline, workspace)
    found = _look(watched)
    due, standing = found.decision if isinstance(found.decision, Due) else None, found.standing
    asked = None
    if standing.asked is not None and standing.asked_entry is not None:
        entry = standing.asked_entry
        asked = AskReport(
            why=entry.reason,
            asked_at=entry.moved_at,
            who=str(entry.detail.get("who", "somebody")),
            key=standing.asked.key,
        )
    return TriggersReport(
        pipeline=found.pipeline,
        is_due=due is not None,
        why=found.decision.why,
        key=None if due is None else due.ask.key,
        asked=asked,
        last_retrain_unix_s=None if standing.finished is None else standing.finished.unix_s,
        held=shown_hold(watched.workspace, found.pipeline),
        figures=list(found.figures),
    )


def _look(watched: Watched) -> Findings:
    if not (watched.triggers.event and PREFECT_API_URL.value()):
        return look(watched, None)
    from flows.deploy.server import connected
    from flows.triggers.asking import newest_event

    with connected() as server:
        return look(watched, functools.partial(newest_event, server))


def print_report(found: TriggersReport) -> None:
    console = plain_console()
    console.print(headed(found.pipeline, f"  {'due' if found.is_due else 'not due'}: {found.why}"))
    if found.asked is not None:
        console.print(f"asked      at {found.asked.asked_at} by {found.asked.who}: {found.asked.why}")
    if found.held is not None:
        console.print(f"HELD       {found.held}")
    console.print()
    table = Table("trigger", "", "is", "limit", "", box=None, padding=(0, 2))
    for figure in found.figures:
        value = "" if figure.value is None else f"{figure.value:.4g}"
        limit = "" if figure.limit is None else f"{figure.limit:g}"
        table.add_row(figure.trigger, figure.what, value, limit, figure.detail)
    print_table(console, table)
