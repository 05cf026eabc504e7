"""Rules about the whole set are drafted from what was seen, so that they hold now and warn before they refuse."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import yaml

from headway.data_contracts.drafting.contract_draft import MAX_DRIFT_COLUMNS, formatted, set_rule_lines
from headway.data_contracts.drafting.profile import profile_rows
from headway.data_contracts.types.column_types import type_name

NOON = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)


def drafted(columns: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The rules, and their text with its comments."""
    table = pa.table(dict(columns))
    with duckdb.connect() as connection:
        connection.register("rows", table)
        profile = profile_rows(connection, {field.name: type_name(field.type) for field in table.schema})
    text = formatted(list(set_rule_lines(profile, now_unix_s=NOON.timestamp())))
    return yaml.safe_load(text), text


def times(newest: datetime.datetime) -> pa.Array:
    return pa.array([newest - datetime.timedelta(hours=hours) for hours in range(5)], pa.timestamp("us", tz="UTC"))


def test_columns_that_only_together_name_a_row_become_a_key() -> None:
    pairs = [(a, b) for a in range(40) for b in range(30)]
    rules, _ = drafted({"shop": [a for a, _ in pairs], "day": [b for _, b in pairs]})
    assert [key["columns"] for key in rules["keys"]] == [["shop", "day"]]


def test_numbers_and_small_sets_are_watched_and_keys_texts_and_personal_data_are_not() -> None:
    numbers = range(400)
    rules, _ = drafted(
        {
            "id": list(numbers),
            "amount": [0.5 * (number % 90) for number in numbers],
            "country": ["DE", "FR"] * 200,
            "note": [f"some text {number}" for number in numbers],
            "zip_code": [number % 9 for number in numbers],
            "constant": [1] * 400,
            "flag": [True, False] * 200,
        }
    )
    assert rules["drift"][0]["columns"] == ["amount", "country", "flag"]
    assert rules["drift"][0]["severity"] == "warning"


def test_very_many_columns_are_watched_in_part_and_it_is_said() -> None:
    rules, text = drafted({f"c{number}": [1.0, 2.0] for number in range(MAX_DRIFT_COLUMNS + 5)})
    assert len(rules["drift"][0]["columns"]) == MAX_DRIFT_COLUMNS
    assert f"{MAX_DRIFT_COLUMNS + 5} columns could be watched" in text


def test_freshness_is_twice_the_age_of_the_newest_row_and_a_day_at_least() -> None:
    rules, text = drafted({"at": times(NOON - datetime.timedelta(hours=30))})
    assert rules["freshness"] == [{"id": "fresh", "column": "at", "max_age_h": 60, "severity": "warning"}]
    assert "the newest is 2026-06-30 06:00:00 UTC" in text
    rules, _ = drafted({"at": times(NOON)})
    assert rules["freshness"][0]["max_age_h"] == 24


def test_the_column_nearest_to_now_says_how_fresh_rows_are() -> None:
    rules, _ = drafted(
        {
            "born": times(NOON - datetime.timedelta(days=10_000)),
            "seen_at": times(NOON - datetime.timedelta(hours=2)),
            "expires": times(NOON + datetime.timedelta(days=300)),
        }
    )
    assert rules["freshness"][0]["column"] == "seen_at"


def test_an_archive_is_asked_for_no_freshness_but_told_how() -> None:
    rules, text = drafted({"at": times(NOON - datetime.timedelta(days=400))})
    assert "freshness" not in rules
    assert "max_age_h" in text


def test_without_times_nothing_is_said_of_freshness() -> None:
    _, text = drafted({"x": [1, 2]})
    assert "fresh" not in text


def test_rows_that_repeat_are_warned_of_unless_most_rows_do() -> None:
    amounts = [0.1 * number for number in range(400)]
    rules, text = drafted({"amount": amounts + amounts[:30], "country": (["DE", "FR"] * 215)})
    assert rules["keys"] == [{"id": "no-row-twice", "columns": ["amount", "country"], "severity": "warning"}]
    assert "30 of 430" in text and "DECIDE" in text
    assert "keys" not in drafted({"amount": amounts, "country": ["DE", "FR"] * 200})[0]
    assert "keys" not in drafted({"flag": [True, False] * 200, "country": ["DE", "FR"] * 200})[0]
