"""Validation: hold a table of rows against a contract, and write the receipt.

A pure function of contract, snapshot and table: the receipt of equal inputs has equal bytes. Great Expectations judges
first, by yes and no; exact counts are taken for what failed, and for what it cannot judge on DuckDB. Whatever
could not be judged has failed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from data_contracts.checks import Check, compile_checks
from data_contracts.contract import Contract
from data_contracts.documents import ContractReceipt, Snapshot, StoredFile
from data_contracts.errors import DataError
from data_contracts.exact_checks import aggregate, num_broken, num_judged, one_value
from data_contracts.quarantine import Quarantine, set_aside
from data_contracts.rows_database import ALL_ROWS, ROWS, RowsDatabase, identifier
from data_contracts.verdicts import Evidence, is_accepted, quarantine_verdict, snapshot_verdict, verdict_of

if TYPE_CHECKING:
    from data_contracts.duckdb_engine import Outcome

Schema = dict[str, str]
"""Column name to Arrow type, as the file's footer says."""
COUNTED_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
"""Types whose sum is exact in any order, so that it may stand in a receipt."""


def validate(
    contract: Contract, contract_file: StoredFile, snapshot: Snapshot, table: Path, scratch: Path
) -> ContractReceipt:
    """Judge every expectation of the contract, and set aside the rows its quarantine rules name.

    Args:
        contract_file: the contract's own text in the workspace; the receipt names it.
        table: the snapshot's rows as a Parquet file.
        scratch: a local folder for what does not fit into memory; nothing stays there.

    Returns:
        The receipt, `passed` or not. The caller decides what a failure means.

    Raises:
        DataError: the table is no Parquet file.
    """
    checks = compile_checks(contract)
    schema = _read_schema(table)
    with tempfile.TemporaryDirectory(prefix="validate-", dir=scratch) as folder:
        database = RowsDatabase(folder=Path(folder), table=table.resolve())
        with database.connect() as connection:
            database.create_views(connection)
            num_different = _num_different(connection, snapshot)
            quarantining = [check for check in checks if check.quarantine_rule]
            quarantine = set_aside(connection, quarantining, contract.quarantine_limit_ratio)
        outcomes = _run_expectations(contract.name, checks, database)
        with database.connect() as connection:
            evidence = [_evidence(connection, check, outcomes.get(check.rule_id), schema) for check in checks]
            metrics = _metrics(connection, schema, quarantine, snapshot)
    verdicts = (
        snapshot_verdict(num_different, len(snapshot.files)),
        quarantine_verdict(quarantine, contract.quarantine_limit_ratio),
        *(verdict_of(check, found, quarantine) for check, found in zip(checks, evidence, strict=True)),
    )
    return ContractReceipt(
        contract=contract_file,
        contract_name=contract.name,
        contract_version=contract.version,
        snapshot=snapshot.link,
        passed=is_accepted(verdicts),
        num_rows=quarantine.num_rows - quarantine.num_quarantined,
        verdicts=verdicts,
        quarantined=quarantine.rows,
        metrics=metrics,
    )


def _read_schema(table: Path) -> Schema:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return {field.name: str(field.type) for field in pq.read_schema(table)}
    except (OSError, pa.ArrowException) as error:
        raise DataError("the table of rows is not a readable Parquet file.", where=str(table)) from error


def _num_different(connection: duckdb.DuckDBPyConnection, snapshot: Snapshot) -> int | None:
    """Files of the snapshot that are not in the table, plus rows that are not in the snapshot."""
    expected = {(file.path, file.size_bytes, file.sha256) for file in snapshot.files}
    try:
        rows = connection.execute(f"SELECT path, size_bytes, sha256 FROM {ALL_ROWS}").fetchall()
    except duckdb.Error:
        return None
    return len(expected ^ set(rows)) + len(rows) - len(set(rows))


def _run_expectations(name: str, checks: Sequence[Check], database: RowsDatabase) -> dict[str, Outcome]:
    from data_contracts.duckdb_engine import Outcome, judge
    from data_contracts.suite import build_suite, expectation_checks

    asked = expectation_checks(checks)
    try:
        outcomes = judge(build_suite(name, asked), database)
    except Exception:  # whatever it was, nothing was judged
        outcomes = {}
    unanswered = Outcome(passed=False, raised=True)
    return {check.rule_id: outcomes.get(check.rule_id, unanswered) for check in asked}


def _evidence(connection: duckdb.DuckDBPyConnection, check: Check, outcome: Outcome | None, schema: Schema) -> Evidence:
    try:
        counted = _count(connection, check, outcome)
        error = ""
    except duckdb.Error as raised:
        counted, error = (0, None, None), type(raised).__name__
    if not error and outcome is not None and outcome.raised:
        error = "Great Expectations raised an error"
    return Evidence(
        expectation_passed=None if outcome is None else outcome.passed,
        raised=error,
        num_judged=counted[0],
        num_broken=counted[1],
        aggregate=counted[2],
        actual_type=schema.get(check.column),
        actual_columns=tuple(schema),
    )


def _count(
    connection: duckdb.DuckDBPyConnection, check: Check, outcome: Outcome | None
) -> tuple[int, int | None, float | None]:
    """Rows judged, rows that break it (counted only where it decides or explains), and a statistic's figure."""
    if check.kind in ("type", "columns"):
        return 0, None, None
    if check.kind == "statistic":
        return 0, None, aggregate(connection, check)
    judged = num_judged(connection, check)
    failed = outcome is not None and not outcome.passed
    is_counted = check.needs_sql or (check.is_row_level and (failed or check.max_failed_ratio > 0))
    return judged, num_broken(connection, check) if is_counted else None, None


def _metrics(
    connection: duckdb.DuckDBPyConnection, schema: Schema, quarantine: Quarantine, snapshot: Snapshot
) -> dict[str, float]:
    """Figures to watch over time: rows, bytes, and the sum of every column whose sum is exact."""
    found: dict[str, float] = {
        "num_rows": quarantine.num_rows - quarantine.num_quarantined,
        "num_quarantined": quarantine.num_quarantined,
        "snapshot_bytes": snapshot.size_bytes,
    }
    for name, arrow_type in schema.items():
        if arrow_type in COUNTED_TYPES:
            total = one_value(connection, f"SELECT coalesce(sum({identifier(name)}), 0) FROM {ROWS}")
            found[f"{name}.sum"] = float(total)
    return found
