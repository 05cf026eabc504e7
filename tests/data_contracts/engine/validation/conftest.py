"""A clean table of events, its contract, and what a receipt says of the two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine.validation import validate
from headway.data_contracts.rules.contract import Contract, parse_contract
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import ContractReceipt, ExpectationVerdict, Snapshot, StoredFile
from headway.data_contracts.tables.rows_files import RowsFiles
from tests.data_contracts.local_rows import of_parquet

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
        excluded = tmp_path / "left-out.parquet"
        return validate(contract, CONTRACT_FILE, snapshot_of(files), files, tmp_path, quarantine_file=excluded)

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
