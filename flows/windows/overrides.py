"""What people decided about windows, from the pipeline's history."""

from __future__ import annotations

import datetime
import time
from typing import Literal

from headway.data_contracts.store.publication import Workspace
from headway.flows.windows.openings import UTC, Override
from headway.tasks.core.identity import current_user
from headway.tasks.ownership.pipeline_history import PipelineEvent, WindowOverride, append, read

REMEMBERED_S = 366 * 86400.0
"""After which a decision that is over says nothing more: no start is so late."""


def read_overrides(workspace: Workspace, pipeline: str) -> tuple[Override, ...]:
    """Decisions that still say something, in the order in which they were made.

    Raises:
        IntegrityError: the record is damaged; to guess what people decided would be worse than to stop.
    """
    return tuple(
        Override(
            action=each.action,
            start=_instant(each.start_unix_s),
            end=_instant(each.end_unix_s),
            why=each.why,
            by=each.by,
            decided_at=_instant(each.decided_unix_s),
        )
        for each in read(workspace, pipeline).overrides
    )


def record_override(
    workspace: Workspace,
    pipeline: str,
    action: Literal["skip", "open"],
    start: datetime.datetime,
    end: datetime.datetime,
    *,
    why: str,
) -> None:
    """No training from here to there (`skip`), or training whatever the windows say (`open`)."""
    moments = {"start_unix_s": start.timestamp(), "end_unix_s": end.timestamp(), "decided_unix_s": time.time()}
    override = WindowOverride(action=action, **moments, why=why, by=current_user())

    def decided(before: PipelineEvent) -> PipelineEvent:
        kept = [each for each in before.overrides if each.end_unix_s > override.start_unix_s - REMEMBERED_S]
        event = "skipped" if action == "skip" else "opened"
        return before.model_copy(update={"event": event, "overrides": (*kept, override)})

    append(workspace, pipeline, decided, why=why)


def withdraw_overrides(workspace: Workspace, pipeline: str, since: datetime.datetime, *, why: str) -> None:
    """Back to the windows: what was decided before ends at that moment."""
    at_unix_s = since.timestamp()

    def withdrawn(before: PipelineEvent) -> PipelineEvent:
        kept = tuple(
            each.model_copy(update={"end_unix_s": min(each.end_unix_s, at_unix_s)})
            for each in before.overrides
            if each.start_unix_s < at_unix_s
        )
        return before.model_copy(update={"event": "unskipped", "overrides": kept})

    append(workspace, pipeline, withdrawn, why=why)


def _instant(unix_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_s, UTC)
