"""When windows are open, in elapsed time: pure functions of the windows, of what people decided, and of instants.

One rule decides every change of the clock: **a window opens when the local clock first shows its start or later, and
closes when it first shows its end or later.** So

- a start or end that the clock skips means the moment of the jump; a window that it skips whole is not there that day;
- a start or end that comes twice means the first time; a window around the repeated hour is an hour longer;
- windows that do not overlap on the wall never overlap in time, and adjacent ones stay adjacent: they are one opening.

A window belongs to the day on which it opens, in its zone: a blackout of the next day does not close it at midnight.
Instants are aware datetimes in UTC; lengths are elapsed seconds.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from zoneinfo import ZoneInfo

from headway.flows.config.windows import DAYS, Blackout, WeeklyWindow, WindowsSpec, minutes_of

UTC = datetime.UTC
DAY = datetime.timedelta(days=1)
YEAR = datetime.timedelta(days=366)
LONGEST = datetime.timedelta(days=16)
"""Longer than any opening of windows alone: a week, or two where a jump of the clock skips what is closed."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Opening:
    """A stretch of time, its end excluded, in which training may happen."""

    start: datetime.datetime
    end: datetime.datetime

    @property
    def length_s(self) -> float:
        return (self.end - self.start).total_seconds()

    def holds(self, instant: datetime.datetime) -> bool:
        return self.start <= instant < self.end


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """What a person decided about a stretch of time, whatever the windows say."""

    action: Literal["skip", "open"]
    start: datetime.datetime
    end: datetime.datetime
    why: str
    by: str
    decided_at: datetime.datetime

    def holds(self, instant: datetime.datetime) -> bool:
        return self.start <= instant < self.end


def first_shown(wall: datetime.datetime, zone: ZoneInfo) -> datetime.datetime:
    """When the zone's clock first shows this naive time or a later one."""
    before = _offset(wall, zone, fold=0)
    after = _offset(wall, zone, fold=1)
    if before >= after:
        return (wall - before).replace(tzinfo=UTC)
    # The clock jumps over it: the jump lies between the two readings; halve to the second.
    early, late = (wall - after).replace(tzinfo=UTC), (wall - before).replace(tzinfo=UTC)
    while late - early > datetime.timedelta(seconds=1):
        middle = early + datetime.timedelta(seconds=int((late - early).total_seconds()) // 2)
        if middle.astimezone(zone).replace(tzinfo=None) < wall:
            early = middle
        else:
            late = middle
    return late


def _offset(wall: datetime.datetime, zone: ZoneInfo, *, fold: Literal[0, 1]) -> datetime.timedelta:
    offset = wall.replace(tzinfo=zone, fold=fold).utcoffset()
    assert offset is not None
    return offset


def occurrences(
    spec: WindowsSpec, since: datetime.datetime, until: datetime.datetime
) -> Iterator[tuple[Opening, datetime.date, WeeklyWindow]]:
    """Every window of every day that touches the stretch, blacked out or not, with the day it belongs to."""
    zone = spec.zone
    # A window that opened the day before may be open still, and a jump of the clock may move its end.
    day = since.astimezone(zone).date() - 2 * DAY
    while day <= until.astimezone(zone).date() + DAY:
        midnight = datetime.datetime.combine(day, datetime.time())
        for window in spec.open:
            if DAYS[day.weekday()] in window.days:
                opens = midnight + datetime.timedelta(minutes=minutes_of(window.start))
                closes = opens + datetime.timedelta(minutes=window.length_minutes)
                start, end = first_shown(opens, zone), first_shown(closes, zone)
                if start < end and end > since and start < until:
                    yield Opening(start=start, end=end), day, window
        day += DAY


def merged(openings: Iterable[Opening]) -> list[Opening]:
    """In order, those that touch or overlap being one."""
    found: list[Opening] = []
    for each in sorted(openings):
        if found and each.start <= found[-1].end:
            found[-1] = Opening(start=found[-1].start, end=max(found[-1].end, each.end))
        else:
            found.append(each)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Timetable:
    """Windows, and what people decided besides: of decisions about the same moment the last one counts."""

    spec: WindowsSpec
    overrides: Sequence[Override] = ()

    def openings(self, since: datetime.datetime, until: datetime.datetime) -> list[Opening]:
        """All that touch the stretch from `since` to `until`, whole."""
        deciding = [each for each in self.overrides if each.end > since - LONGEST and each.start < until + LONGEST]
        earliest = min([since, *(each.start for each in deciding)]) - LONGEST
        latest = max([until, *(each.end for each in deciding)]) + LONGEST
        found = merged(
            opening for opening, day, _ in occurrences(self.spec, earliest, latest) if not self.spec.blackout_on(day)
        )
        for override in deciding:
            decided = Opening(start=override.start, end=override.end)
            found = _without(found, decided) if override.action == "skip" else merged([*found, decided])
        return [each for each in found if each.end > since and each.start < until]

    def opening_at(self, now: datetime.datetime) -> Opening | None:
        return next((each for each in self.openings(now, now + DAY) if each.holds(now)), None)

    def following(self, now: datetime.datetime, within: datetime.timedelta = YEAR) -> Iterator[Opening]:
        """Openings that start after `now`, in order, as far as `within`."""
        since, until = now, now + within
        while since < until:
            # In steps, since most who ask take the first opening, and a year of days takes long.
            step = min(since + 4 * LONGEST, until)
            yield from (each for each in self.openings(since, step) if each.start > now and since <= each.start < step)
            since = step

    def next_opening(self, now: datetime.datetime, within: datetime.timedelta = YEAR) -> Opening | None:
        return next(self.following(now, within), None)

    def skip_at(self, now: datetime.datetime) -> Override | None:
        """The decision that keeps this moment closed, if one does."""
        last = next((each for each in reversed(self.overrides) if each.holds(now)), None)
        return last if last is not None and last.action == "skip" else None

    def blackout_at(self, now: datetime.datetime) -> Blackout | None:
        """The blackout that keeps a window closed which would be open now."""
        # A stretch without length touches nothing.
        moment = now + datetime.timedelta(microseconds=1)
        held = (self.spec.blackout_on(day) for each, day, _ in occurrences(self.spec, now, moment) if each.holds(now))
        return next((blackout for blackout in held if blackout is not None), None)


def _without(openings: Iterable[Opening], closed: Opening) -> list[Opening]:
    left = []
    for each in openings:
        if each.end <= closed.start or each.start >= closed.end:
            left.append(each)
            continue
        if each.start < closed.start:
            left.append(Opening(start=each.start, end=closed.start))
        if closed.end < each.end:
            left.append(Opening(start=closed.end, end=each.end))
    return left
