"""A draft is a valid contract, says what to decide, and gives no personal value away."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml

from headway.data_contracts.drafting.contract_draft import draft_contract
from headway.data_contracts.drafting.profile import profile_rows
from headway.data_contracts.rules.contract import Contract, parse_contract
from headway.data_contracts.types.column_types import type_name

NOW_UNIX_S = datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC).timestamp()


def draft(columns: Mapping[str, Any], *, is_text: bool = False) -> str:
    table = pa.table(dict(columns))
    with duckdb.connect() as connection:
        connection.register("rows", table)
        profile = profile_rows(connection, {field.name: type_name(field.type) for field in table.schema})
    return draft_contract(profile, name="orders", source="a table", is_text=is_text, now_unix_s=NOW_UNIX_S)


def contract(columns: Mapping[str, Any], *, is_text: bool = False) -> Contract:
    return parse_contract(draft(columns, is_text=is_text), where="orders.yaml")


def test_types_and_nulls_are_taken_over_exactly() -> None:
    found = contract({"a": pa.array([1, 2], pa.int16()), "b": pa.array([None, 0.5], pa.float32())}).columns
    assert (found["a"].type, found["a"].nullable) == ("int16", False)
    assert (found["b"].type, found["b"].nullable) == ("float", True)


def test_a_range_has_its_margin_and_says_what_was_seen() -> None:
    text = draft({"age": list(range(18, 91)) * 4})
    age = parse_contract(text, where="c.yaml").columns["age"]
    assert (age.min, age.max) == (10, 98)
    assert "18 to 90 were seen" in text


def test_years_are_not_grouped_by_thousands_and_one_length_is_no_range() -> None:
    text = draft({"built": list(range(1890, 2024)) * 3, "area": [1000 * n for n in range(402)]})
    assert "1890 to 2023 were seen" in text and "0 to 401,000 were seen" in text
    rows = [f"{chr(97 + n % 26)} {chr(97 + n // 26)} no shape"[:10] for n in range(402)]
    assert " 10 characters were seen" in draft({"note": rows}) and "10 to 10" not in draft({"note": rows})


def test_few_values_become_a_set_and_machine_made_texts_a_pattern() -> None:
    columns = contract({"country": ["DE", "FR"] * 200, "digest": [f"{n:064x}" for n in range(400)]}).columns
    assert columns["country"].one_of == ("DE", "FR")
    assert columns["digest"].pattern == "[0-9a-f]{64}"
    assert columns["digest"].unique


def test_a_key_gets_no_upper_bound() -> None:
    found = contract({"id": list(range(500))}).columns["id"]
    assert (found.unique, found.min, found.max) == (True, 0, None)


def test_what_is_not_finite_is_allowed_with_a_question_and_without_a_bound() -> None:
    text = draft({"x": [1.0, 2.0, float("nan")] * 100})
    x = parse_contract(text, where="c.yaml").columns["x"]
    assert (x.finite, x.min, x.max) == (False, None, None)
    assert "NaN or infinite. DECIDE" in text


def test_a_suspected_column_is_named_with_the_kind_and_nothing_of_its_values_is_written() -> None:
    text = draft({"contact": ["ada@example.org", "bob@example.org"] * 100, "zip_code": [10115, 80331] * 100})
    assert "PERSONAL DATA? contact may hold e-mail addresses" in text
    assert "PERSONAL DATA? zip_code may hold postal addresses" in text
    for value in ("ada", "example.org", "10115", "80331"):
        assert value not in text
    columns = parse_contract(text, where="c.yaml").columns
    assert all(each.one_of is None and each.min is None and each.max_length is None for each in columns.values())


HOSTILE = [
    "a: b",
    "# no comment",
    "line\nbreak: {type: bool}",
    "'\"",
    "null",
    "1",
    "- x",
    "&a *a",
    "\u202e",
    "é",
    "{",
    "yes",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_column_of_any_name_and_of_any_value_stays_what_it_is(name: str) -> None:
    found = contract({name: [name, "other"] * 100, "email_of_" + name: [1, 2] * 100})
    assert list(found.columns) == [name, "email_of_" + name]
    assert set(found.columns[name].one_of or ()) == {name, "other"}


@pytest.mark.parametrize("values", [[0.1, 1e-7] * 50, [1e22, -1e22] * 50, [2**62, -(2**62)] * 50, [5e-324] * 100])
def test_figures_are_written_so_that_yaml_reads_numbers(values: list[float]) -> None:
    column = contract({"x": values}).columns["x"]
    if column.one_of is None:
        assert column.min is not None and column.min <= min(values)
        assert column.max is not None and column.max >= max(values)


def test_text_files_get_the_rule_that_sets_bytes_of_unknown_meaning_aside() -> None:
    found = contract({"path": ["a", "b"], "is_utf8": [True, False], "text": ["x", None]}, is_text=True)
    assert found.columns["path"].unique
    assert not found.columns["text"].nullable
    assert [(rule.column, rule.action) for rule in found.rules] == [("is_utf8", "quarantine")]


def test_every_guess_is_marked_and_the_file_is_plain_yaml() -> None:
    text = draft({"age": list(range(18, 91)) * 4, "kind": [None, "a", "b", "c"] * 73})
    assert text.count("DECIDE") >= 4
    assert set(yaml.safe_load(text)) == {"name", "version", "description", "rows", "columns", "volume", "drift"}


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029"])
def test_the_name_of_a_folder_stays_a_comment_whatever_ends_a_line_in_it(end: str) -> None:
    table = pa.table({"a": [1, 2, 3]})
    with duckdb.connect() as connection:
        connection.register("rows", table)
        profile = profile_rows(connection, {"a": "int64"})
    text = draft_contract(
        profile, name="orders", source=f"data{end}quarantine_limit_ratio: 1", is_text=False, now_unix_s=NOW_UNIX_S
    )
    assert parse_contract(text, where="c.yaml").quarantine_limit_ratio != 1


def test_whole_numbers_of_more_than_a_few_values_are_a_range_and_no_closed_set() -> None:
    years, grades = [2007 + number % 6 for number in range(400)], [1 + number % 3 for number in range(400)]
    columns = contract({"year": years, "grade": grades}).columns
    assert not columns["year"].one_of and (columns["year"].min, columns["year"].max) == (2006, 2013)
    assert columns["grade"].one_of == (1, 2, 3)


def test_a_column_that_is_unique_by_chance_is_no_rule() -> None:
    text = draft({"weight": list(range(500)), "order_id": list(range(500))})
    columns = parse_contract(text, where="c.yaml").columns
    assert columns["order_id"].unique and not columns["weight"].unique
    assert "say `unique: true` if it tells rows apart" in text


def test_two_columns_that_name_a_row_by_chance_only_advise() -> None:
    rows = range(400)
    by_chance = contract({"began": [n // 20 for n in rows], "ended": [n % 20 + 100 for n in rows]})
    assert [key.severity for key in by_chance.keys] == ["warning"]
    meant = contract({"shop_id": [n // 20 for n in rows], "ended": [n % 20 + 100 for n in rows]})
    assert [key.severity for key in meant.keys] == ["critical"]
