"""Who is slow, as a table in Prefect's UI: a row for each rank that is named while training continues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from headway.tasks.core.artifacts import GrowingTable, artifact_key
from headway.tasks.core.context import RunContext
from headway.training.observe.ledger import Event

REPORTED, EXCLUDED = "reported", "its host is left out from the next attempt on"


@contextlib.contextmanager
def showing_slow_ranks(context: RunContext) -> Iterator[None]:
    """While the body trains, whoever its supervisors name: enter it once, for however many runs train at a time."""
    table = GrowingTable(artifact_key(context.pipeline, "slow-ranks"), "Ranks that the others wait for")
    rows: list[dict[str, Any]] = []

    def listen(event: Event) -> None:
        if event["event"] == "rank.slow":
            rows.append(_row({"run": context.at.run, **event}))
        elif event["event"] == "host.excluded" and rows:
            excluded = (event.get("run", context.at.run), event["attempt"], event["host"])
            for row in rows:
                if (row["run"], row["attempt"], row["host"]) == excluded:
                    row["what came of it"] = EXCLUDED
        else:
            return
        table.show(rows)

    context.ledger.listeners.append(listen)
    try:
        yield
    finally:
        context.ledger.listeners.remove(listen)
        table.close()


def _row(event: Event) -> dict[str, Any]:
    return {
        "run": event["run"],
        "attempt": event["attempt"],
        "rank": event["rank"],
        "host": event["host"],
        "slow in": event["part"],
        "takes it": f"{event['own_s']:.2g} s",
        "takes the others": f"{event['others_s']:.2g} s",
        "costs": f"{event['excess_s']:.2g} of {event['step_s']:.2g} s a step",
        "what came of it": REPORTED,
    }
