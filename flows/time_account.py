"""The time account: every second of a flow run under one name, the names summing to wall time.

An instant belongs to the innermost thing that was going on: the span that began last. What only the
command itself covers is unattributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from training.ledger import Event
from training.step_summary import PARTS

STEPS = frozenset({"step", "step.left_out"})
UNNAMED = "unattributed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeAccount:
    wall_s: float
    parts_s: dict[str, float]
    """Seconds by name, largest first; `unattributed` among them."""

    @property
    def unattributed_ratio(self) -> float:
        return self.parts_s.get(UNNAMED, 0.0) / self.wall_s if self.wall_s else 0.0


def intervals(events: Iterable[Event]) -> list[Interval]:
    """Spans as intervals, steps broken up into their parts."""
    found: list[Interval] = []
    for event in events:
        if "duration_s" not in event:
            continue
        begin, duration = float(event["unix_s"]), float(event["duration_s"])
        if event["event"] in STEPS:
            found += _step_parts(event, begin, duration)
        else:
            found.append(Interval(name=_name(event), begin_s=begin, end_s=begin + duration))
    return found


def _name(event: Event) -> str:
    """A stage's: what its task does before and after the document is found or made belongs to it."""
    return str(event["task"] if event["event"] == "task" else event["event"]).removeprefix("stage.")


def _step_parts(event: Event, begin: float, duration: float) -> list[Interval]:
    parts, at = [Interval(name="train.other", begin_s=begin, end_s=begin + duration)], begin
    for part in PARTS:
        length = float(event.get(f"{part}_s", 0.0))
        # Later than the step itself by a hair, so that the part is the innermost.
        parts.append(Interval(name=f"train.{part}", begin_s=at, end_s=min(at + length, begin + duration)))
        at += length
    return parts


def account(events: Iterable[Event], began_unix_s: float, ended_unix_s: float) -> TimeAccount:
    """Attribute every instant between the two times.

    Args:
        events: of the flow and of rank 0 of every attempt, in any order.
    """
    spans = [span for span in intervals(events) if span.end_s > began_unix_s and span.begin_s < ended_unix_s]
    edges = sorted(
        {began_unix_s, ended_unix_s}
        | {edge for span in spans for edge in (span.begin_s, span.end_s) if began_unix_s < edge < ended_unix_s}
    )
    parts: dict[str, float] = {}
    for (begin, end), name in zip(pairwise(edges), _innermost(edges, spans), strict=True):
        parts[name] = parts.get(name, 0.0) + (end - begin)
    ordered = dict(sorted(parts.items(), key=lambda part: -part[1]))
    return TimeAccount(wall_s=ended_unix_s - began_unix_s, parts_s=ordered)


def _innermost(edges: Sequence[float], spans: Sequence[Interval]) -> list[str]:
    """Name of the innermost span over each stretch between neighbouring edges."""
    position = {edge: index for index, edge in enumerate(edges)}
    names = [UNNAMED] * (len(edges) - 1)
    # Painted outermost first: earlier begin, then later end; what is painted last is innermost.
    for span in sorted(spans, key=lambda span: (span.begin_s, -span.end_s)):
        first = position.get(span.begin_s, 0)
        last = position.get(span.end_s, len(edges) - 1)
        names[first:last] = [span.name] * (last - first)
    return names
