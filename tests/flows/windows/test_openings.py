"""When windows are open, held against a clock that is walked through minute by minute."""

from __future__ import annotations

import datetime
import functools
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.flows.config.windows import DAYS, WindowsSpec, minutes_of
from headway.flows.windows.openings import Opening, Override, Timetable

from .clocks import CLOCKS, instant, specs, window, windows_spec

MINUTE, DAY = datetime.timedelta(minutes=1), datetime.timedelta(days=1)
EACH_CLOCK = pytest.mark.parametrize(("zone", "moment"), [(zone, moment) for zone, moment, _ in CLOCKS])
# What each clock does to a minute the first of the three properties asks; the others look at the same openings.
SOME_CLOCKS = pytest.mark.parametrize(
    ("zone", "moment"),
    [
        pytest.param(zone, moment, marks=() if number % 4 == 0 else pytest.mark.soak)
        for number, (zone, moment, _) in enumerate(CLOCKS)
    ],
)
FEW = settings(max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True)


@functools.cache
def walked(zone: str, moment: str) -> list[tuple[datetime.datetime, datetime.datetime]]:
    """Minutes around a moment, each with the latest time that the local clock has shown until then."""
    spec, shown, minutes = windows_spec(zone, window("01:00", "02:00")), datetime.datetime.min, []
    at = instant(moment) - 3 * DAY
    while at < instant(moment) + 2 * DAY:
        shown = max(shown, at.astimezone(spec.zone).replace(tzinfo=None))
        minutes.append((at, shown))
        at += MINUTE
    return [minute for minute in minutes if minute[0] >= instant(moment) - 2 * DAY]


def by_the_wall(
    spec: WindowsSpec, first: datetime.date, last: datetime.date
) -> list[tuple[datetime.datetime, datetime.datetime]]:
    """From when to when the clock on the wall shows a time that is open, of windows that begin on one of these days."""
    times = []
    for number in range((last - first).days + 1):
        day = first + number * DAY
        midnight = datetime.datetime.combine(day, datetime.time())
        for each in spec.open:
            start = midnight + MINUTE * minutes_of(each.start)
            end = midnight + MINUTE * minutes_of(each.end) + (DAY if each.end <= each.start else 0 * DAY)
            if DAYS[day.weekday()] in each.days and not spec.blackout_on(day):
                times.append((start, end))
    return times


@EACH_CLOCK
@given(data=st.data())
@FEW
def test_every_minute_is_open_exactly_when_the_clock_on_the_wall_says_so(zone, moment, data) -> None:
    spec, minutes = data.draw(specs(zone, instant(moment))), walked(zone, moment)
    found = Timetable(spec=spec).openings(minutes[0][0], minutes[-1][0] + MINUTE)
    times = by_the_wall(spec, minutes[0][1].date() - DAY, minutes[-1][1].date())
    by_wall = {at for at, shown in minutes if any(start <= shown < end for start, end in times)}
    by_openings = {at for at, _ in minutes if any(each.holds(at) for each in found)}
    assert by_wall == by_openings, sorted(by_wall ^ by_openings)[:3]


@SOME_CLOCKS
@given(data=st.data())
@FEW
def test_openings_never_touch_and_each_says_the_same_wherever_it_is_asked_for(zone, moment, data) -> None:
    around = instant(moment)
    timetable = Timetable(spec=data.draw(specs(zone, around)))
    found = timetable.openings(around - 9 * DAY, around + 9 * DAY)
    assert all(one.end < other.start for one, other in pairwise(found))
    assert all(each.length_s > 0 for each in found)
    for each in found:
        if each.end < around - 2 * DAY or each.start > around + 2 * DAY:
            continue
        middle = each.start + (each.end - each.start) / 2
        assert timetable.opening_at(middle) == timetable.opening_at(each.start) == each
        assert timetable.opening_at(each.end) is None
        assert each in timetable.openings(middle, middle + MINUTE)


@SOME_CLOCKS
@given(data=st.data(), offsets=st.lists(st.integers(-4320, 4320), min_size=2, max_size=2).map(sorted))
@FEW
def test_the_next_opening_is_monotone_and_no_opening_lies_before_it(zone, moment, data, offsets) -> None:
    around = instant(moment)
    timetable = Timetable(spec=data.draw(specs(zone, around)))
    earlier, later = (around + offset * MINUTE for offset in offsets)
    one, other = timetable.next_opening(earlier), timetable.next_opening(later)
    assert one is not None and other is not None and one.start > earlier
    assert one.start <= other.start
    assert other == one or one.start <= later
    between = timetable.openings(earlier, one.start)
    assert all(each.start <= earlier for each in between)


def opened(zone: str, start: str, end: str, day: str) -> Opening | None:
    """The one opening of a daily window that belongs to a day."""
    spec = windows_spec(zone, window(start, end, [DAYS[datetime.date.fromisoformat(day).weekday()]]))
    noon = instant(f"{day}T12:00Z")
    return next(iter(Timetable(spec=spec).openings(noon - DAY, noon + DAY)), None)


def test_the_next_openings_miss_none_over_a_year() -> None:
    timetable = Timetable(spec=windows_spec("Europe/Berlin", window("22:00", "06:00")))
    begin = instant("2026-01-01T12:00Z")
    starts = [each.start for each in timetable.following(begin)]
    assert len(starts) == 366
    assert {(later - earlier).total_seconds() / 3600 for earlier, later in pairwise(starts)} == {23, 24, 25}


@pytest.mark.parametrize(
    ("zone", "day", "start", "end", "hours"),
    [
        ("Europe/Berlin", "2026-03-28", "22:00", "06:00", 7),  # the night is an hour shorter
        ("Europe/Berlin", "2026-03-29", "02:30", "05:00", 2),  # opens at the jump, 03:00
        ("Europe/Berlin", "2026-03-29", "01:00", "02:30", 1),  # closes at the jump
        ("Europe/Berlin", "2026-10-24", "22:00", "06:00", 9),  # the night is an hour longer
        ("Europe/Berlin", "2026-10-25", "01:00", "02:30", 1.5),  # closes the first time it is 02:30
        ("Europe/Berlin", "2026-10-25", "02:30", "05:00", 3.5),  # opens the first time
        ("Europe/Berlin", "2026-10-25", "02:15", "02:45", 0.5),  # not a second time
        ("Europe/Berlin", "2026-10-25", "02:00", "03:00", 2),  # there is one 03:00, two hours later
        ("Australia/Lord_Howe", "2026-04-05", "01:00", "03:00", 2.5),
        ("Antarctica/Troll", "2026-03-29", "00:00", "04:00", 2),
        ("Pacific/Apia", "2011-12-29", "22:00", "06:00", 2),  # Friday never was: it closes when Saturday begins
        ("Pacific/Apia", "2011-12-30", "22:00", "06:00", 6),  # Friday's night begins when Saturday does
        ("America/Havana", "2026-10-31", "22:00", "24:00", 2),  # the first of two midnights
    ],
)
def test_what_a_change_of_the_clock_does_to_a_window(zone: str, day: str, start: str, end: str, hours: float) -> None:
    found = opened(zone, start, end, day)
    assert found is not None and found.length_s == 3600 * hours


def test_a_window_that_the_clock_skips_is_not_there_that_day() -> None:
    assert opened("Europe/Berlin", "02:00", "03:00", "2026-03-29") is None
    assert opened("Pacific/Apia", "01:00", "23:00", "2011-12-30") is None


def test_the_moment_of_the_jump_is_found_to_the_second() -> None:
    found = opened("Europe/Berlin", "02:30", "05:00", "2026-03-29")
    assert found is not None and found.start == instant("2026-03-29T01:00:00Z")


def test_a_blackout_counts_for_the_day_on_which_a_window_opens() -> None:
    spec = windows_spec("Europe/Berlin", window("22:00", "06:00"), blackouts=[datetime.date(2026, 12, 24)])
    timetable = Timetable(spec=spec)
    night_before, night_itself = instant("2026-12-24T03:00+01:00"), instant("2026-12-25T03:00+01:00")
    assert timetable.opening_at(night_before) is not None and timetable.blackout_at(night_before) is None
    assert timetable.opening_at(night_itself) is None and timetable.blackout_at(night_itself) is not None
    assert timetable.blackout_at(instant("2026-12-24T12:00Z")) is None, "no window would be open at noon"


def test_windows_that_adjoin_are_one_opening() -> None:
    spec = windows_spec("Europe/Berlin", window("00:00", "24:00", ["sat", "sun"]), window("00:00", "04:00", ["mon"]))
    [found] = Timetable(spec=spec).openings(instant("2026-11-21T12:00Z"), instant("2026-11-22T12:00Z"))
    assert found.length_s == 52 * 3600


def override(action: str, start: str, end: str) -> Override:
    return Override(
        action=action,
        start=instant(start),
        end=instant(end),
        why="why",
        by="by",
        decided_at=instant(start),
    )


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
def test_of_decisions_about_the_same_moment_the_last_one_counts(data) -> None:
    moment = "2026-10-25T01:00Z"
    base = Timetable(spec=data.draw(specs("Europe/Berlin", instant(moment))))
    hours = st.integers(-60, 60)
    decided = data.draw(
        st.lists(st.tuples(st.sampled_from(["skip", "open"]), hours, hours).filter(lambda d: d[1] < d[2]), max_size=4)
    )
    hour = datetime.timedelta(hours=1)
    overrides = [
        Override(
            action=action,
            start=instant(moment) + begin * hour,
            end=instant(moment) + end * hour,
            why="why",
            by="by",
            decided_at=instant(moment),
        )
        for action, begin, end in decided
    ]
    timetable = Timetable(spec=base.spec, overrides=overrides)
    found = timetable.openings(instant(moment) - 3 * DAY, instant(moment) + 3 * DAY)
    assert all(one.end < other.start for one, other in pairwise(found))
    by_windows = base.openings(instant(moment) - 4 * DAY, instant(moment) + 4 * DAY)
    for quarters in range(-260, 260):
        at = instant(moment) + quarters * datetime.timedelta(minutes=15)
        deciding = [each.action for each in overrides if each.holds(at)]
        expected = deciding[-1] == "open" if deciding else any(each.holds(at) for each in by_windows)
        assert any(each.holds(at) for each in found) == expected
        assert (timetable.skip_at(at) is not None) == (bool(deciding) and deciding[-1] == "skip")


def test_a_skip_that_is_days_ahead_ends_a_long_window_wherever_it_is_asked_for() -> None:
    spec = windows_spec("UTC", window("00:00", "24:00", ["sat", "sun"]), window("20:00", "24:00", ["fri"]))
    skipped = override("skip", "2026-11-22T12:00Z", "2026-11-22T18:00Z")
    found = Timetable(spec=spec, overrides=[skipped]).opening_at(instant("2026-11-20T21:00Z"))
    assert found == Opening(start=instant("2026-11-20T20:00Z"), end=skipped.start)


def test_a_long_opening_by_decision_is_whole_wherever_it_is_asked_for() -> None:
    spec = windows_spec("UTC", window("01:00", "02:00"))
    decided = override("open", "2026-01-10T00:00Z", "2026-05-01T00:00Z")
    timetable = Timetable(spec=spec, overrides=[decided])
    found = timetable.opening_at(instant("2026-03-01T00:00Z"))
    assert found == Opening(start=decided.start, end=decided.end)
