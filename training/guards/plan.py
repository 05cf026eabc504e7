"""Which part of the sample order each step trains on, once guards have left some of it out.

The order is cut into *windows*, one global batch each. Step k trains on the k-th window that is not left out, so a run
with windows left out is the run that never had them, whenever, wherever and from whichever checkpoint it went on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class ExcludedSpan(NamedTuple):
    """Windows [first, stop), and why."""

    first: int
    stop: int
    cause: str


@dataclass(frozen=True, slots=True)
class DataPlan:
    excluded: tuple[ExcludedSpan, ...] = ()

    def without(self, *further: ExcludedSpan) -> DataPlan:
        """This plan with more left out; what it left out already stays."""
        # A set: a plan and the one of a checkpoint may hold the same span.
        return DataPlan(tuple(sorted({*self.excluded, *further})))

    def count(self, cause: str) -> int:
        """How often windows were left out for that cause."""
        return sum(each.cause == cause for each in self.excluded)

    def window(self, step: int) -> int:
        """The window that `step`, counted from 0, trains on."""
        window = step
        # Spans are ascending: each that begins at or before the window moves it further along.
        for first, stop in self._stretches():
            if window < first:
                break
            window += stop - first
        return window

    def steps_before(self, window: int) -> int:
        """How many of the windows before this one are trained on."""
        return window - sum(min(stop, window) - first for first, stop in self._stretches() if first < window)

    def excludes(self, window: int) -> bool:
        return any(first <= window < stop for first, stop, _ in self.excluded)

    def _stretches(self) -> list[tuple[int, int]]:
        """Windows left out, ascending and disjoint."""
        found: list[tuple[int, int]] = []
        for first, stop, _ in self.excluded:
            # Merged: spans may overlap after a roll-back, and a window must not count twice.
            if found and first <= found[-1][1]:
                found[-1] = (found[-1][0], max(stop, found[-1][1]))
            else:
                found.append((first, stop))
        return found
