"""What a Prefect server hears when a version becomes champion, so that automations can tell people."""

from __future__ import annotations

from headway.flows.console.output import only_shown
from headway.tasks.core.flow_run import current_flow_run

CHAMPION_MOVED = "headway.champion.moved"
MODEL = "headway.model"
"""What the event is about: `headway.model.NAME`. It is related to the flow run, its deployment and their tags."""


def emit_champion_event(model: str, version: str, reason: str) -> None:
    """Nothing outside of a flow run: who moves a champion by a command knows of it."""
    if current_flow_run() is not None:
        from prefect.events import emit_event

        payload = {"model": model, "version": version, "reason": reason}
        with only_shown("the champion's move"):
            emit_event(event=CHAMPION_MOVED, resource={"prefect.resource.id": f"{MODEL}.{model}"}, payload=payload)
