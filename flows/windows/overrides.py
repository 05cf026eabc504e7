"""What people decided about windows, on record: `refs/windows/<pipeline>` is appended to, never rewritten."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Literal

from data_contracts import refs
from data_contracts.documents import Document
from data_contracts.publication import Workspace
from flows.windows.openings import UTC, Override
from tasks.identity import who


class WindowDecision(Document):
    """No training from here to there (`skip`), training whatever the windows say (`open`), or back to the windows."""

    kind: ClassVar[str] = "window-decision"
    pipeline: str
    action: Literal["skip", "open", "withdraw"]
    start_unix_s: float
    end_unix_s: float | None = None
    """None of a withdrawal, which counts from its start on."""


def decisions_ref(pipeline: str) -> str:
    return f"windows/{pipeline}"


def record_decision(workspace: Workspace, decision: WindowDecision, *, why: str) -> refs.RefEntry:
    """Append, with who and when.

    Raises:
        RefConflict: another decision came first; nothing was recorded.
    """
    name = decisions_ref(decision.pipeline)
    return refs.move(
        workspace,
        name,
        workspace.publish_document(decision),
        expected=refs.current(workspace, name),
        reason=why,
        detail={"who": who()},
    )


def read_overrides(workspace: Workspace, pipeline: str) -> tuple[Override, ...]:
    """Decisions that still say something, in the order in which they were made.

    Raises:
        IntegrityError: a record is damaged; to guess what people decided would be worse than to stop.
    """
    entries = refs.history(workspace, decisions_ref(pipeline))
    return in_force((workspace.load(entry.target, WindowDecision), entry) for entry in entries)


def in_force(decisions: Iterable[tuple[WindowDecision, refs.RefEntry]]) -> tuple[Override, ...]:
    """A withdrawal ends what was decided before it at the moment from which it counts."""
    overrides: list[Override] = []
    for decision, entry in decisions:
        start = _instant(decision.start_unix_s)
        if decision.action == "withdraw" or decision.end_unix_s is None:
            overrides = [replace(each, end=min(each.end, start)) for each in overrides if each.start < start]
            continue
        overrides.append(
            Override(
                action=decision.action,
                start=start,
                end=_instant(decision.end_unix_s),
                why=entry.reason,
                who=str(entry.detail.get("who", "somebody")),
                decided_at=_instant(entry.unix_s),
            )
        )
    return tuple(overrides)


def _instant(unix_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_s, UTC)
