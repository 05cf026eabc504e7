"""Checks that speak of rows in different files at once: evaluated by a scan of the whole set, out of core, every time.

Sorting and grouping spill to disk, so that memory stays flat. Values are grouped by a 64-bit hash first; only rows
whose hash occurs twice are compared themselves, so that a verdict never rests on a hash alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.scans.leakage import PipelineSplit, num_leaked
from headway.data_contracts.scans.rows_database import NAMED_ROWS, ROWS, identifier, literal
from headway.data_contracts.tables.rows_files import FILE_COLUMN, ROW_COLUMN
from headway.data_contracts.types.report_text import count


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRuleResult:
    """What a scan of the whole set found out about one check."""

    passed: bool
    observed: str


def evaluate_set(connection: duckdb.DuckDBPyConnection, check: Check, split: PipelineSplit | None) -> SetRuleResult:
    """Evaluate one of the kinds in `checks.SCANNED`.

    Raises:
        duckdb.Error: it cannot be evaluated.
    """
    if check.kind == "unique":
        return _unique(connection, check)
    if check.kind == "ordering":
        return _ordering(connection, check)
    if check.kind == "balance":
        return _balance(connection, check)
    if check.kind == "leakage":
        found = num_leaked(connection, check, split)
        passed = found.num_rows <= check.num_tolerated(found.num_evaluated)
        rows = count(found.num_evaluated, "row")
        if not found.num_rows:
            return SetRuleResult(
                passed=passed, observed=f"none of {rows} is shared by two of {found.num_splits} splits"
            )
        return SetRuleResult(passed=passed, observed=f"{found.num_rows:,} of {rows} are shared by two splits or more")
    raise AssertionError(check.kind)


def _unique(connection: duckdb.DuckDBPyConnection, check: Check) -> SetRuleResult:
    num_evaluated, num_repeated = count_repeated(connection, check.columns)
    if num_repeated:
        what = "value" if len(check.columns) == 1 else "key"
        return SetRuleResult(
            passed=False, observed=f"{num_repeated:,} of {count(num_evaluated, 'row')} repeat an earlier {what}"
        )
    return SetRuleResult(passed=True, observed=f"all {count(num_evaluated, 'row')} hold")


def count_repeated(connection: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> tuple[int, int]:
    """Rows that have all the columns, and those of them beyond the first of each key."""
    names = ", ".join(identifier(name) for name in columns)
    rows = f"FROM {ROWS} WHERE {' AND '.join(f'{identifier(name)} IS NOT NULL' for name in columns)}"
    hashed = f"hash({names})"
    num_evaluated, num_suspect = _count_beyond_first(connection, rows, hashed)
    if not num_suspect:
        return num_evaluated, 0
    suspects = f"SELECT {hashed} {rows} GROUP BY {hashed} HAVING count(*) > 1"
    _, num_repeated = _count_beyond_first(connection, f"{rows} AND {hashed} IN ({suspects})", names)
    return num_evaluated, num_repeated


def _count_beyond_first(connection: duckdb.DuckDBPyConnection, rows: str, keys: str) -> tuple[int, int]:
    """How many rows there are, and how many of them are not the first with their keys."""
    groups = f"SELECT count(*) AS num_same {rows} GROUP BY {keys}"
    sql = f"SELECT coalesce(sum(num_same), 0), coalesce(sum(num_same - 1), 0) FROM ({groups})"
    row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _ordering(connection: duckdb.DuckDBPyConnection, check: Check) -> SetRuleResult:
    arguments, column = check.arguments, identifier(check.column)
    is_wrong = {(False, False): "<", (True, False): "<=", (False, True): ">", (True, True): ">="}
    relation = is_wrong[arguments["strict"], arguments["descending"]]
    within = f"PARTITION BY {FILE_COLUMN} ORDER BY {ROW_COLUMN}"
    if arguments["within"] == "all":
        within = f"ORDER BY {FILE_COLUMN}, {ROW_COLUMN}"
    pairs = (
        f"SELECT {column} AS here, lag({column}) OVER ({within}) AS before FROM {NAMED_ROWS} WHERE {column} IS NOT NULL"
    )
    row = connection.execute(f"SELECT count(*), count(*) FILTER (here {relation} before) FROM ({pairs})").fetchone()
    assert row is not None
    if row[1]:
        return SetRuleResult(passed=False, observed=f"{row[1]:,} of {count(row[0], 'row')} are out of order")
    return SetRuleResult(passed=True, observed=f"all {count(row[0], 'row')} are in order")


def _balance(connection: duckdb.DuckDBPyConnection, check: Check) -> SetRuleResult:
    arguments, column = check.arguments, identifier(check.column)
    listed = arguments["classes"]
    is_listed = "TRUE" if listed is None else f"{column} IN ({', '.join(literal(name) for name in listed)})"
    counted = f"SELECT count(*) AS num_rows, {is_listed} AS is_listed FROM {ROWS}"
    classes = f"{counted} WHERE {column} IS NOT NULL GROUP BY {column}"
    figures = "count(*), count(*) FILTER (is_listed), min(num_rows), max(num_rows), sum(num_rows)"
    row = connection.execute(f"SELECT {figures} FROM ({classes})").fetchone()
    assert row is not None
    num_classes, num_listed, least, greatest, total = row
    if not total:
        return SetRuleResult(passed=False, observed="no row has a class")
    # A listed class without a row forms no group, yet its share is 0.
    if listed is not None and num_listed < len(set(listed)):
        least = 0
    passed = bool(arguments["min_share"] <= least / total and greatest / total <= arguments["max_share"])
    shares = f"{least / total * 100:.4g} % to {greatest / total * 100:.4g} %"
    return SetRuleResult(passed=passed, observed=f"{num_classes:,} classes hold {shares} of {count(int(total), 'row')}")
