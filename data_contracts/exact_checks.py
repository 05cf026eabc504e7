"""Checks as DuckDB SQL: exact counts of the rows that break them. Out of core, and never a value of the data."""

from __future__ import annotations

from typing import Any

import duckdb

from data_contracts.checks import Check
from data_contracts.rows_database import ROWS, identifier, literal


def breaks_sql(check: Check) -> str:
    """The condition, never null, under which a row breaks a row-level check."""
    column = identifier(check.column)
    if check.kind == "not_null":
        return f"{column} IS NULL"
    return f"({column} IS NOT NULL AND NOT ({_holds_sql(check, column)}))"


def _holds_sql(check: Check, column: str) -> str:
    arguments = check.arguments
    if check.kind == "finite":
        return f"isfinite({column})"
    if check.kind == "between":
        not_nan = [f"NOT isnan({column})"] if arguments["is_float"] else []
        return " AND ".join(_bounds(column, arguments) + not_nan)
    if check.kind == "one_of":
        return f"{column} IN ({', '.join(literal(value) for value in arguments['values'])})"
    if check.kind == "pattern":
        return f"regexp_full_match({column}, {literal(arguments['pattern'])})"
    if check.kind == "length":
        return " AND ".join(_bounds(f"length({column})", arguments))
    raise AssertionError(check.kind)


def _bounds(expression: str, arguments: dict[str, Any]) -> list[str]:
    low, high = arguments["min"], arguments["max"]
    found = [] if low is None else [f"{expression} >= {literal(low)}"]
    return found if high is None else [*found, f"{expression} <= {literal(high)}"]


def num_broken(connection: duckdb.DuckDBPyConnection, check: Check) -> int:
    """Rows that break a row-level check, or rows beyond the first of each value for uniqueness."""
    if check.kind == "unique":
        column = identifier(check.column)
        # Grouping spills to disk; count(DISTINCT) holds every value in memory.
        groups = f"SELECT count(*) AS num_same FROM {ROWS} WHERE {column} IS NOT NULL GROUP BY {column}"
        sql = f"SELECT coalesce(sum(num_same - 1), 0) FROM ({groups})"
    else:
        sql = f"SELECT count(*) FROM {ROWS} WHERE {breaks_sql(check)}"
    return int(one_value(connection, sql))


def num_judged(connection: duckdb.DuckDBPyConnection, check: Check) -> int:
    """Rows that a check speaks of: all for nulls and the row count, else those with a value."""
    is_total = check.kind in ("not_null", "num_rows")
    return int(one_value(connection, f"SELECT count({'*' if is_total else identifier(check.column)}) FROM {ROWS}"))


def aggregate(connection: duckdb.DuckDBPyConnection, check: Check) -> float | None:
    """The mean, standard deviation or sum of a column; None for figures that are values of the data themselves."""
    functions = {"mean": "avg", "stdev": "stddev_samp", "sum": "sum"}
    function = functions.get(check.arguments["statistic"])
    if function is None:
        return None
    value = one_value(connection, f"SELECT {function}({identifier(check.column)}) FROM {ROWS}")
    return None if value is None else float(value)


def one_value(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    assert row is not None, sql
    return row[0]
