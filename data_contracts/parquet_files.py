"""Parquet files as rows: what the footer says, and batches of bounded size in the types that all files share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data_contracts.column_types import UnknownType, type_name
from data_contracts.source_errors import not_parquet, refused_column, unreadable
from data_contracts.table_schema import check_names

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 8 << 20
MAX_BATCH_ROWS = 1 << 16
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
    except (OSError, pa.ArrowException, UnicodeDecodeError, MemoryError, OverflowError) as error:
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
    with reading(where), pq.ParquetFile(stream, buffer_size=READ_BUFFER_BYTES, pre_buffer=False) as file:
        yield from file.iter_batches(batch_size=_batch_rows(file.metadata), use_threads=False)


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
