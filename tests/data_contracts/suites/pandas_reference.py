"""Great Expectations on its own pandas engine: what a given suite's verdicts are held against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from headway.data_contracts.engine.validation import ValidationContext, validate
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.scans.rows_database import RowsDatabase
from headway.data_contracts.scans.tallies import Tallies
from headway.data_contracts.store.documents import ExpectationVerdict, Snapshot, StoredFile
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.suites.evaluator import SuiteEvaluator
from headway.data_contracts.suites.literals import UnsupportedExpectation
from headway.data_contracts.suites.parsing import parse_suite
from headway.data_contracts.suites.results import ExpectationResult
from tests.data_contracts.local_rows import of_parquet

CONTRACT = "name: given\nversion: 1.0.0\nextra_columns: true\nrows: {min: 0}\ncolumns:\n  any: {type: bool}\n"
Expectation = dict[str, Any]


@dataclass(frozen=True)
class Reference:
    """Great Expectations' answer to one expectation; `raised`: it has none."""

    passed: bool
    raised: bool = False
    num_unexpected: int | None = None


def judged_by_pandas(table: pa.Table, expectations: list[Expectation]) -> list[Reference]:
    """Verdicts on the table as `pandas.read_parquet` gives it, timestamps in nanoseconds as Great Expectations' own
    branch for them asks."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    frame = table.to_pandas()
    for name in frame.columns:
        if frame[name].dtype.kind == "M":
            frame[name] = frame[name].dt.as_unit("ns")
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    asset = context.data_sources.add_pandas("frames").add_dataframe_asset("frame")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    return [_reference(batch, each) for each in expectations]


def _reference(batch: Any, expectation: Expectation) -> Reference:
    import great_expectations.expectations as gxe

    try:
        made = getattr(gxe, expectation["type"].title().replace("_", ""))(**expectation["kwargs"])
        result = batch.validate(made, result_format="BASIC")
    except Exception:
        return Reference(passed=False, raised=True)
    info = result.exception_info or {}
    records = [info, *(value for value in info.values() if isinstance(value, dict))]
    raised = any(record.get("raised_exception") for record in records)
    return Reference(bool(result.success) and not raised, raised, (result.result or {}).get("unexpected_count"))


def judged_by_us(table: pa.Table, expectations: list[Expectation], folder: Path) -> list[ExpectationVerdict]:
    """The verdicts in the receipt: the whole way from the suite's JSON to the rows of two row groups and back."""
    folder.mkdir(parents=True, exist_ok=True)
    table = table.append_column("any", pa.array([True] * table.num_rows, pa.bool_()))
    pq.write_table(table, folder / "rows.parquet", row_group_size=max(1, table.num_rows // 2))
    rows = of_parquet(folder / "rows.parquet")
    snapshot = Snapshot(format="parquet", columns=dict(rows.columns), num_rows=table.num_rows, files=rows.files)
    stored = StoredFile(path="contract.yaml", size_bytes=1, sha256="ab" * 32)
    suite = parse_suite(json.dumps({"expectations": expectations}).encode(), where="given.json")
    receipt = validate(
        parse_contract(CONTRACT, where="given.yaml"),
        stored,
        snapshot,
        rows,
        folder,
        quarantine_file=folder / "left-out.parquet",
        surroundings=ValidationContext(suite=suite),
    )
    return [each for each in receipt.verdicts if each.rule_id.startswith("suite.")]


def answered_by_us(table: pa.Table, expectations: list[Expectation], folder: Path) -> list[ExpectationResult | None]:
    """The answers of the judge alone, each expectation in a suite of its own; None: it is refused. Whatever DuckDB
    raises is a failure."""
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "rows.parquet", row_group_size=max(1, table.num_rows // 2))
    rows = of_parquet(folder / "rows.parquet")
    checks = [_check(each, rows.columns, number) for number, each in enumerate(expectations)]
    database = RowsDatabase(folder=folder, rows=rows)
    with database.connect() as connection:
        database.create_views(connection)
        tallies = Tallies(connection, database, is_quarantined=False)
        judge = SuiteEvaluator(connection, tallies, [check for check in checks if check is not None], rows.columns)
        tallies.total(judge.figures)
        return [None if check is None else _answer(judge, check) for check in checks]


def _answer(judge: SuiteEvaluator, check: Check) -> ExpectationResult | None:
    try:
        return judge.answer(check)
    except UnsupportedExpectation:
        return None
    except duckdb.Error:
        return ExpectationResult(passed=False)


def _check(expectation: Expectation, types: Mapping[str, str], number: int) -> Check | None:
    try:
        (check,) = parse_suite(json.dumps({"expectations": [expectation]}).encode(), where="given.json", types=types)
    except ConfigError:
        return None
    return replace(check, rule_id=f"suite.{number}")
