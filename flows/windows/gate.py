"""The gate before a retrain that keeps to its windows: run until a deadline, or skip for a reason with a name. Pure.

A schedule is only a start. After an outage Prefect starts every run that was missed, all at once, and a deployment
whose limit is one lets the first of them through and cancels the others. So whichever comes runs where a window is
open, were it due days ago: to leave it to the window's own start would leave it to one that is cancelled. A start that
comes later, of the same window or an older one, finds everything.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal

from headway.flows.config.windows import WindowsSpec
from headway.flows.windows.openings import UTC, Opening, Timetable

SkipState = Literal["OutsideWindow", "WindowTooShort", "Skipped", "Blackout", "Missed"]
EARLY = datetime.timedelta(seconds=60)
"""How far this machine's clock may lag behind that of the server which keeps the schedule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admit:
    """Train, and have the last checkpoint started by `deadline`."""

    opening: Opening
    deadline: datetime.datetime
    useful_s: float
    """From now to the deadline."""
    late_s: float
    """Behind the scheduled start, or behind the opening's where nothing was scheduled."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """Train nothing."""

    state: SkipState
    reason: str
    next_opening: Opening | None


def decide(timetable: Timetable, now: datetime.datetime, scheduled: datetime.datetime | None = None) -> Admit | Skip:
    """Whether a retrain may train now.

    Args:
        scheduled: when it was due; None for one that nobody scheduled.
    """
    spec, coming = timetable.spec, timetable.next_opening(now)
    opening = timetable.opening_at(now)
    if opening is None and coming is not None and scheduled == coming.start and coming.start - now <= EARLY:
        opening = coming
    if opening is None and (skip := timetable.skip_at(now)) is not None:
        reason = f"{skip.by} skips windows until {local(spec, skip.end)}: {skip.why}."
        return Skip(state="Skipped", reason=reason, next_opening=coming)
    if opening is None:
        return _outside(timetable, now, scheduled, coming)
    deadline = deadline_of(spec, opening)
    useful_s = (deadline - now).total_seconds()
    # Both: `min_useful_s` may be 0, and a deadline that has passed admits nobody even so.
    if useful_s < spec.min_useful_s or useful_s <= 0:
        reason = (
            f"the window closes at {local(spec, opening.end)}: {max(useful_s, 0):.0f} s are left before the last "
            f"checkpoint, and under {spec.min_useful_s:g} s are not worth a start."
        )
        return Skip(state="WindowTooShort", reason=reason, next_opening=coming)
    late_s = max(0.0, (now - (scheduled or opening.start)).total_seconds())
    reason = f"the window is open until {local(spec, opening.end)}; training stops at {local(spec, deadline)}."
    return Admit(opening=opening, deadline=deadline, useful_s=useful_s, late_s=late_s, reason=reason)


def deadline_of(spec: WindowsSpec, opening: Opening) -> datetime.datetime:
    """When training keeps its last checkpoint and stops."""
    return opening.end - datetime.timedelta(seconds=spec.margin_s)


def _outside(
    timetable: Timetable, now: datetime.datetime, scheduled: datetime.datetime | None, coming: Opening | None
) -> Skip:
    missed = None if scheduled is None else timetable.opening_at(scheduled)
    if scheduled is not None and missed is not None and missed.end <= now:
        due, closed = local(timetable.spec, scheduled), local(timetable.spec, missed.end)
        reason = f"it was due at {due}, in a window that closed at {closed}."
        return Skip(state="Missed", reason=reason, next_opening=coming)
    if (blackout := timetable.blackout_at(now)) is not None:
        return Skip(state="Blackout", reason=f"blackout {blackout}.", next_opening=coming)
    reason = f"no window is open at {local(timetable.spec, now)}."
    return Skip(state="OutsideWindow", reason=reason, next_opening=coming)


def local(spec: WindowsSpec, instant: datetime.datetime) -> str:
    """For a person, in the windows' zone; with the offset, since an hour may come twice."""
    return instant.astimezone(spec.zone).isoformat(sep=" ", timespec="minutes")


def opens_next(spec: WindowsSpec, coming: Opening | None) -> str:
    """One sentence for a person."""
    if coming is None:
        return "No window opens within a year."
    until = local(spec, coming.end)
    return f"The next window opens at {local(spec, coming.start)}, until {until} ({utc(coming.start)} in UTC)."


def utc(instant: datetime.datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
