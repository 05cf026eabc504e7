"""The gate: who may train until when, who is skipped, and under which name."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.flows.config.windows import WindowsSpec
from headway.flows.windows.gate import EARLY, Admit, Skip, decide
from headway.flows.windows.openings import Override, Timetable

from .clocks import CLOCKS, instant, specs, window, windows_spec

SECOND = datetime.timedelta(seconds=1)


def nights(**rest: object) -> WindowsSpec:
    """01:00 to 05:00 every night in Berlin: in winter 00:00 to 04:00 UTC."""
    return windows_spec("Europe/Berlin", window("01:00", "05:00"), **{"margin_s": 300, "min_useful_s": 900, **rest})


def decided(now: str, scheduled: str | None = None, *overrides: Override, **rest: object) -> Admit | Skip:
    timetable = Timetable(spec=nights(**rest), overrides=overrides)
    return decide(timetable, instant(now), None if scheduled is None else instant(scheduled))


def override(action: str, start: str, end: str) -> Override:
    return Override(
        action=action,
        start=instant(start),
        end=instant(end),
        why="disks are full",
        by="ann@host",
        decided_at=instant(start),
    )


def skipped(*requested: object, **rest: object) -> tuple[str, str]:
    found = decided(*requested, **rest)
    assert isinstance(found, Skip), found
    return found.state, found.reason


def test_in_a_window_it_runs_until_the_margin_before_its_end() -> None:
    found = decided("2026-11-24T00:00Z", "2026-11-24T00:00Z")
    assert isinstance(found, Admit)
    assert (found.deadline, found.useful_s, found.late_s) == (instant("2026-11-24T03:55Z"), 14100, 0)
    assert "open until 2026-11-24 05:00+01:00" in found.reason and "stops at 2026-11-24 04:55+01:00" in found.reason


def test_a_late_start_runs_as_long_as_it_is_useful() -> None:
    last = decided("2026-11-24T03:40Z", "2026-11-24T00:00Z")
    assert isinstance(last, Admit) and (last.useful_s, last.late_s) == (900, 3 * 3600 + 40 * 60)
    state, reason = skipped("2026-11-24T03:40:01Z", "2026-11-24T00:00Z")
    assert state == "WindowTooShort" and "899 s are left" in reason and "under 900 s" in reason


def test_nothing_runs_past_its_deadline_though_no_least_length_is_asked_for() -> None:
    assert isinstance(decided("2026-11-24T03:54:59Z", min_useful_s=0), Admit)
    assert skipped("2026-11-24T03:55:00Z", min_useful_s=0)[0] == "WindowTooShort"


def test_outside_every_window_it_is_skipped_and_the_next_window_named() -> None:
    found = decided("2026-11-24T04:00:00Z")
    assert isinstance(found, Skip) and found.state == "OutsideWindow"
    assert found.next_opening is not None and found.next_opening.start == instant("2026-11-25T00:00Z")


def test_a_blackout_has_a_name_where_a_window_would_be_open_and_only_there() -> None:
    freeze = [{"first": datetime.date(2026, 11, 24), "last": datetime.date(2026, 11, 24), "why": "audit"}]
    assert skipped("2026-11-24T01:00Z", blackouts=freeze) == ("Blackout", "blackout 2026-11-24 (audit).")
    assert skipped("2026-11-24T12:00Z", blackouts=freeze)[0] == "OutsideWindow"
    assert isinstance(decided("2026-11-25T01:00Z", blackouts=freeze), Admit)


def test_what_a_person_skipped_says_who_and_why() -> None:
    skip = override("skip", "2026-11-23T18:00Z", "2026-11-24T04:00Z")
    state, reason = skipped("2026-11-24T01:00Z", None, skip)
    assert state == "Skipped" and "ann@host" in reason and "disks are full" in reason
    assert isinstance(
        decided("2026-11-25T01:00Z", None, override("skip", "2026-11-23T18:00Z", "2026-11-24T04:00Z")), Admit
    )


def test_a_skip_that_is_to_come_ends_the_run_before_it() -> None:
    found = decided("2026-11-24T00:00Z", None, override("skip", "2026-11-24T02:00Z", "2026-11-24T04:00Z"))
    assert isinstance(found, Admit) and found.deadline == instant("2026-11-24T01:55Z")


def test_a_person_opens_a_window_over_a_blackout_and_at_noon() -> None:
    opened = override("open", "2026-11-24T12:00Z", "2026-11-24T14:00Z")
    found = decided("2026-11-24T12:30Z", None, opened, blackouts=[datetime.date(2026, 11, 24)])
    assert isinstance(found, Admit) and found.deadline == instant("2026-11-24T13:55Z")


def test_of_starts_that_an_outage_left_behind_whichever_comes_first_may_run_in_an_open_window() -> None:
    """Prefect lets one of them through, and nobody knows which: were it to wait for another, none would run."""
    starts = ["2026-11-22T00:00Z", "2026-11-23T00:00Z", "2026-11-24T00:00Z"]
    skip = override("skip", "2026-11-22T18:00Z", "2026-11-23T12:00Z")
    found = [decided("2026-11-24T01:00Z", start, skip, blackouts=[datetime.date(2026, 11, 22)]) for start in starts]
    assert [isinstance(each, Admit) and each.deadline for each in found] == [instant("2026-11-24T03:55Z")] * 3
    assert [each.late_s // 3600 for each in found if isinstance(each, Admit)] == [49, 25, 1]


def test_of_three_starts_missed_none_runs_when_the_outage_ends_between_windows() -> None:
    starts = ["2026-11-22T00:00Z", "2026-11-23T00:00Z", "2026-11-24T00:00Z"]
    found = [skipped("2026-11-24T10:00Z", start) for start in starts]
    assert {state for state, _ in found} == {"Missed"}
    assert "it was due at 2026-11-22 01:00+01:00, in a window that closed at 2026-11-22 05:00+01:00" in found[0][1]


def test_a_late_start_runs_in_the_rest_that_a_skip_left_of_its_own_window() -> None:
    skip = override("skip", "2026-11-23T18:00Z", "2026-11-24T00:30Z")
    assert isinstance(decided("2026-11-24T01:00Z", "2026-11-24T00:00Z", skip), Admit)


def test_a_clock_that_lags_behind_the_servers_loses_no_night() -> None:
    due = "2026-11-24T00:00Z"
    found = decided("2026-11-23T23:59:00Z", due)
    assert isinstance(found, Admit) and found.deadline == instant("2026-11-24T03:55Z") and found.late_s == 0
    assert skipped("2026-11-23T23:58:59Z", due)[0] == "OutsideWindow"
    assert skipped("2026-11-23T23:59:30Z")[0] == "OutsideWindow", "nobody scheduled this one"


def test_prefects_start_before_a_jump_of_the_clock_is_outside_and_the_one_at_the_jump_runs() -> None:
    spec = windows_spec("Europe/Berlin", window("02:30", "05:00"))
    early, jump = instant("2026-03-29T00:30Z"), instant("2026-03-29T01:00Z")
    found = decide(Timetable(spec=spec), early, early)
    assert isinstance(found, Skip) and found.state == "OutsideWindow"
    assert isinstance(decide(Timetable(spec=spec), jump, jump), Admit)
    # Where a person opened that hour, both starts lie in one opening: the later finds what the earlier made.
    opened = Timetable(spec=spec, overrides=[override("open", "2026-03-29T00:00Z", "2026-03-29T01:30Z")])
    both = [decide(opened, at, at) for at in (early, jump)]
    assert [isinstance(each, Admit) and each.opening.start for each in both] == [instant("2026-03-29T00:00Z")] * 2


@pytest.mark.parametrize(("zone", "moment"), [(zone, moment) for zone, moment, _ in CLOCKS[::4]])
@given(data=st.data())
@settings(max_examples=6, derandomize=True)
def test_whoever_runs_has_useful_time_and_stops_the_margin_before_a_close(zone, moment, data) -> None:
    around = instant(moment)
    spec = data.draw(specs(zone, around)).model_copy(update={"margin_s": 120.0, "min_useful_s": 300.0})
    timetable = Timetable(spec=spec)
    now = around + data.draw(st.integers(-3000, 3000)) * datetime.timedelta(minutes=1)
    scheduled = data.draw(st.one_of(st.none(), st.integers(0, 3000).map(lambda m: now - m * 60 * SECOND)))
    found = decide(timetable, now, scheduled)
    if isinstance(found, Admit):
        assert found.opening.holds(now) or found.opening.start - now <= EARLY
        assert (found.opening.end - found.deadline).total_seconds() == 120
        assert (found.deadline - now).total_seconds() == found.useful_s >= 300
    else:
        assert found.next_opening is None or found.next_opening.start > now
        open_now = timetable.opening_at(now)
        assert open_now is None or found.state == "WindowTooShort"
