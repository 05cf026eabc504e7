"""Parquet files as rows: what the footer says, and batches of bounded size in the types that all files share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.schema import check_names
from headway.data_contracts.tables.source_errors import NO_TEXTS, not_parquet, refused_column, unreadable
from headway.data_contracts.types.column_types import UnknownType, type_name

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BATCH_BYTES = 8 << 20
MAX_BATCH_ROWS = 1 << 16
MAX_EXPANSION = 4
"""How much larger than `BATCH_BYTES` a batch may be: footers say the sizes of row groups, not of rows."""
READ_BUFFER_BYTES = 1 << 20
MAX_ROW_BYTES = 256 << 20
"""How long the texts of one row's list may be: a small file may repeat one of them a million times."""
WIDTHS_BYTES = {"INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
"""What a value takes, and a text's place in a dictionary."""


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
        # An error with a number is the file system's; Arrow raises OSError without one for bytes that it cannot read.
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
    # A damaged or forged footer may say so, and no page was read that would show it.
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


def read_batches(path: Path | str, where: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """All rows of a Parquet file in its order, in batches of about `BATCH_BYTES` where rows are of like size.

    The last step counts them: rows of a file whose pages hold fewer come before the error that says so.

    Args:
        columns: those that are read; None: all.

    Raises:
        DataError: a page is damaged, or the file is cut short.
    """
    import pyarrow.parquet as pq

    # Column chunks are read through a buffer rather than whole: a row group may be as large as the file. Extensions are
    # read as what they are stored as, which is their type here.
    options = {"buffer_size": READ_BUFFER_BYTES, "pre_buffer": False, "arrow_extensions_enabled": False}
    with reading(where):
        with pq.ParquetFile(path, **options) as file:
            leaves = [file.schema.column(number) for number in range(len(file.schema))]
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
            batch_rows, num_missing = _batch_rows(file.metadata, leaves, path), file.metadata.num_rows
        # A value that many rows share stands in the file once: as it was written, so it is read.
        with pq.ParquetFile(path, **options, read_dictionary=texts) as file:
            groups = range(file.num_row_groups)
            # Each row group has dictionaries of its own, and Arrow makes no batch of lists over two of them.
            has_lists = any(leaf.max_repetition_level for leaf in leaves if leaf.path in texts)
            wanted = None if columns is None else list(columns)
            for some in [[group] for group in groups] if has_lists else [groups]:
                for batch in file.iter_batches(batch_rows, list(some), columns=wanted, use_threads=False):
                    num_missing -= batch.num_rows
                    yield from _spelled_out(batch, where)
    # A column whose pages end early ends Arrow's batches without a word.
    if num_missing:
        raise not_parquet(where)


def _spelled_out(batch: pa.RecordBatch, where: str) -> Iterator[pa.RecordBatch]:
    """The rows with each value in its place, in slices of `BATCH_BYTES` where that makes many times more of them.

    Raises:
        DataError: one row alone is too large, or a text is not UTF-8.
    """
    import numpy as np
    import pyarrow as pa

    plain = {number: kind for number, field in enumerate(batch.schema) if (kind := _plain(field.type)) is not None}
    if not plain:
        yield batch
        return
    row_bytes = np.zeros(batch.num_rows, np.int64)
    for number in plain:
        column_bytes = _text_bytes(batch.column(number))
        most = int(column_bytes.max(initial=0))
        if most > MAX_ROW_BYTES and not pa.types.is_dictionary(batch.column(number).type):
            reason = f"its texts take {most:,} bytes in one row, and {MAX_ROW_BYTES:,} are the most: write smaller rows"
            raise refused_column(where, batch.schema.names[number], reason)
        row_bytes += column_bytes
    ends = np.cumsum(row_bytes)
    first = 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        fits = batch.num_rows
        if int(ends[-1]) - before > MAX_EXPANSION * BATCH_BYTES:
            fits = max(first + 1, int(np.searchsorted(ends, before + BATCH_BYTES, side="right")))
        # Taken rather than sliced: a cast of lists spells out what lies beyond a slice, too.
        piece = batch.take(pa.array(range(first, fits), pa.int64())) if fits - first < batch.num_rows else batch
        columns = [
            _checked(column.cast(plain[number]), where, piece.schema.names[number]) if number in plain else column
            for number, column in enumerate(piece.columns)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=piece.schema.names)
        first = fits


def _checked(texts: pa.Array, where: str, name: str) -> pa.Array:
    import pyarrow as pa

    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        reason, advice = NO_TEXTS
        raise refused_column(where, name, reason, advice) from error
    return texts


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """The type without a dictionary of texts, or of lists' texts; None where there is none."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_fixed_size_list(kind) and pa.types.is_dictionary(kind.value_type):
        return pa.list_(kind.value_type.value_type, kind.list_size)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_dictionary(kind.value_type):
        return pa.list_(kind.value_type.value_type)
    return None


def _text_bytes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many bytes each row's text, or its list of texts, takes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    is_flat = pa.types.is_dictionary(column.type)
    values = column if is_flat else column.flatten()
    lengths = pc.take(pc.binary_length(values.dictionary).cast(pa.int64()), values.indices)
    value_bytes: np.ndarray[Any, np.dtype[np.int64]] = lengths.fill_null(0).to_numpy(zero_copy_only=False)
    if is_flat:
        return value_bytes
    totals = np.bincount(pc.list_parent_indices(column).to_numpy(), value_bytes, minlength=len(column))
    return totals.astype(np.int64)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in slices of at most `BATCH_BYTES`, or of one row."""
    if not batch.num_rows:
        return
    num_rows = max(1, batch.num_rows * BATCH_BYTES // max(1, batch.nbytes))
    for first in range(0, batch.num_rows, num_rows):
        yield batch.slice(first, num_rows)


def _batch_rows(metadata: Any, leaves: Sequence[Any], path: Path | str) -> int:
    """How many rows take about `BATCH_BYTES`, as far as footers say.

    A row group's size is that of encoded values: of lists' and of wide ones, their number is the better measure.
    """
    widths = [leaf.length or WIDTHS_BYTES.get(leaf.physical_type, 1) for leaf in leaves]
    listed = [number for number, leaf in enumerate(leaves) if leaf.max_repetition_level]
    num_values = _num_values(path) if listed else {}
    values_bytes = sum(widths[number] * num_values.get(number, 0) for number in listed)
    values_bytes += metadata.num_rows * sum(
        width
        for leaf, width in zip(leaves, widths, strict=True)
        if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" and not leaf.max_repetition_level
    )
    # Sizes are the footer's own word too, and may be below 0.
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    size_bytes = max(sum(max(0, group.total_byte_size) for group in groups), values_bytes)
    row_bytes = size_bytes // max(1, metadata.num_rows) + 1
    return int(max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // row_bytes)))


def _num_values(path: Path | str) -> dict[int, int]:
    """Of each leaf, as the footer says.

    Raises:
        pa.ArrowInvalid: the footer is damaged.
    """
    import duckdb
    import pyarrow as pa

    from headway.data_contracts.tables.readable_files import as_pattern

    # Not of Arrow: to ask it for a column chunk whose statistics are damaged aborts the process.
    summed = "SELECT column_id, sum(greatest(num_values, 0)) FROM parquet_metadata(?) GROUP BY column_id"
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            found = connection.execute(summed, [as_pattern(path)]).fetchall()
    except duckdb.Error as error:
        raise pa.ArrowInvalid("the footer is damaged") from error
    return {int(number): int(total) for number, total in found}
