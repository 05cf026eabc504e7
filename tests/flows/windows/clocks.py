"""Clocks that change: twenty zones and more, each with a moment at which something happens to its clock, or nothing."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from hypothesis import strategies as st
from pydantic import ValidationError

from headway.flows.config.windows import DAYS, WeeklyWindow, WindowsSpec

CLOCKS = [
    ("Europe/Berlin", "2026-03-29T01:00Z", "02:00 to 03:00"),
    ("Europe/Berlin", "2026-10-25T01:00Z", "03:00 to 02:00"),
    ("America/New_York", "2026-03-08T07:00Z", "02:00 to 03:00"),
    ("America/New_York", "2026-11-01T06:00Z", "02:00 to 01:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30Z", "02:00 to 02:30"),
    ("Australia/Lord_Howe", "2026-04-04T15:00Z", "02:00 to 01:30"),
    ("Asia/Kolkata", "2026-03-29T01:00Z", "no change, half an hour off"),
    ("Asia/Kathmandu", "2026-03-29T01:00Z", "no change, a quarter off"),
    ("Pacific/Apia", "2011-12-30T10:00Z", "a whole Friday skipped"),
    ("Pacific/Kwajalein", "1993-08-21T12:00Z", "a whole Saturday skipped"),
    ("America/St_Johns", "2026-03-08T05:30Z", "02:00 to 03:00, half an hour off"),
    ("America/St_Johns", "2026-11-01T04:30Z", "02:00 to 01:00, half an hour off"),
    ("Africa/Casablanca", "2026-02-15T02:00Z", "03:00 to 02:00, Ramadan begins"),
    ("Africa/Casablanca", "2026-03-22T02:00Z", "02:00 to 03:00, Ramadan ends"),
    ("Europe/Dublin", "2026-03-29T01:00Z", "negative DST ends"),
    ("Europe/Dublin", "2026-10-25T01:00Z", "negative DST begins"),
    ("Africa/Cairo", "2026-04-23T22:00Z", "00:00 to 01:00: no midnight"),
    ("America/Havana", "2026-03-08T05:00Z", "00:00 to 01:00: no midnight"),
    ("America/Havana", "2026-11-01T05:00Z", "01:00 to 00:00: two midnights"),
    ("Pacific/Chatham", "2026-09-26T14:00Z", "02:45 to 03:45"),
    ("Pacific/Chatham", "2026-04-04T14:00Z", "03:45 to 02:45"),
    ("Antarctica/Troll", "2026-03-29T01:00Z", "two hours at once"),
    ("Antarctica/Troll", "2026-10-25T01:00Z", "two hours at once"),
    ("America/Sao_Paulo", "2018-11-04T03:00Z", "00:00 to 01:00: no midnight"),
    ("Asia/Pyongyang", "2018-05-04T15:00Z", "23:30 to 00:00, for good"),
    ("America/Caracas", "2016-05-01T07:00Z", "02:30 to 03:00, for good"),
    ("UTC", "2026-03-29T01:00Z", "no change"),
]
"""Zone, moment of the change, and what the clock does then."""


def instant(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)


def windows_spec(zone: str, *windows: WeeklyWindow, **rest: object) -> WindowsSpec:
    return WindowsSpec.model_validate({"time_zone": zone, "open": windows, "margin_s": 0, "min_useful_s": 0, **rest})


def window(start: str, end: str, days: Sequence[str] = DAYS) -> WeeklyWindow:
    return WeeklyWindow.model_validate({"days": days, "start": start, "end": end})


def _time(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def specs(zone: str, around: datetime.datetime) -> st.SearchStrategy[WindowsSpec]:
    """Windows and blackouts of a zone, as wild as the configuration allows, many near the hours that change."""
    minutes = st.one_of(st.integers(0, 24), st.integers(0, 96)).map(lambda quarters: 15 * (quarters % 96)).map(_time)
    days = st.one_of(st.just(list(DAYS)), st.lists(st.sampled_from(DAYS), min_size=1, unique=True))
    one = st.builds(lambda days, start, end: {"days": days, "start": start, "end": end}, days, minutes, minutes)
    dates = st.integers(-3, 3).map(lambda off: (around + datetime.timedelta(days=off)).date())

    def made(windows: list[dict[str, object]], blackouts: list[datetime.date]) -> WindowsSpec | None:
        try:
            return windows_spec(zone, *windows, blackouts=blackouts)
        except ValidationError:
            return None

    drawn = st.builds(made, st.lists(one, min_size=1, max_size=3), st.lists(dates, max_size=2))
    return drawn.filter(lambda spec: spec is not None)
