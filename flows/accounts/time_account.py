"""The time account: every second of a flow run under one name, the names summing to wall time.

An instant belongs to the innermost thing that was going on: the span that began last. What only the
command itself covers is unattributed. A run of a million steps has seven spans for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headway.flows.accounts.painting import Span, paint
from headway.training.observe.ledger import Event
from headway.training.observe.step_summary import PARTS

STEPS = frozenset({"step", "step.excluded"})
UNNAMED = "unattributed"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeAccount:
    wall_s: float
    parts_s: dict[str, float]
    """Seconds by name, largest first; `unattributed` among them."""

    @property
    def unattributed_ratio(self) -> float:
        return self.parts_s.get(UNNAMED, 0.0) / self.wall_s if self.wall_s else 0.0


def account(events: Iterable[Event], started_unix_s: float, ended_unix_s: float) -> TimeAccount:
    """Attribute every instant between the two times.

    Args:
        events: of the flow and of rank 0 of every attempt, in any order.
    """
    spans = (span for event in events for span in _spans(event))
    parts = paint(spans, started_unix_s, ended_unix_s, ground=UNNAMED).seconds()
    return TimeAccount(wall_s=ended_unix_s - started_unix_s, parts_s=parts)


def _spans(event: Event) -> Iterator[Span[str]]:
    """Name, begin and end of what took its time; a step's with its parts."""
    if event.get("duration_s") is None:
        return
    begin_s, duration_s = float(event["unix_s"]), float(event["duration_s"])
    end_s = begin_s + duration_s
    if event["event"] not in STEPS:
        yield _name(event), begin_s, end_s
        return
    yield "train.other", begin_s, end_s
    for part in PARTS:
        length_s = float(event.get(f"{part}_s") or 0.0)
        yield f"train.{part}", begin_s, min(begin_s + length_s, end_s)
        begin_s += length_s


def _name(event: Event) -> str:
    """A stage's: what its task does before and after the document is found or made belongs to it."""
    return str(event["task"] if event["event"] == "task" else event["event"]).removeprefix("stage.")
