"""The time account: every second of a flow run under one name, the names summing to wall time.

An instant belongs to the innermost thing that was going on: the span that began last. What only the
command itself covers is unattributed. A run of a million steps has seven spans for each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    names = {UNNAMED: 0}
    # Arrays, not lists of tuples: a long run has millions of spans.
    named, begins_s, ends_s = array("i"), array("d"), array("d")
    for event in events:
        for name, begin_s, end_s in _spans(event):
            if end_s > started_unix_s and begin_s < ended_unix_s:
                named.append(names.setdefault(name, len(names)))
                begins_s.append(begin_s)
                ends_s.append(end_s)
    begins, ends = np.frombuffer(begins_s), np.frombuffer(ends_s)
    edges = np.unique(
        np.clip(np.concatenate([[started_unix_s, ended_unix_s], begins, ends]), started_unix_s, ended_unix_s)
    )
    innermost = _innermost(np.frombuffer(named, np.int32), begins, ends, edges)
    seconds = np.bincount(innermost, weights=np.diff(edges), minlength=len(names)).tolist()
    parts = {name: seconds[index] for name, index in names.items() if seconds[index] > 0}
    ordered = dict(sorted(parts.items(), key=lambda part: -part[1]))
    return TimeAccount(wall_s=ended_unix_s - started_unix_s, parts_s=ordered)


def _spans(event: Event) -> Iterator[tuple[str, float, float]]:
    """Name, begin and end of what took its time; a step's with its parts."""
    if "duration_s" not in event:
        return
    begin_s, duration_s = float(event["unix_s"]), float(event["duration_s"])
    end_s = begin_s + duration_s
    if event["event"] not in STEPS:
        yield _name(event), begin_s, end_s
        return
    yield "train.other", begin_s, end_s
    for part in PARTS:
        length_s = float(event.get(f"{part}_s", 0.0))
        yield f"train.{part}", begin_s, min(begin_s + length_s, end_s)
        begin_s += length_s


def _name(event: Event) -> str:
    """A stage's: what its task does before and after the document is found or made belongs to it."""
    return str(event["task"] if event["event"] == "task" else event["event"]).removeprefix("stage.")


def _innermost(
    named: NDArray[np.int32], begins: NDArray[np.float64], ends: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Which span's name holds over each stretch between neighbouring edges; 0 where there is none."""
    innermost = np.zeros(len(edges) - 1, np.int32)
    firsts, lasts = (np.searchsorted(edges, np.clip(moments, edges[0], edges[-1])) for moments in (begins, ends))
    # Painted outermost first: earlier begin, then later end, then as they came; what is painted last is innermost.
    order = np.lexsort((-ends, begins))
    for span in order:
        innermost[firsts[span] : lasts[span]] = named[span]
    return innermost
