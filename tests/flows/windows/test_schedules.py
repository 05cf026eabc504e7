"""Schedules are held against Prefect's own: every opening has its start, and what else fires is skipped by name."""

from __future__ import annotations

import asyncio
import datetime

import pytest
from prefect.client.schemas.schedules import CronSchedule as ClientCron
from prefect.client.schemas.schedules import RRuleSchedule as ClientRRule
from prefect.server.schemas.schedules import CronSchedule, RRuleSchedule

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.windows import WindowsSpec
from headway.flows.windows.gate import Skip, decide
from headway.flows.windows.openings import Timetable
from headway.flows.windows.schedules import AHEAD, MAX_DATES, Schedule, schedules

from .clocks import CLOCKS, instant, window, windows_spec

DAY = datetime.timedelta(days=1)
ZONES = sorted({zone for zone, moment, _ in CLOCKS if moment.startswith("2026")} - {"UTC", "Asia/Kathmandu"})


def fired(schedule: Schedule, since: datetime.datetime, until: datetime.datetime) -> set[datetime.datetime]:
    """What Prefect's server makes of a schedule. It looks at a thousand dates at most: so a piece at a time."""
    made = (
        CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
        if schedule.cron is not None
        else RRuleSchedule(rrule=schedule.rrule, timezone=schedule.timezone)
    )
    dates: set[datetime.datetime] = set()
    while since < until:
        piece = min(since + 100 * DAY, until)
        found = asyncio.run(made.get_dates(start=since, end=piece))
        dates |= {datetime.datetime.fromtimestamp(date.timestamp(), datetime.UTC) for date in found}
        since = piece
    return dates


def starts(spec: WindowsSpec, since: datetime.datetime, until: datetime.datetime) -> set[datetime.datetime]:
    return {each.start for each in Timetable(spec=spec).following(since, until - since)}


@pytest.mark.parametrize("zone", ZONES)
def test_prefect_starts_every_opening_when_it_opens_and_whatever_else_it_starts_is_skipped(zone: str) -> None:
    spec = windows_spec(
        zone,
        window("00:30", "02:15", ["sun", "fri", "sat"]),
        window("02:15", "02:40", ["sun", "fri"]),
        window("02:50", "05:00", ["sun"]),
        window("22:00", "04:00", ["mon", "tue", "wed"]),
        blackouts=[
            datetime.date(2026, 10, 25),
            {"first": datetime.date(2026, 3, 8), "last": datetime.date(2026, 3, 9)},
        ],
    )
    now = instant("2026-01-10T12:00Z")
    made = schedules(spec, now)
    assert len({each.slug for each in made}) == len(made)
    dates = set().union(*(fired(each, now, now + 320 * DAY) for each in made))
    expected = starts(spec, now, now + 320 * DAY)
    assert expected and expected <= dates, sorted(expected - dates)
    timetable = Timetable(spec=spec)
    for extra in dates - expected:
        decided = decide(timetable, extra, extra)
        # In the middle of one only where the clock skips what was closed between two windows.
        assert isinstance(decided, Skip) or decided.opening.start in dates - {extra}, extra


def test_plain_windows_are_plain_cron_lines_in_their_zone() -> None:
    spec = windows_spec(
        "Asia/Kolkata", window("01:05", "05:00", ["mon", "tue", "fri"]), window("22:00", "23:00", ["sat", "sun"])
    )
    assert schedules(spec, instant("2026-01-10T12:00Z")) == (
        Schedule(slug="window-0105", cron="5 1 * * mon,tue,fri", timezone="Asia/Kolkata"),
        Schedule(slug="window-2200", cron="0 22 * * sat,sun", timezone="Asia/Kolkata"),
    )
    assert schedules(windows_spec("UTC", window("01:00", "05:00")), instant("2026-01-10T12:00Z"))[0].cron == "0 1 * * *"


def test_windows_that_adjoin_have_one_start_also_over_the_weeks_end() -> None:
    spec = windows_spec("UTC", window("00:00", "24:00", ["sat", "sun"]), window("00:00", "06:00", ["mon"]))
    assert [each.cron for each in schedules(spec, instant("2026-01-10T12:00Z"))] == ["0 0 * * sat"]


def test_a_start_that_the_clock_skips_has_a_date_of_its_own_at_the_jump() -> None:
    spec = windows_spec("Europe/Berlin", window("02:30", "05:00"))
    cron, dates = schedules(spec, instant("2026-01-10T12:00Z"))
    assert cron.cron == "30 2 * * *"
    assert (dates.rrule, dates.timezone) == (
        "RDATE:20260328T010000Z".replace("0328", "0329") + ",20270328T010000Z",
        "UTC",
    )


def test_what_a_blackout_leaves_of_adjoining_windows_has_a_date_of_its_own() -> None:
    spec = windows_spec("UTC", window("00:00", "24:00", ["sat", "sun"]), blackouts=[datetime.date(2026, 1, 17)])
    assert schedules(spec, instant("2026-01-10T12:00Z"))[-1].rrule == "RDATE:20260118T000000Z"


def test_prefects_client_takes_them_too_and_the_longest_rule_is_not_too_long() -> None:
    for each in schedules(windows_spec("Europe/Berlin", window("02:30", "05:00")), instant("2026-01-10T12:00Z")):
        if each.cron is not None:
            ClientCron(cron=each.cron, timezone=each.timezone)
        else:
            ClientRRule(rrule=each.rrule, timezone=each.timezone)
    ClientRRule(rrule="RDATE:" + ",".join(["20260329T010000Z"] * MAX_DATES), timezone="UTC")


def test_windows_that_blackouts_cover_for_a_year_are_refused() -> None:
    always = {"first": datetime.date(2026, 1, 1), "last": datetime.date(2027, 6, 1)}
    spec = windows_spec("UTC", window("01:00", "05:00"), blackouts=[always])
    with pytest.raises(ConfigError, match="no window opens within a year"):
        schedules(spec, instant("2026-01-10T12:00Z"))
    assert schedules(spec, instant("2026-07-01T00:00Z")), "it ends within a year from here"
    assert AHEAD > 366 * DAY
