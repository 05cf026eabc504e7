"""A throw-away DuckDB database over Parquet files, fenced in: bounded memory, no network, no other file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.readable_files import as_pattern, refuse_unreadable
from headway.data_contracts.tables.rows_files import FILE_COLUMN, ROW_COLUMN, RowsFiles, write_empty

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_LIMIT = "1GB"
NUM_THREADS = 2
PLACE_DIGITS = 9
ALL_ROWS = "all_rows"
"""The view of every row, with its name: `_headway_file` (its place in `FILES`) and `_headway_row`."""
NAMED_ROWS = "named_rows"
"""The view of the rows that remain after quarantine, with their names."""
ROWS = "rows"
"""The view of the rows that remain after quarantine, in the columns of the data alone."""
FILES = "files"
"""The table of files: `_headway_file`, `_headway_path`, num_rows, and the columns that folders' names hold."""
BROKEN = "broken"
"""The table of rows quarantined: their name and the rule they break, once for each rule."""
QUARANTINED = "quarantine_rows"
"""The view of rows quarantined, each once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsDatabase:
    """Where the database lies, what it reads, and what it may use.

    Args:
        folder: an existing folder of its own, for the database file and what does not fit into memory.
        rows: the Parquet files.
    """

    folder: Path
    rows: RowsFiles
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
            # By itself, DuckDB would fetch and load an extension as soon as a statement needs one.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }

    @property
    def settings(self) -> tuple[str, ...]:
        """Statements for a new connection: read every row, and only in these two places."""
        return (
            # Parquet's statistics leave NaN out, and DuckDB skips a row group by them: `WHERE isnan(x)` finds nothing.
            "SET disabled_optimizers = 'filter_pushdown,statistics_propagation'",
            f"SET allowed_paths = [{', '.join(literal(str(path)) for path in self.rows.local)}]",
            # DuckDB's fence compares a pattern as it is spelt.
            f"SET allowed_directories = [{literal(str(self.folder))}, {literal(as_pattern(self.folder))}]",
            # Last, for DuckDB refuses to change the lists above once external access is off.
            "SET enable_external_access = false",
        )

    @contextlib.contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """
        Raises:
            DataError: a statement of the body failed over a file that cannot be read.
        """
        connection = duckdb.connect(str(self.path), config=self.config)
        try:
            for statement in self.settings:
                connection.execute(statement)
            yield connection
        # Too little memory says nothing of the files, so they are not searched for damage.
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error:
            refuse_unreadable(self.rows)
            raise
        finally:
            connection.close()

    def create_views(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the tables and views above; nothing is quarantined yet."""
        self._link_files()
        names = self.rows.names()
        connection.register("names", names)
        connection.execute(f"CREATE TABLE {FILES} AS SELECT * FROM names")
        connection.unregister("names")
        every_file = literal(f"{as_pattern(self.folder)}/files/*.parquet")
        connection.execute(f"CREATE VIEW {ALL_ROWS} AS {self._all_rows(every_file)}")
        name = f"{FILE_COLUMN}, {ROW_COLUMN}"
        connection.execute(f"CREATE TABLE {BROKEN} ({FILE_COLUMN} BIGINT, {ROW_COLUMN} BIGINT, rule_id VARCHAR)")
        # No row is named twice here, so that the hash side of the anti-join is as small as can be.
        connection.execute(f"CREATE VIEW {QUARANTINED} AS SELECT DISTINCT {name} FROM {BROKEN}")
        connection.execute(
            f"CREATE VIEW {NAMED_ROWS} AS SELECT * FROM {ALL_ROWS} ANTI JOIN {QUARANTINED} USING ({name})"
        )
        connection.execute(f"CREATE VIEW {ROWS} AS SELECT * EXCLUDE ({name}) FROM {NAMED_ROWS}")

    def keep_all(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Nothing was quarantined: read the rows that remain without looking for those that do not."""
        connection.execute(f"CREATE OR REPLACE VIEW {NAMED_ROWS} AS SELECT * FROM {ALL_ROWS}")

    def select(self, names: Sequence[str]) -> str:
        """The SQL that reads some columns of all rows, whether quarantined or not, without a look at the others."""
        wanted = ", ".join(identifier(name) for name in names)
        if self.rows.is_packed or any(name in self.rows.partitions for name in names):
            return f"SELECT {wanted} FROM {ALL_ROWS}"
        files = literal(f"{as_pattern(self.folder)}/files/*.parquet")
        return f"SELECT {wanted} FROM read_parquet({files}, union_by_name = {literal(self.rows.may_lack)})"

    def rows_of(self, places: Sequence[int], *, is_quarantined: bool) -> str:
        """A subquery of the rows of some files, with their names.

        Args:
            places: places of files that are not packed, in `rows.files`.
            is_quarantined: whether to leave out the rows in `BROKEN`.
        """
        complete = [len(self.rows.local)] if self.rows.may_lack else []
        folder = as_pattern(self.folder / "files")
        named = ", ".join(literal(f"{folder}/{self._link(place).name}") for place in [*places, *complete])
        rows = f"({self._all_rows(f'[{named}]')})"
        if not is_quarantined:
            return rows
        return f"(SELECT * FROM {rows} ANTI JOIN {QUARANTINED} USING ({FILE_COLUMN}, {ROW_COLUMN}))"

    def _link_files(self) -> None:
        """Short names that say the files' places, whatever characters the true names hold."""
        (self.folder / "files").mkdir()
        for place, path in enumerate(self.rows.local):
            self._link(place).symlink_to(path)
        if self.rows.may_lack:
            # A file without rows that has every column, so that none is unknown where only some files are read.
            write_empty(self._link(len(self.rows.local)), self.rows)

    def _link(self, place: int) -> Path:
        return self.folder / "files" / f"{place:0{PLACE_DIGITS}}.parquet"

    def _all_rows(self, files: str) -> str:
        source = f"read_parquet({files}, file_row_number = true"
        if self.rows.is_packed:
            return f"SELECT * RENAME (file_row_number AS {FILE_COLUMN}), 0::BIGINT AS {ROW_COLUMN} FROM {source})"
        # DuckDB sees that a file's name is the same for all its rows, so that this costs nothing by row.
        place = f"CAST(_headway_link[-{PLACE_DIGITS + 8}:-9] AS BIGINT) AS {FILE_COLUMN}"
        named = (
            f"SELECT * EXCLUDE (_headway_link) RENAME (file_row_number AS {ROW_COLUMN}), {place} "
            f"FROM {source}, filename = '_headway_link', union_by_name = {literal(self.rows.may_lack)})"
        )
        if not self.rows.partitions:
            return named
        held = ", ".join(f"{FILES}.{identifier(name)}" for name in self.rows.partitions)
        return f"SELECT named.*, {held} FROM ({named}) AS named JOIN {FILES} USING ({FILE_COLUMN})"


@contextlib.contextmanager
def rows_in_memory(rows: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database of the view `ROWS` alone, over rows that are held in memory."""
    # No query here needs a file, and DuckDB opens one where a name in a query looks like it.
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "threads": NUM_THREADS,
        "enable_external_access": False,
    }
    with duckdb.connect(config=config) as connection:
        connection.register(ROWS, rows)
        yield connection


def out_of_memory(limit: str) -> DataError:
    return DataError(
        f"looking at the rows takes more than {limit} of memory.",
        advice="One value or row may be very large: write rows of some megabytes at most.",
    )


def literal(value: Any) -> str:
    """A SQL literal of a bool, number or string."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    # As text: DuckDB would take a plain `1.5` for a decimal, and has no plain literal for infinity.
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE"
    return "'" + str(value).replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
