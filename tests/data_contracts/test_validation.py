"""Planted faults are found, clean data raise no alarm, and what cannot be judged has failed."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts import contract as contract_module
from data_contracts import validation
from data_contracts.contract import Contract, load_contract, parse_contract
from data_contracts.digest_cache import DigestCache
from data_contracts.digests import sha256_bytes
from data_contracts.documents import ContractReceipt, ExpectationVerdict, Snapshot, StoredFile
from data_contracts.quarantine import listed_rows
from data_contracts.rows_database import RowsDatabase
from data_contracts.rows_files import RowsFiles, of_parquet
from data_contracts.sources import SourceSpec, rows_files, take_snapshot
from data_contracts.validation import validate

SHIPPED = Path(contract_module.__file__).parent / "contracts" / "python-sources.yaml"
CONTRACT_FILE = StoredFile(path="contracts/events.yaml", size_bytes=1, sha256="ab" * 32)
NUM_ROWS = 3000
MIDDLE = 1501
"""Faults are planted in the middle of the second row group."""
SECRET = "s3cr3t-value"
TEXT = """
name: events
version: 1.0.0
rows: {min: 2900, max: 3000}
quarantine_limit_ratio: 0.001
columns:
  path: {type: string, unique: true, pattern: 'part/[0-9]+'}
  sha256: {type: string}
  size_bytes: {type: int64, min: 1, max: 100}
  score: {type: double, min: 0}
  ratio: {type: double, nullable: true, finite: false, max: 1}
  label: {type: string, in: [good, bad], max_length: 4}
  is_clean: {type: bool}
rules:
  - {id: clean, column: is_clean, in: [true], action: quarantine}
  - {id: mostly-good, column: label, in: [good], max_failed_ratio: 0.5, severity: warning}
statistics:
  - {id: mean-score, column: score, statistic: mean, min: 0.4, max: 0.6}
  - {id: median-score, column: score, statistic: median, min: 0.4, max: 0.6, severity: info}
"""
CONTRACT = parse_contract(TEXT, where="events.yaml")
Columns = dict[str, list[Any]]
Validate = Callable[..., ContractReceipt]


def is_utf8(path: Path) -> bool:
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def clean_columns() -> Columns:
    paths = [f"part/{number:05}" for number in range(NUM_ROWS)]
    return {
        "path": paths,
        "sha256": [sha256_bytes(path.encode()) for path in paths],
        "size_bytes": [1 + number % 100 for number in range(NUM_ROWS)],
        "score": [number / (NUM_ROWS - 1) for number in range(NUM_ROWS)],
        "ratio": [None if number % 7 == 0 else 0.5 for number in range(NUM_ROWS)],
        "label": ["bad" if number % 4 == 0 else "good" for number in range(NUM_ROWS)],
        "is_clean": [True] * NUM_ROWS,
    }


@pytest.fixture
def judge(tmp_path: Path) -> Validate:
    """Validate columns; the snapshot is made to fit them."""

    def run(
        columns: Columns | None = None, contract: Contract = CONTRACT, table: pa.Table | None = None
    ) -> ContractReceipt:
        rows = pa.table(columns or clean_columns()) if table is None else table
        pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=1000)
        files = of_parquet(tmp_path / "rows.parquet")
        left_out = tmp_path / "left-out.parquet"
        return validate(contract, CONTRACT_FILE, snapshot_of(files), files, tmp_path, quarantine_file=left_out)

    return run


def snapshot_of(rows: RowsFiles) -> Snapshot:
    num_rows = sum(file.num_rows for file in rows.files)
    return Snapshot(format="parquet", columns=dict(rows.columns), num_rows=num_rows, files=rows.files)


def verdict(receipt: ContractReceipt, rule_id: str) -> ExpectationVerdict:
    return next(each for each in receipt.verdicts if each.rule_id == rule_id)


def failures(receipt: ContractReceipt) -> dict[str, str]:
    return {each.rule_id: each.observed for each in receipt.verdicts if not each.passed}


def plant(column: str, value: Any, row: int = MIDDLE) -> Columns:
    columns = clean_columns()
    columns[column][row] = value
    return columns


def test_clean_data_raise_no_alarm(judge: Validate) -> None:
    receipt = judge()
    assert failures(receipt) == {}
    assert receipt.passed
    assert receipt.num_rows == NUM_ROWS
    assert (receipt.quarantine, receipt.num_quarantined) == (None, 0)


ONE_ROW = "1 of 3,000 rows break it"


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (
            {"path": "part/x", "size_bytes": 101, "score": None, "label": "ugly", "ratio": 1.5},
            {
                "path.pattern": ONE_ROW,
                "size_bytes.between": ONE_ROW,
                "score.not_null": ONE_ROW,
                "label.one_of": ONE_ROW,
                "ratio.between": "1 of 2,571 rows break it",
            },
        ),
        (
            {"path": "part/123\nx", "size_bytes": 0, "score": -0.001, "label": "good!", "ratio": math.nan},
            {
                "path.pattern": ONE_ROW,
                "size_bytes.between": ONE_ROW,
                "score.between": ONE_ROW,
                "label.one_of": ONE_ROW,
                "label.length": ONE_ROW,
                "ratio.between": "1 of 2,571 rows break it",
            },
        ),
        (
            {"size_bytes": None, "score": math.inf, "label": None, "ratio": math.inf},
            {
                "size_bytes.not_null": ONE_ROW,
                "score.finite": ONE_ROW,
                "mean-score": "inf",
                "label.not_null": ONE_ROW,
                "ratio.between": "1 of 2,571 rows break it",
            },
        ),
        ({"size_bytes": 1, "score": 0.0, "ratio": -math.inf}, {}),
    ],
)
def test_every_fault_planted_in_a_row_is_found_and_counted_and_nothing_else(
    judge: Validate, faults: dict[str, Any], expected: dict[str, str]
) -> None:
    columns = clean_columns()
    for column, value in faults.items():
        columns[column][MIDDLE] = value
    receipt = judge(columns)
    found = failures(receipt)
    assert found == expected
    assert receipt.passed is not bool(expected)


def test_a_pattern_is_re2_from_the_contract_to_the_verdict(judge: Validate) -> None:
    contract = parse_contract(
        TEXT.replace("max_length: 4", r"pattern: '\p{L}+', severity: warning"), where="events.yaml"
    )
    assert failures(judge(contract=contract)) == {}
    assert failures(judge(plant("label", "g00d"), contract))["label.pattern"] == ONE_ROW


def test_nan_is_not_taken_for_a_number_above_the_bound(judge: Validate) -> None:
    found = failures(judge(plant("score", math.nan)))
    assert found["score.finite"] == "1 of 3,000 rows break it"
    assert found["score.between"] == "1 of 3,000 rows break it"
    assert found["mean-score"] == "nan"


def test_a_value_that_occurs_twice_far_apart_is_found(judge: Validate) -> None:
    columns = clean_columns()
    columns["path"][2999] = columns["path"][0]
    assert failures(judge(columns))["path.unique"] == "1 of 3,000 rows repeat an earlier value"


def test_a_mean_outside_its_bounds_is_found(judge: Validate) -> None:
    columns = clean_columns()
    columns["score"] = [0.7] * NUM_ROWS
    receipt = judge(columns)
    assert failures(receipt) == {"mean-score": "0.7", "median-score": "outside the bounds"}


def test_too_few_rows_are_refused(judge: Validate) -> None:
    columns = {name: values[:100] for name, values in clean_columns().items()}
    assert failures(judge(columns))["rows"] == "100 rows"


def test_a_table_without_rows_is_refused_without_a_crash(judge: Validate) -> None:
    rows = pa.table(clean_columns()).slice(0, 0)
    receipt = judge(table=rows)
    assert not receipt.passed
    assert failures(receipt)["rows"] == "0 rows"


def test_a_warning_refuses_nothing_but_is_said(judge: Validate) -> None:
    columns = clean_columns()
    columns["label"] = ["bad"] * NUM_ROWS
    receipt = judge(columns)
    assert failures(receipt) == {"mostly-good": "3,000 of 3,000 rows break it"}
    assert receipt.passed


def test_a_tolerated_share_passes_and_is_counted(judge: Validate) -> None:
    assert verdict(judge(), "mostly-good").observed == "750 of 3,000 rows break it"


def test_a_missing_column_fails_everything_that_speaks_of_it_and_is_told_as_missing(judge: Validate) -> None:
    columns = clean_columns()
    del columns["score"]
    receipt = judge(columns)
    assert not receipt.passed
    found = failures(receipt)
    assert found["columns"] == "missing: score"
    assert found["score.type"] == "the column is missing"
    speaks_of_it = {each.rule_id for each in judge().verdicts if "score" in each.rule_id}
    assert speaks_of_it <= set(found)
    assert {found[rule_id] for rule_id in speaks_of_it} == {"the column is missing"}


def test_an_extra_column_is_refused_unless_allowed(judge: Validate) -> None:
    columns = clean_columns() | {"extra": list(range(NUM_ROWS))}
    assert failures(judge(columns)) == {"columns": "not in the contract: extra"}
    allowing = CONTRACT.model_copy(update={"extra_columns": True})
    assert failures(judge(columns, allowing)) == {}


@pytest.mark.parametrize("wrong", [pa.int32(), pa.float64(), pa.string()])
def test_a_column_of_another_type_is_refused_and_explains_what_could_not_be_judged(
    judge: Validate, wrong: pa.DataType
) -> None:
    rows = pa.table(clean_columns())
    position = rows.schema.get_field_index("size_bytes")
    receipt = judge(table=rows.set_column(position, "size_bytes", rows["size_bytes"].cast(wrong)))
    assert not receipt.passed
    found = failures(receipt)
    assert found["size_bytes.type"] == str(wrong)
    assert not [said for said in found.values() if "could not be judged" in said]
    if wrong == pa.string():
        assert found["size_bytes.between"] == "it is string, not int64"


def test_a_few_bad_rows_are_set_aside_and_the_rest_is_judged(judge: Validate, tmp_path: Path) -> None:
    columns = clean_columns()
    for row in (1, MIDDLE, 2999):
        columns["is_clean"][row] = False
        columns["score"][row] = -1.0
    receipt = judge(columns)
    assert failures(receipt) == {}
    assert receipt.passed
    assert receipt.num_rows == NUM_ROWS - 3
    assert receipt.num_quarantined == 3
    assert listed_rows(tmp_path / "left-out.parquet", 10) == [
        ("rows.parquet", 1, ("clean",)),
        ("rows.parquet", MIDDLE, ("clean",)),
        ("rows.parquet", 2999, ("clean",)),
    ]
    assert verdict(receipt, "clean").observed == "3 of 3,000 rows set aside"
    assert receipt.metrics["num_quarantined"] == 3


def test_a_row_that_breaks_two_rules_is_listed_once_with_both(judge: Validate, tmp_path: Path) -> None:
    rules = "rules:\n  - {id: tiny, column: size_bytes, min: 2, max: 100, action: quarantine}\n"
    contract = parse_contract(TEXT.replace("rules:\n", rules).replace("0.001", "1"), where="events.yaml")
    columns = plant("is_clean", False, row=100)
    receipt = judge(columns, contract)
    rules_of = {row.row: row.rule_ids for row in listed_rows(tmp_path / "left-out.parquet", NUM_ROWS)}
    assert rules_of[100] == ("clean", "tiny")
    assert len(rules_of) == receipt.num_quarantined == receipt.metrics["num_quarantined"] == NUM_ROWS // 100


def test_too_large_a_quarantine_refuses_the_data(judge: Validate) -> None:
    columns = clean_columns()
    for row in range(4):
        columns["is_clean"][row] = False
    receipt = judge(columns)
    assert failures(receipt) == {"quarantine": "4 of 3,000 rows, 3 allowed"}
    assert not receipt.passed


def test_a_quarantine_rule_that_cannot_be_judged_fails_and_sets_nothing_aside(judge: Validate) -> None:
    rows = pa.table(clean_columns())
    wrong = pa.array([SECRET] * NUM_ROWS)
    receipt = judge(table=rows.set_column(rows.schema.get_field_index("is_clean"), "is_clean", wrong))
    assert not receipt.passed
    assert failures(receipt)["clean"] == "it is string, not bool"
    assert (receipt.quarantine, receipt.num_quarantined) == (None, 0)


def test_a_quarantine_rule_that_cannot_be_judged_refuses_whatever_its_severity(judge: Validate) -> None:
    """The rows that it would have set aside are not known, so that they would be trained on."""
    lenient = TEXT.replace("is_clean: {type: bool}", "is_clean: {type: bool, severity: warning}")
    lenient = lenient.replace("action: quarantine}", "action: quarantine, severity: warning}")
    rows = pa.table(clean_columns())
    wrong = pa.array([SECRET] * NUM_ROWS)
    table = rows.set_column(rows.schema.get_field_index("is_clean"), "is_clean", wrong)
    receipt = judge(table=table, contract=parse_contract(lenient, where="events.yaml"))
    assert [each.rule_id for each in receipt.verdicts if not each.passed and each.severity == "critical"] == ["clean"]
    assert not receipt.passed


@pytest.mark.parametrize(("change", "observed"), [({"sha256": "cd" * 32}, "2 differ"), ({"num_rows": 7}, "3 differ")])
def test_rows_that_are_not_the_snapshots_files_are_refused(
    tmp_path: Path, change: dict[str, Any], observed: str
) -> None:
    pq.write_table(pa.table(clean_columns()), tmp_path / "rows.parquet")
    rows = of_parquet(tmp_path / "rows.parquet")
    snapshot = snapshot_of(rows)
    other = dataclasses.replace(rows, files=(rows.files[0].model_copy(update=change),))
    left_out = tmp_path / "left-out.parquet"
    receipt = validate(CONTRACT, CONTRACT_FILE, snapshot, other, tmp_path, quarantine_file=left_out)
    assert failures(receipt) == {"snapshot": observed}
    assert not receipt.passed


def test_an_expectation_that_raises_has_failed(judge: Validate, monkeypatch: pytest.MonkeyPatch) -> None:
    from data_contracts import duckdb_engine

    def broken(*_: Any, **__: Any) -> Any:
        raise duckdb.Error(f"conversion of {SECRET}")

    monkeypatch.setattr(duckdb_engine.sa.func, "regexp_matches", broken, raising=False)
    receipt = judge()
    assert failures(receipt) == {"path.pattern": "could not be judged (Great Expectations raised an error)"}
    assert not receipt.passed
    assert SECRET.encode() not in receipt.to_bytes()


def test_when_great_expectations_falls_over_everything_it_judges_has_failed(
    judge: Validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from data_contracts import duckdb_engine

    def broken(*_: Any) -> Any:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(duckdb_engine, "judge", broken)
    receipt = judge()
    assert not receipt.passed
    assert {"columns", "rows", "size_bytes.between", "mean-score"} <= set(failures(receipt))


def test_the_same_inputs_give_the_same_bytes(judge: Validate) -> None:
    assert judge(plant("label", "ugly")).to_bytes() == judge(plant("label", "ugly")).to_bytes()


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
    from data_contracts.checks import compile_checks
    from data_contracts.set_scans import judge_set

    num_rows = 1_500_000
    pq.write_table(pa.table({"path": pa.array(range(num_rows)).cast(pa.string())}), tmp_path / "rows.parquet")
    (tmp_path / "folder").mkdir()
    contract = parse_contract("name: a\nversion: 1.0.0\ncolumns: {path: {type: string, unique: true}}", where="a.yaml")
    unique = next(check for check in compile_checks(contract) if check.kind == "unique")
    database = RowsDatabase(folder=tmp_path / "folder", rows=of_parquet(tmp_path / "rows.parquet"), memory_limit="60MB")
    with database.connect() as connection:
        database.create_views(connection)
        assert judge_set(connection, unique, None).passed


def test_what_a_little_memory_cannot_judge_is_judged_with_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [random.Random(row).randbytes(10_000).hex() for row in range(2000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "rows.parquet")
    rows = of_parquet(tmp_path / "rows.parquet")
    contract = parse_contract(
        "name: a\nversion: 1.0.0\ncolumns: {text: {type: string, unique: true, min_length: 9}}", where="a.yaml"
    )

    def judged(*memory_limits: str) -> ContractReceipt:
        monkeypatch.setattr(validation, "MEMORY_LIMITS", memory_limits)
        return validate(
            contract, CONTRACT_FILE, snapshot_of(rows), rows, tmp_path, quarantine_file=tmp_path / "left-out.parquet"
        )

    little = judged("16MB")
    assert not little.passed and "could not be judged (OutOfMemoryException)" in failures(little).values()
    assert judged("16MB", "1GB") == judged("1GB")
    assert judged("1GB", "never asked for").passed


def test_the_standard_library_keeps_its_contract(tmp_path: Path) -> None:
    spec = SourceSpec(uri="python:stdlib", include=("**/*.py",), exclude=("site-packages/**", "**/__pycache__/**"))
    snapshot = take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "cache.json"))
    left_out = tmp_path / "left-out.parquet"
    with rows_files(spec, snapshot, tmp_path, base=tmp_path) as rows:
        receipt = validate(load_contract(SHIPPED), CONTRACT_FILE, snapshot, rows, tmp_path, quarantine_file=left_out)
    assert failures(receipt) == {}
    assert receipt.passed
    no_text = {file.path for file in snapshot.files if not is_utf8(Path(os.__file__).parent / file.path)}
    listed = {row.path for row in listed_rows(left_out, 1000)} if left_out.exists() else set()
    assert no_text <= listed, "a distribution may leave out the library's own tests, where these files are"
    assert receipt.num_rows == len(snapshot.files) - receipt.num_quarantined
