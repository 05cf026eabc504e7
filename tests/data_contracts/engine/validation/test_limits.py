"""What cannot be judged has failed; little memory is enough, and neither a value nor a file gets out."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine import validation
from headway.data_contracts.engine.evidence import MAX_BROKEN_ROWS
from headway.data_contracts.engine.validation import validate
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.scans.rows_database import RowsDatabase
from headway.data_contracts.store.documents import ContractReceipt, RowName
from tests.data_contracts.engine.validation.conftest import (
    CONTRACT_FILE,
    MIDDLE,
    NUM_ROWS,
    SECRET,
    Validate,
    clean_columns,
    failures,
    plant,
    snapshot_of,
    verdict,
)
from tests.data_contracts.local_rows import of_parquet


def test_an_expectation_that_raises_has_failed(judge: Validate, monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.data_contracts.engine import duckdb_engine

    def broken(*_: Any, **__: Any) -> Any:
        raise duckdb.Error(f"conversion of {SECRET}")

    monkeypatch.setattr(duckdb_engine.sa.func, "regexp_matches", broken, raising=False)
    receipt = judge()
    assert failures(receipt) == {"path.pattern": "could not be evaluated (Great Expectations raised an error)"}
    assert not receipt.passed
    assert SECRET.encode() not in receipt.to_bytes()


def test_when_great_expectations_falls_over_everything_it_judges_has_failed(
    judge: Validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.data_contracts.engine import duckdb_engine

    def broken(*_: Any) -> Any:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(duckdb_engine, "evaluate_suite", broken)
    receipt = judge()
    assert not receipt.passed
    assert {"columns", "rows", "size_bytes.between", "mean-score"} <= set(failures(receipt))


def test_a_broken_rule_names_the_first_rows_that_break_it_and_none_of_their_values(judge: Validate) -> None:
    columns = clean_columns()
    for number in range(MIDDLE, NUM_ROWS):
        columns["size_bytes"][number] = 987654321
    broken = verdict(judge(columns), "size_bytes.between").broken_rows
    assert broken == tuple(RowName(path="rows.parquet", row=MIDDLE + place) for place in range(MAX_BROKEN_ROWS))


def test_rules_that_hold_name_no_rows_though_some_break_them(judge: Validate) -> None:
    assert [each.rule_id for each in judge().verdicts if each.broken_rows] == []


def test_neither_receipt_nor_log_shows_a_value_of_the_data(judge: Validate, caplog: pytest.LogCaptureFixture) -> None:
    columns = plant("label", SECRET)
    columns["size_bytes"][MIDDLE] = 987654321
    caplog.set_level("DEBUG")
    receipt = judge(columns)
    shown = receipt.model_copy(update={"metrics": {}}).to_bytes().decode() + caplog.text
    assert not receipt.passed
    assert SECRET not in shown
    assert "987654" not in shown


def test_nothing_is_left_in_the_scratch_folder(judge: Validate, tmp_path: Path) -> None:
    judge()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_the_database_reaches_its_table_and_its_folder_and_nothing_else(tmp_path: Path) -> None:
    folder, table, other = tmp_path / "it's here", tmp_path / "rows.parquet", tmp_path / "other.parquet"
    folder.mkdir()
    pq.write_table(pa.table(clean_columns()), table)
    shutil.copy(table, other)
    with RowsDatabase(folder=folder, rows=of_parquet(table)).connect() as connection:
        assert connection.execute(f"SELECT count(*) FROM '{table}'").fetchone() == (NUM_ROWS,)
        for forbidden in (f"SELECT * FROM '{other}'", f"COPY (SELECT 1) TO '{other}'", "INSTALL httpfs"):
            with pytest.raises(duckdb.Error):
                connection.execute(forbidden)


def test_a_small_memory_limit_is_enough_for_a_large_table(tmp_path: Path) -> None:
    from headway.data_contracts.rules.checks import compile_checks
    from headway.data_contracts.scans.set_scans import evaluate_set

    num_rows = 1_500_000
    pq.write_table(pa.table({"path": pa.array(range(num_rows)).cast(pa.string())}), tmp_path / "rows.parquet")
    (tmp_path / "folder").mkdir()
    contract = parse_contract("name: a\nversion: 1.0.0\ncolumns: {path: {type: string, unique: true}}", where="a.yaml")
    unique = next(check for check in compile_checks(contract) if check.kind == "unique")
    database = RowsDatabase(folder=tmp_path / "folder", rows=of_parquet(tmp_path / "rows.parquet"), memory_limit="60MB")
    with database.connect() as connection:
        database.create_views(connection)
        assert evaluate_set(connection, unique, None).passed


@pytest.mark.process
def test_what_a_little_memory_cannot_judge_is_judged_with_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [random.Random(row).randbytes(10_000).hex() for row in range(2000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "rows.parquet")
    rows = of_parquet(tmp_path / "rows.parquet")
    contract = parse_contract(
        "name: a\nversion: 1.0.0\ncolumns: {text: {type: string, unique: true, min_length: 9}}", where="a.yaml"
    )

    def evaluated(*memory_limits: str) -> ContractReceipt:
        monkeypatch.setattr(validation, "MEMORY_LIMITS", memory_limits)
        return validate(
            contract, CONTRACT_FILE, snapshot_of(rows), rows, tmp_path, quarantine_file=tmp_path / "left-out.parquet"
        )

    little = evaluated("16MB")
    assert not little.passed and "could not be evaluated (OutOfMemoryException)" in failures(little).values()
    assert evaluated("16MB", "1GB") == evaluated("1GB")
    assert evaluated("1GB", "never asked for").passed
