"""The rows of a snapshot as local Parquet files, and how each row is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headway.data_contracts.store.documents import SourceFile
from headway.data_contracts.types.column_types import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

FILE_COLUMN = "_headway_file"
"""The column of a row's file: its place in the snapshot's files, from 0."""
ROW_COLUMN = "_headway_row"
"""The column of a row's number in its file, from 0."""
PATH_COLUMN = "_headway_path"


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsFiles:
    """What a `RowsDatabase` reads.

    Args:
        columns: every column's type by name, partition columns included.
        files: the snapshot's files, in its order.
        local: their Parquet files, one for each of `files`; a single one with a row for each of `files` if `is_packed`.
        partitions: the columns that folders' names hold, as texts, one for each of `files`.
        may_lack: whether a file may lack a column, which is null there.
        unparsable: rows that cannot be read as their columns' types, for each of `files`; empty where there are none.
    """

    columns: Mapping[str, str]
    files: tuple[SourceFile, ...]
    local: tuple[Path, ...]
    is_packed: bool = False
    partitions: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    may_lack: bool = False
    unparsable: tuple[tuple[int, ...], ...] = ()

    def names(self) -> pa.Table:
        """A row for each file: its place, path and number of rows, and the columns its folders hold."""
        import pyarrow as pa

        found = {
            FILE_COLUMN: pa.array(range(len(self.files)), pa.int64()),
            PATH_COLUMN: pa.array([file.path for file in self.files], pa.string()),
            "num_rows": pa.array([file.num_rows for file in self.files], pa.int64()),
        }
        for name, texts in self.partitions.items():
            found[name] = pa.array(texts, pa.string()).cast(arrow_type(self.columns[name]))
        return pa.table(found)


def write_empty(target: Path, rows: RowsFiles) -> None:
    """Write a Parquet file without rows that has every column that files hold."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    held = {name: kind for name, kind in rows.columns.items() if name not in rows.partitions}
    pq.write_table(pa.schema([(name, arrow_type(kind)) for name, kind in held.items()]).empty_table(), target)
