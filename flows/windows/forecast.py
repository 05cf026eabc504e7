"""When a run will finish in its windows, from what its stages took before. Pure.

Training is cut at a window's end and continues in the next; another stage that was cut begins again.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headway.flows.config.windows import WindowsSpec
from headway.flows.windows.openings import Opening


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A stage that would run."""

    stage: str
    duration_s: float
    can_be_cut: bool = False
    """Whether it continues in the next window where this one ended it; other stages begin again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What came of the work in the openings given."""

    finish: datetime.datetime | None
    """None: not in these openings."""
    num_openings: int
    """Openings that it works in."""
    unfinished: Work | None
    """What it is at when the openings are over."""


def foresee(spec: WindowsSpec, work: Sequence[Work], openings: Iterable[Opening]) -> Forecast:
    """Lay the work out over openings, in order, each up to its deadline."""
    left, num_openings = list(work), 0
    for opening in openings:
        useful_s = opening.length_s - spec.margin_s
        # As the gate does when its time comes.
        if useful_s < spec.min_useful_s:
            continue
        num_openings, spent_s = num_openings + 1, 0.0
        while left and spent_s + left[0].duration_s <= useful_s:
            spent_s += left.pop(0).duration_s
        if not left:
            finish = opening.start + datetime.timedelta(seconds=spent_s)
            return Forecast(finish=finish, num_openings=num_openings, unfinished=None)
        if left[0].can_be_cut:
            left[0] = replace(left[0], duration_s=left[0].duration_s - (useful_s - spent_s))
    return Forecast(finish=None, num_openings=num_openings, unfinished=left[0] if left else None)
