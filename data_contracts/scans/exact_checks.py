"""Row-level checks as DuckDB SQL: the condition under which a row breaks one. Never a value of the data leaves."""

from __future__ import annotations

import ctypes
from typing import Any

import duckdb

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.pii import holds_pii_sql
from headway.data_contracts.scans.rows_database import identifier, literal
from headway.data_contracts.types.type_families import Family, family, has_zone

CASTS: dict[Family, str] = {"date": "DATE", "time": "TIME", "timestamp": "TIMESTAMP", "decimal": "DECIMAL(38, {})"}
MAX_INTEGER = 1 << 63
LENGTHS = {"string": "length", "binary": "octet_length", "list": "len"}


def breaks_sql(check: Check) -> str:
    """The condition under which a row breaks a row-level check; false or null for a row without a value."""
    column = identifier(check.column)
    if check.kind == "not_null":
        return f"{column} IS NULL"
    return f"NOT ({_holds_sql(check, column)})"


def num_broken_sql(check: Check) -> str:
    """An aggregate: how many rows break a row-level check."""
    if check.kind == "not_null":
        # DuckDB counts values without looking at them, and each aggregate only once.
        return f"count(*) - count({identifier(check.column)})"
    return f"count(*) FILTER ({breaks_sql(check)})"


def num_evaluated_sql(check: Check) -> str:
    """An aggregate: how many rows a check speaks of: all for nulls and the row count, else those with a value."""
    return "count(*)" if check.kind in ("not_null", "num_rows") else f"count({identifier(check.column)})"


def _holds_sql(check: Check, column: str) -> str:
    arguments = check.arguments
    if check.kind == "finite":
        return f"isfinite({column})"
    if check.kind == "between":
        type_name = arguments["type"]
        # DuckDB holds NaN to be above every number.
        not_nan = [f"NOT isnan({column})"] if family(type_name) == "float" else []
        return " AND ".join(_bounds(column, arguments, type_name) + not_nan)
    if check.kind == "one_of":
        return f"{column} IN ({', '.join(_number(value) for value in arguments['values'])})"
    if check.kind == "pattern":
        return f"regexp_full_match({column}, {literal(arguments['pattern'])})"
    if check.kind == "length":
        return " AND ".join(_bounds(f"{LENGTHS[arguments['of']]}({column})", arguments))
    if check.kind == "elements":
        return _elements_sql(column, arguments)
    if check.kind == "pii":
        return f"NOT {holds_pii_sql(column, arguments['pii'])}"
    raise AssertionError(check.kind)


def _bounds(expression: str, arguments: dict[str, Any], type_name: str = "int64") -> list[str]:
    low, high = arguments["min"], arguments["max"]
    found = [] if low is None else [f"{expression} >= {bound_literal(low, type_name)}"]
    return found if high is None else [*found, f"{expression} <= {bound_literal(high, type_name)}"]


def bound_literal(bound: Any, type_name: str) -> str:
    """A bound as a literal that compares exactly with a column of this type."""
    if type_name == "float":
        return literal(nearest_float(bound, type_name))
    if not isinstance(bound, str):
        return _number(bound)
    if has_zone(type_name):
        return f"{literal(bound)}::TIMESTAMPTZ"
    # A plain TIMESTAMP has microseconds, and a bound would lose its last digits.
    if "[ns" in type_name and family(type_name) == "timestamp":
        return f"{literal(bound)}::TIMESTAMP_NS"
    # The decimals are the bound's own: with a fixed scale, it would be rounded.
    scale = len(bound.partition(".")[2])
    return f"{literal(bound)}::{CASTS[family(type_name)].format(scale)}"


def nearest_float(value: Any, type_name: str) -> float:
    """The value of a column of floats that is next to what is written: 0.1 of 32 bits is another than of 64."""
    return ctypes.c_float(float(value)).value if type_name == "float" else float(value)


def _number(value: Any) -> str:
    """A whole number as an integer: beside a double, DuckDB would round a column of integers to doubles."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < MAX_INTEGER
    return literal(int(value) if is_whole else value)


def _elements_sql(column: str, arguments: dict[str, Any]) -> str:
    """An empty list holds; least and greatest element speak for all of them, NaN being the greatest."""
    least, greatest = f"list_min({column})", f"list_max({column})"
    low, high, type_name = arguments["min"], arguments["max"], arguments["type"]
    held = [] if low is None else [f"{least} >= {bound_literal(low, type_name)}"]
    held += [] if high is None else [f"{greatest} <= {bound_literal(high, type_name)}"]
    if arguments["is_float"] and arguments["finite"]:
        held += [f"isfinite({least})", f"isfinite({greatest})"]
    elif arguments["is_float"] and held:
        held.append(f"NOT isnan({greatest})")
    # All-null lists have no least element; whether nulls may be there is asked apart.
    complete = [] if arguments["nullable"] else [f"list_count({column}) = len({column})"]
    extremes = [f"coalesce({' AND '.join(held)}, TRUE)"] if held else []
    return " AND ".join([*complete, *extremes]) or "TRUE"


def one_value(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    # To its end: a connection with an unfinished result takes no function of ours, such as a suite's.
    ((value, *_),) = connection.execute(sql).fetchall()
    return value
