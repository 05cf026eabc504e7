"""The `windows:` branch of the pipeline file: when scheduled retrains may train. No input of any stage's key.

Times are those of a clock on the wall in `time_zone`, to the minute. A window whose end is not after its start ends on
the next day. What the clock's changes do to a window, `headway.flows.windows.openings` says.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import re
import zoneinfo
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.training.config.durations import Seconds

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
_TIME = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d|24:00")


def _quoted_time(value: Any) -> Any:
    if isinstance(value, str) and _TIME.fullmatch(value):
        return value
    # YAML reads an unquoted 22:00 as 1320, and 2200 would be a number as well: nobody can tell them apart.
    raise ValueError('must be a time of day in quotes, from "00:00" to "24:00"')


WallTime = Annotated[
    str, BeforeValidator(_quoted_time), WithJsonSchema({"type": "string", "pattern": f"^({_TIME.pattern})$"})
]


def minutes_of(time: WallTime) -> int:
    """Minutes after midnight, 0 to 1440."""
    return int(time[:2]) * 60 + int(time[3:])


class WeeklyWindow(Frozen):
    """One window, on some days of every week."""

    days: tuple[Day, ...] = Field(default=DAYS, min_length=1, description="Days on which it opens.")
    start: WallTime = Field(description='When it opens, such as "22:00".')
    end: WallTime = Field(description='When it closes, such as "06:00"; not after `start`: on the next day.')

    @field_validator("days")
    @classmethod
    def _no_day_twice(cls, days: tuple[Day, ...]) -> tuple[Day, ...]:
        if twice := [day for day in DAYS if days.count(day) > 1]:
            raise ValueError(f"{', '.join(twice)} is given twice")
        return days

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.start == "24:00":
            raise ValueError('a window cannot start at "24:00": write "00:00" and the next day')
        if self.start == self.end:
            raise ValueError(
                f'start and end are both "{self.start}"; a window of a whole day is "00:00" to "24:00", and one '
                "that crosses midnight ends earlier in the day than it starts"
            )
        return self

    @property
    def length_minutes(self) -> int:
        """On a day without a change of the clock."""
        return (minutes_of(self.end) - minutes_of(self.start)) % DAY_MINUTES or DAY_MINUTES

    def __str__(self) -> str:
        days = "every day" if set(self.days) == set(DAYS) else ",".join(day for day in DAYS if day in self.days)
        return f"{days} {self.start}-{self.end}"


def _date(value: Any) -> Any:
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date | str):
        raise ValueError("must be a date, such as 2026-12-24")
    return value


Date = Annotated[datetime.date, BeforeValidator(_date)]


class Blackout(Frozen):
    """Days on which no window opens, the first and the last included. In the file a single date will do."""

    model_config = ConfigDict(json_schema_extra={"type": ["object", "string"]})

    first: Date = Field(description="The first day, such as 2026-12-24.")
    last: Date = Field(description="The last day, itself included.")
    why: str = Field(default="", description="Shown in the calendar, and as a skipped run's reason.")

    @model_validator(mode="before")
    @classmethod
    def _single_date(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"first": value, "last": value}

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.last < self.first:
            raise ValueError(f"its last day, {self.last}, is before its first, {self.first}")
        return self

    def __str__(self) -> str:
        days = str(self.first) if self.first == self.last else f"{self.first} to {self.last}"
        return f"{days} ({self.why})" if self.why else days


class WindowsSpec(Frozen):
    """When scheduled retrains may train."""

    time_zone: str = Field(description="IANA name of the zone whose clock the times are read from: Europe/Berlin.")
    open: tuple[WeeklyWindow, ...] = Field(min_length=1, description="The windows; none may overlap another.")
    blackouts: tuple[Blackout, ...] = Field(
        default=(), description="Dates, or ranges of them, on which no window opens. One open before stays open."
    )
    margin_s: Seconds = Field(
        default=120.0, ge=0, description="Seconds before a window's end at which training keeps its last checkpoint."
    )
    min_useful_s: Seconds = Field(
        default=600.0, ge=0, description="Seconds of training under which a late start is not worth its overhead."
    )
    starving_after: int = Field(
        default=5,
        ge=1,
        description="Windows in a row that may close before a run is finished; then its state is Starving, an alert.",
    )
    priority: int = Field(default=0, description="Of pipelines that wait for the same devices the highest goes first.")

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        if name not in _zone_names():
            raise ValueError(f"{name!r} is no IANA time zone{_nearest_zone(name)}")
        return name

    @model_validator(mode="after")
    def _windows_are_consistent(self) -> Self:
        placed = sorted(weekly_places(self.open), key=lambda place: place[:2])
        # The last of a week is held against the first of the next.
        for (_, end, one), (start, _, other) in zip(placed, placed[1:] + _next_week(placed[:1]), strict=True):
            if start < end:
                raise ValueError(f"windows overlap: {one} and {other}; let one end where the other starts")
        stretches = merged_week(self.open)
        if not stretches:
            raise ValueError("the windows never close in a week: leave `windows` out, or a while closed")
        shortest_s = 60.0 * min(end - start for start, end in stretches)
        if self.margin_s >= shortest_s:
            raise ValueError(
                f"margin_s {self.margin_s:g} leaves nothing of a window of {shortest_s:g} s; lower it, or open longer"
            )
        if self.margin_s + self.min_useful_s > shortest_s:
            raise ValueError(
                f"margin_s {self.margin_s:g} and min_useful_s {self.min_useful_s:g} are more than a window of "
                f"{shortest_s:g} s, so it would never be used; lower them, or open longer"
            )
        return self

    @property
    def zone(self) -> zoneinfo.ZoneInfo:
        return zoneinfo.ZoneInfo(self.time_zone)

    def blackout_on(self, day: datetime.date) -> Blackout | None:
        return next((each for each in self.blackouts if each.first <= day <= each.last), None)


def weekly_places(windows: Sequence[WeeklyWindow]) -> Iterator[tuple[int, int, WeeklyWindow]]:
    """Where each window lies in the week: start and end in minutes after Monday's midnight; an end may be past it."""
    for window in windows:
        for day in window.days:
            start = DAYS.index(day) * DAY_MINUTES + minutes_of(window.start)
            yield start, start + window.length_minutes, window


def merged_week(windows: Sequence[WeeklyWindow]) -> list[tuple[int, int]]:
    """The stretches of a week that are open, adjacent windows being one; none where the week never closes."""
    places = sorted((start, end) for start, end, _ in weekly_places(windows))
    # Past Sunday's midnight the week begins again: a window may adjoin one of Monday.
    ends_here = {end % WEEK_MINUTES for _, end in places}
    by_start = dict(places)
    stretches = []
    for start, end in places:
        if start in ends_here:
            continue
        while end % WEEK_MINUTES in by_start:
            following = end % WEEK_MINUTES
            end += by_start[following] - following
        stretches.append((start, end))
    return stretches


def _next_week(places: list[tuple[int, int, WeeklyWindow]]) -> list[tuple[int, int, WeeklyWindow]]:
    return [(start + WEEK_MINUTES, end + WEEK_MINUTES, window) for start, end, window in places]


@functools.cache
def _zone_names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


LONGEST_ABBREVIATION = 4  # CEST, AEST


def _nearest_zone(name: str) -> str:
    """By the whole name or by its city, however it is written."""
    wanted = name.strip().replace(" ", "_").lower()
    by_whole = {each.lower(): each for each in sorted(_zone_names())}
    by_city = {each.lower().rpartition("/")[2]: each for each in sorted(_zone_names(), reverse=True)}
    for known in (by_whole, by_city):
        # An abbreviation is near to any other: EST for CEST would open the windows seven hours off.
        if len(wanted) <= LONGEST_ABBREVIATION and wanted not in known:
            continue
        if close := difflib.get_close_matches(wanted, known, n=1, cutoff=0.75):
            return f"; did you mean {known[close[0]]}?"
    return "; they are named as in Europe/Berlin or America/New_York"
