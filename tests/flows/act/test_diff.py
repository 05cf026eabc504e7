"""Two versions of a contract are told apart change by change, and the version number must announce what changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.act.conftest import Answer, Headway

COLUMNS = "{id: {type: int64}, age: {type: int16, min: 0, max: 150}}"
NARROWER = "{id: {type: int64}, age: {type: int16, min: 18, max: 150}}"
WIDER = "{id: {type: int64}, age: {type: int16, min: 0, max: 200}}"
RETYPED = "{id: {type: string}, age: {type: int16, min: 0, max: 150}}"
Diff = Callable[..., Answer]


@pytest.fixture
def diff(headway: Headway, tmp_path: Path) -> Diff:
    """`headway contract diff` between version 1.2.3 of the columns above and another version."""

    def ask(columns: str, version: str, *options: str, more: str = "") -> Answer:
        (tmp_path / "old.yaml").write_text(f"name: people\nversion: 1.2.3\ncolumns: {COLUMNS}\n")
        (tmp_path / "new.yaml").write_text(f"name: people\nversion: {version}\ncolumns: {columns}\n{more}")
        return headway("contract", "diff", "old.yaml", "new.yaml", *options)

    return ask


@pytest.mark.parametrize(
    ("columns", "version", "code"),
    [
        (COLUMNS, "1.2.3", 0),
        (NARROWER, "2.0.0", 0),
        (NARROWER, "1.3.0", 4),
        (NARROWER, "1.2.3", 4),
        (RETYPED, "3.0.0", 0),
        (RETYPED, "1.9.9", 4),
        (WIDER, "1.3.0", 0),
        (WIDER, "1.2.4", 4),
        (WIDER, "10.0.0", 0),
        (COLUMNS, "1.2.2", 4),
    ],
)
def test_the_version_must_announce_what_changed(diff: Diff, columns: str, version: str, code: int) -> None:
    assert diff(columns, version).code == code


def test_the_version_that_is_needed_is_told(diff: Diff) -> None:
    answer = diff(NARROWER, "1.3.0")
    assert "call it 2.0.0" in answer.out
    assert "columns.age.min" in answer.out


def test_breaking_changes_come_first(diff: Diff) -> None:
    columns = "{id: {type: int64, nullable: true}, age: {type: int16, min: 18, max: 150}}"
    answer = diff(columns, "2.0.0", more="description: words\n")
    places = [answer.out.index(key) for key in ("columns.age.min", "columns.id.nullable", "· neutral")]
    assert places == sorted(places)


def test_machines_read_json(diff: Diff) -> None:
    found = json.loads(diff(RETYPED, "1.3.0", "--json").out)
    assert (found["announced"], found["least_version"]) == (False, "2.0.0")
    assert found["changes"] == [
        {"effect": "breaking", "where": "columns.id.type", "sentence": "column id is string instead of int64"}
    ]


def test_what_is_no_contract_is_told_by_file_and_line(diff: Diff) -> None:
    answer = diff("{id: {type: int64, nulable: true}}", "2.0.0")
    assert answer.code == 2
    for message in ("new.yaml", "columns.id.nulable", "line 3", "`nullable`"):
        assert message in answer.err


def test_what_a_suite_asks_more_of_takes_a_major_version(diff: Diff, tmp_path: Path) -> None:
    requested = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "age", "max_value": 99}}
    (tmp_path / "suite.json").write_text(json.dumps({"expectations": [requested]}))
    answer = diff(COLUMNS, "1.3.0", more="suite: suite.json\n")
    assert answer.code == 4
    assert "suite.1" in answer.out and "call it 2.0.0" in answer.out
    missing = diff(COLUMNS, "1.3.0", more="suite: missing.json\n")
    assert missing.code == 2 and "missing.json" in missing.err
