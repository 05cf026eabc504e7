"""Rows of Parquet files on this machine, as a snapshot's; and those that a quarantine lists."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from headway.data_contracts.engine.quarantine import QuarantinedRow
from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.documents import SourceFile
from headway.data_contracts.tables.parquet_files import read_footer
from headway.data_contracts.tables.rows_files import RowsFiles
from headway.data_contracts.tables.schema import agreed_columns


def of_parquet(*paths: Path) -> RowsFiles:
    """Parquet files on this machine, each called by its bare name.

    Raises:
        DataError: one is not readable Parquet, or has other columns than the first.
    """
    footers = [read_footer(path, str(path)) for path in paths]
    return RowsFiles(
        columns=agreed_columns(((str(p), footer.columns) for p, footer in zip(paths, footers, strict=True)), ()),
        files=tuple(_file(path, footer.num_rows) for path, footer in zip(paths, footers, strict=True)),
        local=tuple(path.resolve() for path in paths),
    )


def _file(path: Path, num_rows: int) -> SourceFile:
    return SourceFile(path=path.name, size_bytes=path.stat().st_size, sha256=sha256_file(path), num_rows=num_rows)


def listed_rows(table: Path, limit: int) -> list[QuarantinedRow]:
    """The first rows of a quarantine file."""
    with pq.ParquetFile(table) as file:
        batch = next(file.iter_batches(batch_size=limit), None)
    rows = [] if batch is None else batch.to_pylist()
    return [QuarantinedRow(row["path"], row["row"], tuple(row["rule_ids"])) for row in rows]
