"""The `windows:` branch: what it takes, and that each mistake is refused in words that say what to write instead."""

from __future__ import annotations

import datetime

import pytest

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.config.windows import WindowsSpec, merged_week

NIGHTS = '- {days: [mon, tue, wed, thu, fri], start: "01:00", end: "05:00"}'


class File(Frozen):
    windows: WindowsSpec


def read(*windows: str, zone: str = "Europe/Berlin", rest: str = "") -> WindowsSpec:
    listed = "\n".join(f"    {window}" for window in windows or (NIGHTS,))
    text = f"windows:\n  time_zone: {zone}\n  open:\n{listed}\n{rest}"
    return parse_yaml_model(File, text, where="tiny.yaml").windows


def refusal(*windows: str, zone: str = "Europe/Berlin", rest: str = "") -> str:
    with pytest.raises(ConfigError) as refused:
        read(*windows, zone=zone, rest=rest)
    return str(refused.value)


def test_blackouts_are_dates_or_ranges_of_dates() -> None:
    spec = read(rest="  blackouts: [2026-05-01, {first: 2026-12-24, last: 2027-01-01, why: freeze}]\n")
    assert [str(each) for each in spec.blackouts] == ["2026-05-01", "2026-12-24 to 2027-01-01 (freeze)"]
    found = spec.blackout_on(datetime.date(2027, 1, 1))
    assert found is not None and found.why == "freeze"
    assert spec.blackout_on(datetime.date(2027, 1, 2)) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Europe/Berlinn", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("US/Pacfic", "US/Pacific"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_name(written: str, meant: str) -> None:
    message = refusal(zone=written)
    assert "is no IANA time zone" in message and "windows.time_zone (line 2)" in message
    assert message.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize("zone", ["CEST", "PST", "CST", "BST", "AEST"])
def test_an_abbreviation_is_not_taken_for_that_of_another_zone(zone: str) -> None:
    message = refusal(zone=zone)
    assert "did you mean" not in message and "named as in Europe/Berlin" in message


@pytest.mark.parametrize("zone", ["Europe", "../etc/passwd", "/etc/localtime", "''", "+02:00"])
def test_what_is_no_name_of_a_zone_is_refused(zone: str) -> None:
    assert "is no IANA time zone" in refusal(zone=f'"{zone}"')


@pytest.mark.parametrize("written", ["22:00", "9:30", "2200", '"25:00"', '"1:00"', '"22:00:00"', '"24:30"', "null"])
def test_a_time_must_be_quoted_since_yaml_reads_22_00_as_a_number(written: str) -> None:
    assert 'in quotes, from "00:00" to "24:00"' in refusal(f'- {{start: {written}, end: "23:00"}}')


def test_a_window_needs_a_length() -> None:
    message = refusal('- {start: "05:00", end: "05:00"}')
    assert 'start and end are both "05:00"' in message and '"00:00" to "24:00"' in message


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('- {days: [mon], start: "01:00", end: "05:00"}', '- {days: [mon], start: "04:59", end: "06:00"}'),
        ('- {days: [mon], start: "22:00", end: "06:00"}', '- {days: [tue], start: "05:00", end: "08:00"}'),
        ('- {days: [sun], start: "22:00", end: "06:00"}', '- {days: [mon], start: "05:00", end: "08:00"}'),
        ('- {days: [mon], start: "01:00", end: "05:00"}', '- {days: [mon], start: "01:00", end: "05:00"}'),
    ],
)
def test_windows_that_overlap_are_both_named(one: str, other: str) -> None:
    message = refusal(one, other)
    assert "windows overlap" in message
    assert message.count("mon ") + message.count("tue ") + message.count("sun ") == 2


def test_windows_that_adjoin_are_one_stretch_also_over_the_weeks_end() -> None:
    spec = read('- {days: [sat, sun], start: "00:00", end: "24:00"}', '- {days: [mon], start: "00:00", end: "06:00"}')
    assert merged_week(spec.open) == [(5 * 1440, 7 * 1440 + 360)]


def test_windows_that_never_close_are_refused() -> None:
    assert "never close" in refusal('- {start: "00:00", end: "24:00"}')


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("  margin_s: 14400\n", "margin_s 14400 leaves nothing of a window of 14400 s"),
        ("  margin_s: 7200\n  min_useful_s: 7201\n", "would never be used"),
        ("  margin_s: -1\n", "greater than or equal to 0"),
        ("  blackouts: [{first: 2027-01-02, last: 2027-01-01}]\n", "its last day, 2027-01-01, is before its first"),
        ("  blackouts: [20261224]\n", "must be a date, such as 2026-12-24"),
        ("  blackouts: [{from: 2026-12-24, last: 2027-01-01}]\n", "unknown key `from`"),
        ("  timezone: UTC\n", "Did you mean `time_zone`?"),
    ],
)
def test_what_cannot_work_is_refused(rest: str, message: str) -> None:
    assert message in refusal(rest=rest)


def test_an_unknown_or_repeated_day_is_refused() -> None:
    assert "mon is given twice" in refusal('- {days: [mon, tue, mon], start: "01:00", end: "05:00"}')
    assert "one of mon, tue" in refusal('- {days: [monday], start: "01:00", end: "05:00"}')
    assert "at least 1" in refusal('- {days: [], start: "01:00", end: "05:00"}')
