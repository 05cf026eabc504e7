"""Rows that break a quarantine rule are listed; over the limit they are counted, and the list stays small."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine.quarantine import (
    MAX_LISTED_ROWS,
    Quarantine,
    QuarantinedRow,
    excluded_rows,
    quarantine_rows,
    write_quarantine,
)
from headway.data_contracts.rules.checks import Check, compile_checks
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.scans.rows_database import RowsDatabase
from headway.data_contracts.store.documents import ContractReceipt, Link, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from tests.data_contracts.local_rows import listed_rows, of_parquet

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
Written = Callable[[duckdb.DuckDBPyConnection, Quarantine], list[QuarantinedRow]]
CHECKS = compile_checks(CONTRACT)


@pytest.fixture
def database(tmp_path: Path) -> RowsDatabase:
    columns = {
        "path": [f"{number:04}" for number in range(NUM_ROWS)],
        "number": list(range(NUM_ROWS)),
        "share": [0.5] * 1500 + [float("nan"), float("inf"), None] + [0.5] * 1497,
    }
    columns["path"][:2] = ["x", "0003"]
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=1000)
    (tmp_path / "folder").mkdir()
    return RowsDatabase(folder=tmp_path / "folder", rows=of_parquet(tmp_path / "rows.parquet"))


@pytest.fixture
def connection(database: RowsDatabase) -> Iterator[duckdb.DuckDBPyConnection]:
    with database.connect() as connected:
        database.create_views(connected)
        yield connected


def of(*rules: str) -> list[Check]:
    return [check for check in CHECKS if check.quarantine_rule in rules]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The rows that the quarantine file lists."""

    def run(connection: duckdb.DuckDBPyConnection, found: Quarantine) -> list[QuarantinedRow]:
        write_quarantine(connection, found, tmp_path / "left-out.parquet")
        return listed_rows(tmp_path / "left-out.parquet", NUM_ROWS)

    return run


def num_remaining(connection: duckdb.DuckDBPyConnection) -> int:
    row = connection.execute("SELECT count(*) FROM rows").fetchone()
    assert row is not None
    return int(row[0])


def test_nan_infinity_and_null_are_set_aside_by_row(
    database: RowsDatabase, connection: duckdb.DuckDBPyConnection, written: Written
) -> None:
    found = quarantine_rows(connection, database, of("clean-share"), 0.001)
    assert written(connection, found) == [("rows.parquet", row, ("clean-share",)) for row in (1500, 1501, 1502)]
    assert found.num_by_check == {"clean-share.not_null": 1, "clean-share.finite": 2}
    assert found.is_within_limit
    assert num_remaining(connection) == NUM_ROWS - 3


def test_a_row_is_set_aside_once_however_often_it_breaks_a_rule(
    database: RowsDatabase, connection: duckdb.DuckDBPyConnection, written: Written
) -> None:
    found = quarantine_rows(connection, database, of("odd-path"), 1)
    assert written(connection, found) == [("rows.parquet", 0, ("odd-path",))]
    assert found.num_quarantined == 1
    assert num_remaining(connection) == NUM_ROWS - 1


def test_of_two_rows_with_one_path_only_the_one_that_breaks_the_rule_goes(
    database: RowsDatabase, connection: duckdb.DuckDBPyConnection, written: Written
) -> None:
    check = Check(
        rule_id="a",
        description="",
        severity="critical",
        kind="between",
        column="number",
        arguments={"min": 2, "max": None, "type": "int64"},
        quarantine_rule="a",
    )
    assert [row.row for row in written(connection, quarantine_rows(connection, database, [check], 1))] == [0, 1]
    remaining = connection.execute("SELECT number FROM rows WHERE path = '0003'").fetchall()
    assert remaining == [(3,)]


def test_over_the_limit_rows_are_counted_and_a_few_listed(
    database: RowsDatabase, connection: duckdb.DuckDBPyConnection, written: Written
) -> None:
    found = quarantine_rows(connection, database, of("small"), 0.01)
    assert (found.num_quarantined, found.num_allowed) == (2000, 30)
    assert not found.is_within_limit
    assert len(written(connection, found)) == MAX_LISTED_ROWS


def test_a_rule_that_raises_sets_nothing_aside_and_is_reported(
    database: RowsDatabase, connection: duckdb.DuckDBPyConnection
) -> None:
    broken = Check(
        rule_id="gone",
        description="",
        severity="critical",
        kind="not_null",
        column="gone",
        quarantine_rule="gone",
    )
    found = quarantine_rows(connection, database, [broken, *of("clean-share")], 1)
    assert found.raised == {"gone": "BinderException"}
    assert found.num_quarantined == 3


def test_no_rule_sets_nothing_aside(
    database: RowsDatabase, connection: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    found = quarantine_rows(connection, database, [], 0)
    assert found.num_quarantined == 0
    assert write_quarantine(connection, found, tmp_path / "left-out.parquet") is None
    assert not (tmp_path / "left-out.parquet").exists()
    assert num_remaining(connection) == NUM_ROWS


def receipt_of(workspace: Workspace, found: Quarantine, stored: StoredFile | None) -> ContractReceipt:
    return ContractReceipt(
        contract=workspace.publish("contract", b"contract"),
        contract_name="numbers",
        contract_version="1.0.0",
        snapshot=Link(kind="snapshot", sha256="ab" * 32),
        passed=True,
        num_rows=found.num_rows - found.num_quarantined,
        num_quarantined=found.num_quarantined,
        quarantine=stored,
        verdicts=(),
        metrics={},
    )


@pytest.fixture
def several(tmp_path: Path) -> RowsDatabase:
    """Numbers 0 to 2999 in three files, named against the order of their numbers."""
    paths = []
    for part, name in enumerate("cab"):
        numbers = list(range(part * 1000, part * 1000 + 1000))
        columns = {"path": [f"{n:04}" for n in numbers], "number": numbers, "share": [0.5] * 1000}
        paths.append(tmp_path / f"{name}.parquet")
        pq.write_table(pa.table(columns), paths[-1], row_group_size=300)
    (tmp_path / "folder").mkdir()
    return RowsDatabase(folder=tmp_path / "folder", rows=of_parquet(*sorted(paths)))


@pytest.fixture
def several_files(several: RowsDatabase) -> Iterator[duckdb.DuckDBPyConnection]:
    with several.connect() as connected:
        several.create_views(connected)
        yield connected


def publish(
    connection: duckdb.DuckDBPyConnection, found: Quarantine, folder: Path
) -> tuple[Workspace, ContractReceipt]:
    workspace = Workspace.create(str(folder / "workspace"))
    stored = write_quarantine(connection, found, folder / "left-out.parquet")
    if stored is not None:
        assert workspace.publish_file(folder / "left-out.parquet", stored.path) == stored
    return workspace, receipt_of(workspace, found, stored)


def test_the_rows_left_out_are_those_set_aside_by_file_and_number(
    several: RowsDatabase, several_files: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    rule = dataclasses.replace(of("small")[0], arguments={"min": 998, "max": 2002, "type": "int64"})
    workspace, receipt = publish(several_files, quarantine_rows(several_files, several, [rule], 1), tmp_path)
    excluded = excluded_rows(workspace, receipt)
    # Numbers below 998 lie in c, those above 2002 in b; a has none to leave out.
    assert {path: rows.tolist() for path, rows in excluded.items()} == {
        "b.parquet": list(range(3, 1000)),
        "c.parquet": list(range(998)),
    }
    assert {str(rows.dtype) for rows in excluded.values()} == {"int64"}


def test_no_quarantine_leaves_nothing_out(
    several: RowsDatabase, several_files: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    assert excluded_rows(*publish(several_files, quarantine_rows(several_files, several, [], 1), tmp_path)) == {}


def test_a_list_that_is_not_whole_or_not_itself_is_refused(
    several: RowsDatabase, several_files: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    workspace, receipt = publish(several_files, quarantine_rows(several_files, several, of("small"), 0.01), tmp_path)
    with pytest.raises(IntegrityError, match=r"quarantine/.*: lists 1,000 of 2,000 rows"):
        excluded_rows(workspace, receipt)
    assert receipt.quarantine is not None
    path = workspace.local_path(receipt.quarantine.path)
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 50)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(bytes(flipped))
        with pytest.raises(IntegrityError, match=r"its bytes differ"):
            excluded_rows(workspace, receipt)
    path.unlink()
    with pytest.raises(IntegrityError, match=r"the file is gone"):
        excluded_rows(workspace, receipt)


def test_equal_rows_give_equal_bytes_however_they_were_found(
    several: RowsDatabase, several_files: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    found = quarantine_rows(several_files, several, of("small", "odd-path"), 1)
    first = write_quarantine(several_files, found, tmp_path / "one.parquet")
    several_files.execute("CREATE TABLE again AS SELECT * FROM broken ORDER BY hash(rowid)")
    several_files.execute("DELETE FROM broken")
    several_files.execute("INSERT INTO broken SELECT * FROM again")
    assert write_quarantine(several_files, found, tmp_path / "two.parquet") == first
