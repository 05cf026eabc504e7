"""Rows that break a quarantine rule are listed; over the limit they are counted, and the list stays small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.checks import Check, compile_checks
from data_contracts.contract import parse_contract
from data_contracts.quarantine import MAX_LISTED_ROWS, set_aside
from data_contracts.rows_database import RowsDatabase

NUM_ROWS = 3000
CONTRACT = parse_contract(
    """
name: numbers
version: 1.0.0
columns:
  path: {type: string}
  number: {type: int64}
  share: {type: double}
rules:
  - {id: small, column: number, max: 999, action: quarantine}
  - {id: clean-share, column: share, finite: true, not_null: true, action: quarantine}
  - {id: odd-path, column: path, pattern: "[0-9]+", min_length: 2, action: quarantine}
""",
    where="numbers.yaml",
)
CHECKS = compile_checks(CONTRACT)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    columns = {
        "path": [f"{number:04}" for number in range(NUM_ROWS)],
        "number": list(range(NUM_ROWS)),
        "share": [0.5] * 1500 + [float("nan"), float("inf"), None] + [0.5] * 1497,
    }
    columns["path"][:2] = ["x", "0003"]
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=1000)
    (tmp_path / "folder").mkdir()
    database = RowsDatabase(folder=tmp_path / "folder", table=tmp_path / "rows.parquet")
    with database.connect() as connected:
        database.create_views(connected)
        yield connected


def of(*rules: str) -> list[Check]:
    return [check for check in CHECKS if check.quarantine_rule in rules]


def num_remaining(connection: duckdb.DuckDBPyConnection) -> int:
    row = connection.execute("SELECT count(*) FROM rows").fetchone()
    assert row is not None
    return int(row[0])


def test_nan_infinity_and_null_are_set_aside_by_row(connection: duckdb.DuckDBPyConnection) -> None:
    found = set_aside(connection, of("clean-share"), 0.001)
    assert [row.path for row in found.rows] == ["1500", "1501", "1502"]
    assert found.num_by_check == {"clean-share.not_null": 1, "clean-share.finite": 2}
    assert found.is_within_limit
    assert num_remaining(connection) == NUM_ROWS - 3


def test_a_row_is_set_aside_once_however_often_it_breaks_a_rule(connection: duckdb.DuckDBPyConnection) -> None:
    found = set_aside(connection, of("odd-path"), 1)
    assert [(row.path, row.rule_ids) for row in found.rows] == [("x", ("odd-path",))]
    assert found.num_quarantined == 1
    assert num_remaining(connection) == NUM_ROWS - 1


def test_of_two_rows_with_one_path_only_the_one_that_breaks_the_rule_goes(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    check = Check(
        rule_id="a",
        description="",
        severity="critical",
        kind="between",
        column="number",
        arguments={"min": 2, "max": None, "is_float": False},
        quarantine_rule="a",
    )
    assert [row.path for row in set_aside(connection, [check], 1).rows] == ["0003", "x"]
    remaining = connection.execute("SELECT number FROM rows WHERE path = '0003'").fetchall()
    assert remaining == [(3,)]


def test_over_the_limit_rows_are_counted_and_a_few_listed(connection: duckdb.DuckDBPyConnection) -> None:
    found = set_aside(connection, of("small"), 0.01)
    assert (found.num_quarantined, found.num_allowed) == (2000, 30)
    assert not found.is_within_limit
    assert len(found.rows) == MAX_LISTED_ROWS


def test_a_rule_that_raises_sets_nothing_aside_and_is_reported(connection: duckdb.DuckDBPyConnection) -> None:
    broken = Check(
        rule_id="gone",
        description="",
        severity="critical",
        kind="not_null",
        column="gone",
        quarantine_rule="gone",
    )
    found = set_aside(connection, [broken, *of("clean-share")], 1)
    assert found.raised == {"gone": "BinderException"}
    assert found.num_quarantined == 3


def test_no_rule_sets_nothing_aside(connection: duckdb.DuckDBPyConnection) -> None:
    assert set_aside(connection, [], 0).num_quarantined == 0
    assert num_remaining(connection) == NUM_ROWS
