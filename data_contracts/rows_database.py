"""A throw-away DuckDB database over one Parquet file, fenced in: bounded memory, no network, no other file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

MEMORY_LIMIT = "1GB"
NUM_THREADS = 2
ALL_ROWS = "all_rows"
"""The view of every row, with the row's number as `file_row_number`."""
ROWS = "rows"
"""The view of the rows that remain after quarantine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsDatabase:
    """Where the database lies, what it reads, and what it may use.

    Args:
        folder: an existing folder of its own, for the database file and what does not fit into memory.
        table: the Parquet file.
    """

    folder: Path
    table: Path
    memory_limit: str = MEMORY_LIMIT
    num_threads: int = NUM_THREADS

    @property
    def path(self) -> Path:
        return self.folder / "rows.duckdb"

    @property
    def config(self) -> dict[str, str | bool | int | float | list[str]]:
        """What a connection is opened with; all connections to one database must agree."""
        return {
            "memory_limit": self.memory_limit,
            "threads": self.num_threads,
            "temp_directory": str(self.folder / "spill"),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }

    @property
    def settings(self) -> tuple[str, ...]:
        """Statements for a new connection: read every row, and only in these two places."""
        return (
            # Parquet's statistics leave NaN out, and DuckDB skips a row group by them: `WHERE isnan(x)` finds nothing.
            "SET disabled_optimizers = 'filter_pushdown,statistics_propagation'",
            f"SET allowed_paths = [{literal(str(self.table))}]",
            f"SET allowed_directories = [{literal(str(self.folder))}]",
            "SET enable_external_access = false",
        )

    @contextlib.contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        connection = duckdb.connect(str(self.path), config=self.config)
        try:
            for statement in self.settings:
                connection.execute(statement)
            yield connection
        finally:
            connection.close()

    def create_views(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make `all_rows`, the table of quarantined rows (empty), and `rows`."""
        source = f"read_parquet({literal(str(self.table))}, file_row_number = true)"
        connection.execute(f"CREATE VIEW {ALL_ROWS} AS SELECT * FROM {source}")
        connection.execute("CREATE TABLE broken (file_row_number BIGINT, path VARCHAR, rule_id VARCHAR)")
        # No row is named twice here, so that the hash side of the anti-join is as small as can be.
        connection.execute("CREATE VIEW set_aside AS SELECT DISTINCT file_row_number FROM broken")
        connection.execute(
            f"CREATE VIEW {ROWS} AS SELECT * EXCLUDE (file_row_number) FROM {ALL_ROWS} "
            "ANTI JOIN set_aside USING (file_row_number)"
        )


def literal(value: Any) -> str:
    """A SQL literal of a bool, number or string."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE"
    return "'" + str(value).replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
