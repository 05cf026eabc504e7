"""Starts for Prefect, generated from windows, as plain data that a deployer hands on.

A cron line in the windows' zone says the start of each weekly window. Two kinds of openings it cannot say: on a day on
which the clock skips the start, Prefect's cron fires before the jump, when the window is still closed; and where a
blackout ends in the middle of windows that adjoin, the rest has no start. Those get dates of their own, in UTC, for two
years: deploy within two years. Cron also fires on blackout days and before such a jump; the gate skips these by name.
Where a person opened a window over a jump, both starts lie in one opening: the later is cancelled while the earlier
goes on, and finds everything after it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.windows import DAY_MINUTES, DAYS, Day, WindowsSpec, merged_week
from headway.flows.windows.openings import UTC, Opening, Timetable, first_shown

AHEAD = datetime.timedelta(days=731)
MAX_DATES = 380
"""Prefect refuses a rule of more than 6,500 characters."""


class Schedule(Frozen):
    """A schedule of a Prefect deployment; its fields are those of `prefect.yaml`. One of `cron` and `rrule` is set."""

    slug: str
    cron: str | None = None
    rrule: str | None = None
    timezone: str


def schedules(spec: WindowsSpec, now: datetime.datetime) -> tuple[Schedule, ...]:
    """All starts of the windows from `now` on.

    Raises:
        ConfigError: no window opens within a year.
    """
    require_an_opening(Timetable(spec=spec), now)
    crons = tuple(
        Schedule(
            slug=f"window-{minutes // 60:02d}{minutes % 60:02d}",
            cron=f"{minutes % 60} {minutes // 60} * * {_days_of_week(days)}",
            timezone=spec.time_zone,
        )
        for minutes, days in _starts(spec).items()
    )
    dates = [f"{each.start:%Y%m%dT%H%M%SZ}" for each in _without_a_cron(spec, now)][:MAX_DATES]
    if not dates:
        return crons
    return (*crons, Schedule(slug="window-dates", rrule=f"RDATE:{','.join(dates)}", timezone="UTC"))


def require_an_opening(timetable: Timetable, now: datetime.datetime) -> None:
    """Raises `ConfigError` where nothing is open now, or opens within a year."""
    if timetable.opening_at(now) is None and timetable.next_opening(now) is None:
        raise ConfigError(
            "no window opens within a year.",
            where="windows.blackouts",
            advice="Blackouts or `headway skip-window` cover them all: shorten those.",
        )


def _starts(spec: WindowsSpec) -> dict[int, list[Day]]:
    """Minutes after midnight to the days on which windows open then, those that adjoin another's end left out."""
    starts: dict[int, list[Day]] = {}
    for start, _ in merged_week(spec.open):
        day, minutes = divmod(start, DAY_MINUTES)
        starts.setdefault(minutes, []).append(DAYS[day])
    return dict(sorted(starts.items()))


def _days_of_week(days: list[Day]) -> str:
    return "*" if len(days) == len(DAYS) else ",".join(days)


def _without_a_cron(spec: WindowsSpec, now: datetime.datetime) -> Iterator[Opening]:
    """Openings at whose start no cron line fires."""
    starts, zone = _starts(spec), spec.zone
    for opening in Timetable(spec=spec).following(now, AHEAD):
        shown = opening.start.astimezone(zone).replace(tzinfo=None)
        minutes, day = shown.hour * 60 + shown.minute, DAYS[shown.weekday()]
        if day not in starts.get(minutes, ()) or first_shown(shown, zone) != opening.start.astimezone(UTC):
            yield opening
