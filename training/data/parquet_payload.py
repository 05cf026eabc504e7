"""Parquet shards that are also plain arrays: one required FIXED_LEN_BYTE_ARRAY column a payload, PLAIN, uncompressed,
one version-1 data page a row group, so that a column chunk ends with its rows' bytes and nothing else.

Any Parquet reader opens the file; the loader maps it and gathers rows at recorded offsets. The bytes depend on the
rows and the writer's version alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_contracts.digests import canonical_json
from data_contracts.documents import ColumnChunk, PayloadColumn, RowGroup
from data_contracts.errors import IntegrityError

LAYOUT_KEY = b"headway.columns"
ONE_PAGE_BYTES = 1 << 30
Bytes2D = NDArray[np.uint8]


def column_dtype(column: PayloadColumn) -> np.dtype[Any]:
    """Payload values are little-endian everywhere."""
    return np.dtype(column.dtype).newbyteorder("<")


def width_bytes(column: PayloadColumn) -> int:
    """Bytes of one row."""
    return column_dtype(column).itemsize * math.prod(column.shape)


def payload_of(column: PayloadColumn, values: NDArray[Any]) -> Bytes2D:
    """The column's bytes, shape (rows, width)."""
    if values.shape[1:] != column.shape or values.dtype != np.dtype(column.dtype):
        raise ValueError(f"column {column.name} is {column.dtype}{column.shape}, got {values.dtype}{values.shape[1:]}")
    contiguous = np.ascontiguousarray(values, dtype=column_dtype(column))
    return contiguous.reshape(len(values), -1).view(np.uint8)


def shard_bytes(
    columns: Sequence[PayloadColumn], payloads: Mapping[str, Bytes2D], rows_per_row_group: int
) -> tuple[bytes, tuple[RowGroup, ...]]:
    """A whole shard file, and where its payloads lie; each was compared with the source.

    Raises:
        IntegrityError: the writer laid the file out in another way.
    """
    schema = _schema(columns)
    num_rows = len(payloads[columns[0].name])
    firsts = range(0, num_rows, rows_per_row_group)
    parts = [{name: rows[first : first + rows_per_row_group] for name, rows in payloads.items()} for first in firsts]
    sink = pa.BufferOutputStream()
    with _writer(sink, schema) as writer:
        for part in parts:
            arrays = [_arrow_array(part[column.name]) for column in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=rows_per_row_group)
        writer.add_key_value_metadata({LAYOUT_KEY: _layout(columns)})
    data: bytes = sink.getvalue().to_pybytes()
    return data, _located(data, columns, parts)


def _schema(columns: Sequence[PayloadColumn]) -> Any:
    fields = [pa.field(column.name, pa.binary(width_bytes(column)), nullable=False) for column in columns]
    return pa.schema(fields)


def _layout(columns: Sequence[PayloadColumn]) -> bytes:
    """What the blobs mean, kept in the file for a reader without the manifest."""
    return canonical_json([column.model_dump(mode="json") for column in columns]).strip()


def _writer(sink: Any, schema: Any) -> Any:
    return pq.ParquetWriter(
        sink,
        schema,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        column_encoding=dict.fromkeys(schema.names, "PLAIN"),
        data_page_version="1.0",
        data_page_size=ONE_PAGE_BYTES,
        max_rows_per_page=ONE_PAGE_BYTES,
        write_batch_size=ONE_PAGE_BYTES,
        write_page_checksum=True,
        store_schema=False,
    )


def _arrow_array(rows: Bytes2D) -> Any:
    contiguous = np.ascontiguousarray(rows)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, pa.py_buffer(contiguous)])


def _located(
    data: bytes, columns: Sequence[PayloadColumn], parts: Sequence[Mapping[str, Bytes2D]]
) -> tuple[RowGroup, ...]:
    """Row groups with each payload's offset and CRC-32, read back from the footer and compared with the source."""
    footer = pq.read_metadata(pa.BufferReader(data))
    located = []
    for number, part in enumerate(parts):
        chunks = []
        for index, column in enumerate(columns):
            meta = footer.row_group(number).column(index)
            source = part[column.name].tobytes()
            offset = meta.data_page_offset + meta.total_compressed_size - len(source)
            if data[offset : offset + len(source)] != source:
                raise IntegrityError(
                    f"pyarrow {pa.__version__} laid column {column.name} out in an unknown way.",
                    advice="Install the pyarrow that constraints.txt names.",
                )
            chunks.append(ColumnChunk(column=column.name, offset_bytes=offset, crc32=zlib.crc32(source)))
        located.append(RowGroup(num_rows=len(part[columns[0].name]), chunks=tuple(chunks)))
    return tuple(located)
