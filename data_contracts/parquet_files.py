"""Parquet files as rows: what the footer says, and batches of bounded size in the types that all files share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data_contracts.column_types import UnknownType, type_name
from data_contracts.errors import DataError
from data_contracts.source_errors import not_parquet, refused_column, unreadable
from data_contracts.table_schema import check_names

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 8 << 20
MAX_BATCH_ROWS = 1 << 16
MOST_TIMES = 4
"""How much larger than `BATCH_BYTES` a batch may be: footers say the sizes of row groups, not of rows."""
READ_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    num_rows: int
    columns: dict[str, str]


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what Arrow and the file system raise into errors that name the file."""
    import pyarrow as pa

    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise unreadable(where, error) from error
    except MemoryError as error:  # Arrow's own, too
        raise DataError(
            "this machine has no memory for a part of the file: what it says of its rows may be a trap.",
            where=where,
            advice="Write it again with smaller row groups, or leave it out by the source's patterns.",
        ) from error
    except (OSError, pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(where, error) from error
        raise not_parquet(where) from error


def read_footer(stream: Any, where: str) -> Footer:
    """Rows and columns of a Parquet file; no data page is read.

    Args:
        stream: a path or an open binary file.

    Raises:
        DataError: not Parquet, or a column that rows cannot have.
    """
    import pyarrow.parquet as pq

    with reading(where), pq.ParquetFile(stream) as file:
        num_rows, schema = file.metadata.num_rows, file.schema_arrow
        _ = schema.names  # are decoded only when somebody asks
    if num_rows < 0:
        raise not_parquet(where)
    return Footer(num_rows=num_rows, columns=columns_of(schema, where))


def columns_of(schema: pa.Schema, where: str) -> dict[str, str]:
    """Names and types of a file's columns.

    Raises:
        DataError: a name or type that rows cannot have.
    """
    check_names(where, schema.names)
    found = {}
    for field in schema:
        try:
            found[field.name] = type_name(field.type)
        except UnknownType as error:
            raise refused_column(where, field.name, str(error)) from error
    return found


def read_batches(stream: Any, where: str) -> Iterator[pa.RecordBatch]:
    """All rows of a Parquet file in its order, in batches of about `BATCH_BYTES` where rows are of like size.

    Raises:
        DataError: a page is damaged, or the file is cut short.
    """
    import pyarrow.parquet as pq

    # Column chunks are read through a buffer rather than whole: a row group may be as large as the file.
    buffered = {"buffer_size": READ_BUFFER_BYTES, "pre_buffer": False}
    with reading(where):
        with pq.ParquetFile(stream, **buffered) as file:
            texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
            batch_rows = _batch_rows(file.metadata)
        # A value that many rows share stands in the file once: as it was written, so it is read.
        with pq.ParquetFile(stream, **buffered, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=batch_rows, use_threads=False):
                yield from _spelled_out(batch)


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return any(
        is_kind(kind)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _spelled_out(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows with each value in its place, in slices of `BATCH_BYTES` where that makes many times more of them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    shared = [number for number, field in enumerate(batch.schema) if pa.types.is_dictionary(field.type)]
    if not shared:
        yield batch
        return
    row_bytes = np.zeros(batch.num_rows, np.int64)
    for number in shared:
        column = batch.column(number)
        lengths = pc.take(pc.binary_length(column.dictionary).cast(pa.int64()), column.indices)
        row_bytes += lengths.fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(row_bytes)
    first = 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        fits = batch.num_rows
        if int(ends[-1]) - before > MOST_TIMES * BATCH_BYTES:
            fits = max(first + 1, int(np.searchsorted(ends, before + BATCH_BYTES, side="right")))
        piece = batch.slice(first, fits - first)
        columns = [
            column.cast(column.type.value_type) if number in shared else column
            for number, column in enumerate(piece.columns)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=piece.schema.names)
        first = fits


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in slices of at most `BATCH_BYTES`, or of one row."""
    if not batch.num_rows:
        return
    num_rows = max(1, batch.num_rows * BATCH_BYTES // max(1, batch.nbytes))
    for first in range(0, batch.num_rows, num_rows):
        yield batch.slice(first, num_rows)


def _batch_rows(metadata: Any) -> int:
    sizes = (max(0, metadata.row_group(number).total_byte_size) for number in range(metadata.num_row_groups))
    row_bytes = sum(sizes) // max(1, metadata.num_rows) + 1
    return int(max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // row_bytes)))
