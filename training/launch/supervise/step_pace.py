"""How long a step takes of gangs side by side, and of the same gangs alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean, median
from typing import NamedTuple

LEAST_SEEN = 3
"""Looks at new steps of a run, for a median to mean anything."""
MOST_SEEN = 100
"""The newest of a run, which a search of days keeps."""


class StepPace(NamedTuple):
    at_once: int
    """Gangs, at most."""
    step_s: float
    """With so many."""
    alone_s: float | None
    """Of the same runs, while none trained beside them; None: not measured."""

    def __str__(self) -> str:
        return pace_line(*self)


class StepPaces:
    """What was seen of runs by how many trained at a time."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, deque[float]]] = {}
        """By how many, and by run: seconds a step."""

    def add(self, run: str, num_going: int, step_s: float) -> None:
        self._seen.setdefault(num_going, {}).setdefault(run, deque(maxlen=MOST_SEEN)).append(step_s)

    def pace(self) -> StepPace | None:
        """None: none was seen beside another.

        Settings differ in what a step costs: only runs that were seen both ways tell one from the other.
        """
        medians = {num: _medians(runs) for num, runs in self._seen.items()}
        at_once = max((num for num, runs in medians.items() if runs), default=1)
        if at_once == 1:
            return None
        beside, alone = medians[at_once], medians.get(1, {})
        if both := beside.keys() & alone.keys():
            return StepPace(at_once, fmean(beside[run] for run in both), fmean(alone[run] for run in both))
        return StepPace(at_once, fmean(beside.values()), None)


def _medians(runs: Mapping[str, deque[float]]) -> dict[str, float]:
    return {run: median(seen) for run, seen in runs.items() if len(seen) >= LEAST_SEEN}


def pace_line(at_once: int, step_s: float, alone_s: float | None) -> str:
    beside = f"{at_once} trained at a time, a step in {1000 * step_s:.3g} ms"
    if not alone_s:
        return f"{beside}; alone: not measured"
    return f"{beside}; alone in {1000 * alone_s:.3g} ms: {step_s / alone_s:.2f} times as long"
