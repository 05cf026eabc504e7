"""Which Parquet file DuckDB cannot read, and why: looked for once a statement over all files has failed."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.rows_files import RowsFiles
from headway.data_contracts.tables.source_errors import NO_TEXTS

REASONS = (
    ("encrypt", "is encrypted, and no key can be given", "Write it without encryption."),
    ("invalid string encoding", *NO_TEXTS),
    (
        "encoding",
        "is written in an encoding that the contract engine cannot read",
        "Write it plain or with a dictionary.",
    ),
)
"""What DuckDB's own words hold, which may quote the data; ours for it; and what to do."""


def refuse_unreadable(rows: RowsFiles) -> None:
    """Read every file by itself, each column where one fails.

    Raises:
        DataError: names the first file that cannot be read, and the column.
    """
    with duckdb.connect(config={"memory_limit": "1GB", "threads": 1}) as connection:
        for file, path in zip(rows.files, rows.local, strict=False):
            error = _failure(connection, path, "whole")
            if error is None:
                continue
            where = str(path) if rows.is_packed else file.path
            for column in rows.columns:
                if column not in rows.partitions and (failed := _failure(connection, path, f"whole.{_quoted(column)}")):
                    raise _refused(where, f"column `{column}`", failed)
            raise _refused(where, "it", error)


def _failure(connection: duckdb.DuckDBPyConnection, path: Path, request: str) -> str | None:
    """What DuckDB says; None where all is read."""
    try:
        # A hash needs every value, while a count would be answered by the footer alone.
        connection.execute(f"SELECT max(hash({request})) FROM read_parquet({_literal(as_pattern(path))}) AS whole")
        connection.fetchall()
    except duckdb.OutOfMemoryException:
        # Too little memory is no fault of the file.
        return None
    except duckdb.Error as error:
        return str(error)
    return None


def _refused(where: str, what: str, message: str) -> DataError:
    for words, reason, advice in REASONS:
        if words in message.lower():
            return DataError(f"{what} {reason}.", where=where, advice=f"{advice} Or exclude it in `source.exclude`.")
    return DataError(
        f"{what} cannot be read: the file is damaged, or written as no reader expects.",
        where=where,
        advice="Write it again, or exclude it in `source.exclude`.",
    )


def as_pattern(path: Path | str) -> str:
    """A glob that matches this path alone."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
