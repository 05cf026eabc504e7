"""Great Expectations judges on DuckDB out of core, answers in plain Python, and leaves nothing behind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.scans.rows_database import RowsDatabase
from tests.data_contracts.local_rows import of_parquet

COLUMNS = {
    "path": ["a", "b1", "c"],
    "file": ["C:\\a", "C:\\b", "it's 100%\\"],
    "number": [1, 2, 3],
    "share": [0.0, 0.5, float("nan")],
}


@pytest.fixture
def database(tmp_path: Path) -> RowsDatabase:
    pq.write_table(pa.table(COLUMNS), tmp_path / "rows.parquet")
    (tmp_path / "folder").mkdir()
    database = RowsDatabase(folder=tmp_path / "folder", rows=of_parquet(tmp_path / "rows.parquet"))
    with database.connect() as connection:
        database.create_views(connection)
    return database


def suite_of(*expectations: tuple[str, dict[str, Any]]) -> Any:
    import great_expectations as gx

    made = [
        getattr(gx.expectations, name)(**arguments, meta={"rule_id": str(number)})
        for number, (name, arguments) in enumerate(expectations)
    ]
    return gx.ExpectationSuite(name="suite", expectations=made)


def judge_one(database: RowsDatabase, name: str, **arguments: Any) -> Any:
    return judge_all(database, (name, arguments))["0"]


def judge_all(database: RowsDatabase, *expectations: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    from headway.data_contracts.engine.duckdb_engine import evaluate_suite

    with database.connect() as connection:
        return dict(evaluate_suite(suite_of(*expectations), connection, columns=database.rows.columns))


@pytest.mark.parametrize(
    ("name", "arguments", "passed"),
    [
        ("ExpectColumnValuesToMatchRegex", {"column": "path", "regex": "[a-z]"}, True),
        ("ExpectColumnValuesToMatchRegex", {"column": "path", "regex": r"\A(?:[a-z])\z"}, False),
        ("ExpectColumnValuesToMatchRegex", {"column": "path", "regex": r"^\w\d?$"}, True),
        ("ExpectColumnValuesToNotMatchRegex", {"column": "path", "regex": r"\d"}, False),
        ("ExpectColumnValuesToMatchRegex", {"column": "file", "regex": r"\\"}, True),
        ("ExpectColumnValuesToBeInSet", {"column": "file", "value_set": COLUMNS["file"]}, True),
        ("ExpectColumnValuesToNotBeInSet", {"column": "file", "value_set": ["it's 100%\\"]}, False),
        ("ExpectColumnMedianToBeBetween", {"column": "number", "min_value": 2, "max_value": 2}, True),
        ("ExpectColumnMeanToBeBetween", {"column": "share", "max_value": 1}, False),
        ("ExpectColumnValuesToBeBetween", {"column": "share", "max_value": 1}, False),
        ("ExpectColumnMaxToBeBetween", {"column": "number", "max_value": 2}, False),
        ("ExpectTableColumnsToMatchSet", {"column_set": list(COLUMNS), "exact_match": True}, True),
        ("ExpectTableColumnsToMatchSet", {"column_set": ["path"], "exact_match": True}, False),
    ],
)
def test_an_expectation_is_judged_rightly(
    database: RowsDatabase, name: str, arguments: dict[str, Any], passed: bool
) -> None:
    outcome = judge_one(database, name, **arguments)
    assert outcome.passed is passed
    assert not outcome.raised


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ExpectColumnValuesToBeBetween", {"column": "nowhere", "min_value": 1}),
        ("ExpectColumnValuesToBeBetween", {"column": "path", "min_value": 1}),
        ("ExpectColumnValuesToMatchRegex", {"column": "path", "regex": "(?=lookahead)"}),
        ("ExpectColumnMeanToBeBetween", {"column": "path", "min_value": 1}),
    ],
)
def test_an_expectation_that_raises_has_failed_and_spoils_no_other(
    database: RowsDatabase, name: str, arguments: dict[str, Any]
) -> None:
    sound = ("ExpectTableRowCountToBeBetween", {"min_value": 3, "max_value": 3})
    outcomes = judge_all(database, (name, arguments), sound)
    assert not outcomes["0"].passed
    assert outcomes["0"].raised
    assert outcomes["1"].passed


def test_outcomes_are_plain_booleans_that_json_can_say(database: RowsDatabase) -> None:
    outcome = judge_one(database, "ExpectColumnMinToBeBetween", column="share", min_value=0)
    assert json.dumps(outcome.passed) == "true"


def test_the_database_is_closed_and_the_process_is_as_it_was(
    database: RowsDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SF_PARTNER", raising=False)
    level = logging.getLogger("great_expectations").level
    judge_one(database, "ExpectColumnMinToBeBetween", column="number", min_value=0)
    assert "SF_PARTNER" not in os.environ
    assert logging.getLogger("great_expectations").level == level
    duckdb.connect(str(database.path), read_only=True).close()  # refused while any other connection is open


def test_two_threads_may_judge_at_once(tmp_path: Path) -> None:
    databases = []
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        pq.write_table(pa.table({"number": list(range(number + 1))}), folder / "rows.parquet")
        databases.append(RowsDatabase(folder=folder, rows=of_parquet(folder / "rows.parquet")))
        with databases[-1].connect() as connection:
            databases[-1].create_views(connection)

    def is_right(number: int) -> bool:
        bounds = {"min_value": number + 1, "max_value": number + 1}
        return bool(judge_one(databases[number], "ExpectTableRowCountToBeBetween", **bounds).passed)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(is_right, range(4)))


@pytest.mark.process
def test_reading_a_contract_or_a_source_imports_no_great_expectations() -> None:
    code = (
        "import sys, headway.data_contracts.rules.contract, headway.data_contracts.sources.reading, "
        "headway.data_contracts.rules.checks, headway.data_contracts.engine.suite, "
        "headway.data_contracts.engine.validation, headway.data_contracts.report.validation_report\n"
        "print([name for name in ('great_expectations', 'pandas', 'pyarrow', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
