"""Leakage: rows that two splits share, by key, by content, or by most of their words. Whole set, out of core.

A row's split comes from the contract (a column, or SQL), else from the pipeline, as it will shard: by the file's path,
by the row's number in its file, or by a key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.scans.exact_checks import one_value
from headway.data_contracts.scans.near_duplicates import similar_rows_sql
from headway.data_contracts.scans.rows_database import FILES, NAMED_ROWS, identifier
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.tables.rows_files import FILE_COLUMN, PATH_COLUMN, ROW_COLUMN
from headway.data_contracts.types.type_families import family

SPLIT_FUNCTION, ROW_FUNCTION = "headway_split", "headway_split_of_row"


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSplit:
    """How the pipeline itself will split the rows."""

    of_text: Callable[[str], str | None]
    """The split of a key, such as a path: a pure function of the text; None where it is in none."""
    of_rows: Callable[..., Any] | None = None
    """From Arrow arrays of paths, row numbers and, if there is a `key`, its values, to the splits' names; None where
    the path alone decides."""
    key: str | None = None
    """The column that decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeakageCount:
    num_evaluated: int
    """Rows of some split: one that is left out leaks into nothing."""
    num_splits: int
    num_rows: int
    """Rows whose values a row of another split has as well."""


def register_split(connection: duckdb.DuckDBPyConnection, split: PipelineSplit) -> None:
    """Make `headway_split(text)` known to SQL. It is asked once for each distinct text of a batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def split_all(keys: Any) -> Any:
        encoded = pc.dictionary_encode(keys)
        whole = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        names = pa.array(
            [None if key is None else split.of_text(key) for key in whole.dictionary.to_pylist()], pa.string()
        )
        return names.take(whole.indices)

    connection.create_function(SPLIT_FUNCTION, split_all, ["VARCHAR"], "VARCHAR", type="arrow")  # type: ignore[call-overload]


def num_leaked(connection: duckdb.DuckDBPyConnection, check: Check, split: PipelineSplit | None) -> LeakageCount:
    """Count what is shared.

    Raises:
        duckdb.Error: the SQL of the split, or a column, cannot be read.
        ConfigError: nothing says which split a row is in.
    """
    values = [
        _comparable(identifier(name), kind, check.arguments["compare"])
        for name, kind in zip(check.columns, check.arguments["types"], strict=True)
    ]
    complete = " AND ".join(f"{identifier(name)} IS NOT NULL" for name in check.columns)
    # Under a name that no column has: of two that are called alike, the data's would say which split a row is in.
    rows = f"SELECT *, {_split_sql(connection, check, split)} AS _headway_split_name FROM {_rows_with_paths()}"
    row = connection.execute(
        f"SELECT count(_headway_split_name), count(DISTINCT _headway_split_name) FROM ({rows}) WHERE {complete}"
    ).fetchone()
    assert row is not None
    if check.arguments["compare"] == "similar":
        of_row = f"_headway_split_name AS split, {identifier(check.columns[0])} AS text"
        text = f"SELECT {of_row} FROM ({rows}) WHERE {complete}"
        num_rows = int(one_value(connection, similar_rows_sql(connection, text, check.arguments["min_similarity"])))
    else:
        num_rows = _num_equal(connection, f"FROM ({rows}) WHERE {complete}", values)
    return LeakageCount(num_evaluated=row[0], num_splits=row[1], num_rows=num_rows)


def _num_equal(connection: duckdb.DuckDBPyConnection, source: str, values: list[str]) -> int:
    """By hash first, then the suspects themselves."""
    # A hash takes 8 bytes however long the values are; equal hashes alone would not prove equal values.
    hashed = f"hash({', '.join(values)})"
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE suspects AS SELECT hashed FROM "
        f"(SELECT {hashed} AS hashed, _headway_split_name AS split {source}) "
        "GROUP BY hashed HAVING min(split) <> max(split)"
    )
    if not one_value(connection, "SELECT count(*) FROM suspects"):
        return 0
    keyed = ", ".join(f"{value} AS value_{place}" for place, value in enumerate(values))
    names = ", ".join(f"value_{place}" for place in range(len(values)))
    groups = (
        "SELECT count(split) AS num_rows FROM "
        f"(SELECT {keyed}, _headway_split_name AS split {source} AND {hashed} IN (SELECT hashed FROM suspects)) "
        f"GROUP BY {names} HAVING min(split) <> max(split)"
    )
    return int(one_value(connection, f"SELECT coalesce(sum(num_rows), 0) FROM ({groups})"))


def _rows_with_paths() -> str:
    columns = f"{FILE_COLUMN}, {PATH_COLUMN}, _headway_split_of_path"
    paths = f"SELECT {columns} FROM {FILES} JOIN path_splits USING ({FILE_COLUMN})"
    return f"{NAMED_ROWS} JOIN ({paths}) USING ({FILE_COLUMN})"


def _split_sql(connection: duckdb.DuckDBPyConnection, check: Check, split: PipelineSplit | None) -> str:
    splits: Any = check.arguments["splits"]
    _tabulate_paths(connection, split)
    if splits is None:
        if split is None:
            raise ConfigError(
                "nothing says which split a row is in.", where="leakage", advice="Give `splits:` in the contract."
            )
        return "_headway_split_of_path" if split.of_rows is None else _of_row_sql(connection, split)
    return f"{identifier(splits.column)}::VARCHAR" if splits.column else f"({splits.sql})::VARCHAR"


def _of_row_sql(connection: duckdb.DuckDBPyConnection, split: PipelineSplit) -> str:
    """A call that gives a row's split, whatever decides it; its function is made known to SQL."""
    arguments = {PATH_COLUMN: "VARCHAR", ROW_COLUMN: "BIGINT"}
    if split.key is not None:
        described = f"DESCRIBE SELECT {identifier(split.key)} FROM {NAMED_ROWS}"
        ((_, kind, *_rest),) = connection.execute(described).fetchall()
        arguments[identifier(split.key)] = str(kind)
    # Several rules share the connection, and DuckDB refuses a second function of the same name.
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.remove_function(ROW_FUNCTION)
    types = list(arguments.values())
    connection.create_function(ROW_FUNCTION, split.of_rows, types, "VARCHAR", type="arrow")  # type: ignore[call-overload]
    return f"{ROW_FUNCTION}({', '.join(arguments)})"


def _tabulate_paths(connection: duckdb.DuckDBPyConnection, split: PipelineSplit | None) -> None:
    """The split of each file's path, found out once a file and not once a row."""
    import pyarrow as pa

    rows = connection.execute(f"SELECT {FILE_COLUMN}, {PATH_COLUMN} FROM {FILES} ORDER BY ALL").fetchall()
    splits = [None if split is None else split.of_text(path) for _, path in rows]
    table = pa.table({
        FILE_COLUMN: pa.array([place for place, _ in rows], pa.int64()),
        "_headway_split_of_path": pa.array(splits, pa.string()),
    })  # fmt: skip
    connection.register("split_table", table)
    connection.execute("CREATE OR REPLACE TEMP TABLE path_splits AS SELECT * FROM split_table")
    connection.unregister("split_table")


def _comparable(column: str, type_name: str, compare: str) -> str:
    """The value that rows are compared by."""
    kind = family(type_name)
    if compare == "exact":
        return column
    if kind == "string":
        return f"trim(regexp_replace(lower({column}), '[^\\p{{L}}\\p{{N}}]+', ' ', 'g'))"
    return f"format('{{:.6g}}', {column}::DOUBLE)" if kind in ("float", "decimal") else column
