"""Skips and openings by hand are on record for ever: who, when, why; the last one counts."""

from __future__ import annotations

import datetime
import getpass
import io
import json
from pathlib import Path

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.console.console import plain_console
from headway.flows.show.calendar import make_calendar, print_calendar
from headway.flows.show.decisions import open_until, skip, unskip
from headway.flows.windows.gate import Admit, Skip, decide
from headway.tasks.ownership.pipeline_history import ref_of

from .clocks import instant

NOON = instant("2026-11-23T12:00Z")
TONIGHT = instant("2026-11-24T01:00Z")
DAY = datetime.timedelta(days=1)


def shown(calendar) -> str:
    stream = io.StringIO()
    print_calendar(calendar, plain_console(stream, width=200))
    return stream.getvalue()


def state(pipeline, now: datetime.datetime) -> str:
    decision = decide(pipeline.timetable, now)
    return decision.state if isinstance(decision, Skip) else "run"


def test_the_next_window_is_skipped_and_no_other(reopened) -> None:
    message = skip(reopened(), NOON, until="", skip_next=True, why="the cluster moves")
    assert "2026-11-24 01:00+01:00 to 2026-11-24 05:00+01:00" in message
    assert "next window opens at 2026-11-25 01:00+01:00" in message
    assert [state(reopened(), TONIGHT + days * DAY) for days in range(3)] == ["Skipped", "run", "run"]


def test_windows_are_skipped_until_a_date_on_the_windows_own_clock(reopened) -> None:
    skip(reopened(), NOON, until="2026-11-26", skip_next=False, why="the cluster moves")
    assert reopened().timetable.overrides[0].end == instant("2026-11-25T23:00Z")
    assert [state(reopened(), TONIGHT + days * DAY) for days in range(3)] == ["Skipped", "Skipped", "run"]


def test_unskipping_brings_the_windows_back_from_now_on(reopened) -> None:
    skip(reopened(), NOON, until="2026-11-30", skip_next=False, why="the cluster moves")
    message = unskip(reopened(), NOON + DAY, why="it moved faster")
    assert "Ended one decision" in message and "2026-11-25 01:00+01:00" in message
    assert [state(reopened(), TONIGHT + days * DAY) for days in range(3)] == ["Skipped", "run", "run"]
    with pytest.raises(ConfigError, match="nothing is skipped or opened"):
        unskip(reopened(), NOON + DAY, why="again")


def test_a_window_opened_by_hand_wins_over_a_skip_and_a_blackout(reopened) -> None:
    christmas = instant("2026-12-24T12:00Z")
    skip(reopened(), christmas, until="2027-01-02", skip_next=False, why="holidays")
    assert state(reopened(), christmas) == "Skipped"
    message = open_until(reopened(), christmas, until="2026-12-24T18:00", why="the model is on fire")
    assert "Open until 2026-12-24 18:00+01:00" in message
    decision = decide(reopened().timetable, christmas)
    assert isinstance(decision, Admit) and decision.deadline == instant("2026-12-24T16:55Z")
    assert state(reopened(), instant("2026-12-24T17:00Z")) == "Skipped"


def test_the_record_is_kept_with_who_when_and_why(reopened, project: Path) -> None:
    skip(reopened(), NOON, until="", skip_next=True, why="the cluster moves")
    unskip(reopened(), NOON, why="it does not")
    entries = refs.history(Workspace(str(project / "workspace")), ref_of("tiny"))
    assert [entry.reason for entry in entries] == ["the cluster moves", "it does not"]
    assert all(entry.detail["by"].startswith(f"{getpass.getuser()}@") and entry.unix_s > 0 for entry in entries)


def test_the_calendar_shows_what_was_decided_by_whom_and_why(reopened) -> None:
    skip(reopened(), NOON, until="", skip_next=True, why="the cluster moves")
    calendar = make_calendar(reopened(), NOON, 2 * DAY)
    assert [each.opens.isoformat() for each in calendar.openings] == ["2026-11-25T01:00:00+01:00"]
    [decision] = calendar.decisions
    assert (decision.action, decision.why) == ("skip", "the cluster moves")
    assert decision.by.startswith(getpass.getuser())
    assert make_calendar(reopened(), NOON + 2 * DAY, DAY).decisions == [], "it is over by then"


def test_the_calendar_says_what_no_schedule_starts(reopened) -> None:
    skip(reopened(), NOON, until="2026-11-24T03:00", skip_next=False, why="the cluster moves")
    open_until(reopened(), NOON, until="2026-11-23T15:00", why="a try")
    calendar = make_calendar(reopened(), NOON, 2 * DAY)
    assert [f"{each.opens:%d %H:%M}" for each in calendar.openings] == ["23 13:00", "24 03:00", "25 01:00"]
    assert [each.has_a_start for each in calendar.openings] == [False, False, True]
    assert "open now, no schedule starts it" in shown(calendar)


@pytest.mark.parametrize(
    ("until", "skip_next", "why", "message"),
    [
        ("", False, "why", "Give --next, or --until"),
        ("2026-11-26", True, "why", "Give --next, or --until"),
        ("2026-11-23T12:59", False, "why", r"2026-11-23 12:59\+01:00 is past"),
        ("soon", False, "why", "'soon' is no date or time"),
        ("0001-01-01", False, "why", "'0001-01-01' is no date or time"),
        ("9999-12-31T23:59Z", False, "why", "'9999-12-31T23:59Z' is no date or time"),
        ("2028-01-01", False, "why", "2028-01-01 is more than a year ahead"),
        ("2026-11-26", False, " ", "needs its reason"),
    ],
)
def test_a_decision_that_says_too_little_is_refused(reopened, until, skip_next, why, message) -> None:
    with pytest.raises(ConfigError, match=message):
        skip(reopened(), NOON, until=until, skip_next=skip_next, why=why)
    assert reopened().timetable.overrides == ()


def test_nothing_is_opened_for_longer_than_a_year(reopened) -> None:
    with pytest.raises(ConfigError, match="2999-01-01 is more than a year ahead"):
        open_until(reopened(), NOON, until="2999-01-01", why="it shall always train")
    assert reopened().timetable.overrides == ()


def test_a_damaged_record_stops_rather_than_being_guessed(reopened, project: Path) -> None:
    skip(reopened(), NOON, until="", skip_next=True, why="the cluster moves")
    [entry] = (project / "workspace" / "refs" / "pipelines" / "tiny").glob("*.json")
    value = json.loads(entry.read_bytes()) | {"reason": "another"}
    entry.chmod(0o644)
    entry.write_text(json.dumps(value))
    with pytest.raises(IntegrityError):
        reopened()
