"""Parquet shards that are also plain arrays: one required FIXED_LEN_BYTE_ARRAY column a payload, PLAIN, one version-1
data page a row group. In an uncompressed ("hot") shard a page is its rows' bytes and nothing else, and starts at a
multiple of a row's bytes: the file is an array of rows, and a row of 4 KB never crosses a page of memory.

Any Parquet reader opens the file; the loader maps a hot one and takes rows at recorded offsets. It is written here
and not by a library, so that a hot shard's bytes depend on its rows alone, and each row is copied once. Pages of
required values have no levels, so Parquet's own page checksum is the payload's CRC-32 where nothing is compressed.

Source: the Apache Parquet format, `parquet.thrift`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import ColumnChunk, PayloadColumn, RowGroup
from headway.training.config.shards import Codec
from headway.training.data.shards.thrift_compact import (
    BINARY,
    I32,
    STRUCT,
    I32Value,
    I64Value,
    ListValue,
    StructValue,
    Value,
    encoded,
)

LAYOUT_KEY = b"headway.columns"
CREATED_BY = b"headway payload writer version 2"
MAGIC = b"PAR1"
MAX_ALIGNED_BYTES = 64 << 10
ZSTD_LEVEL = 1
FIXED_LEN_BYTE_ARRAY, REQUIRED, DATA_PAGE, PLAIN, RLE = 7, 0, 0, 0, 3
CODECS: Mapping[Codec, int] = {"none": 0, "zstd": 6, "lz4": 7}
"""Numbers in Parquet's `CompressionCodec`; `lz4` is its LZ4_RAW."""

Bytes2D = NDArray[np.uint8]
Gather = Callable[[int, int], Mapping[str, Bytes2D]]


class Sink(Protocol):
    def write(self, data: bytes | memoryview) -> int: ...


def column_dtype(column: PayloadColumn) -> np.dtype[Any]:
    """Payload values are little-endian everywhere."""
    return np.dtype(column.dtype).newbyteorder("<")


def width_bytes(column: PayloadColumn) -> int:
    """Bytes of one row."""
    return column_dtype(column).itemsize * math.prod(column.shape)


def aligned(offset_bytes: int, row_bytes: int) -> int:
    """Where the next payload starts, whose rows have so many bytes: less than a row further on, and of rows too wide
    for that, less than a page."""
    # Rows wider than that start at a page of memory; padding by a whole row would waste too much.
    step = row_bytes if row_bytes <= MAX_ALIGNED_BYTES else 4096
    return -(-offset_bytes // step) * step


def payload_of(column: PayloadColumn, values: NDArray[Any]) -> Bytes2D:
    """The column's bytes, shape (rows, width)."""
    # Checked here: a wrong type would be written as other numbers, and no reader could tell.
    if values.shape[1:] != column.shape or values.dtype != np.dtype(column.dtype):
        raise ValueError(f"column {column.name} is {column.dtype}{column.shape}, got {values.dtype}{values.shape[1:]}")
    # Little-endian in the file, whatever the machine; contiguous, for the file is an array of rows.
    contiguous = np.ascontiguousarray(values, dtype=column_dtype(column))
    return contiguous.reshape(len(values), math.prod(column.shape)).view(np.uint8)


class _Page(NamedTuple):
    """One column of one row group, as it was written."""

    column: PayloadColumn
    num_rows: int
    start: int
    """Of its header."""
    header_bytes: int
    compressed_bytes: int
    crc32: int
    """Of the payload, uncompressed."""

    @property
    def payload_bytes(self) -> int:
        return self.num_rows * width_bytes(self.column)


def write_shard(
    sink: Sink,
    columns: Sequence[PayloadColumn],
    gather: Gather,
    num_rows: int,
    rows_per_row_group: int,
    codec: Codec = "none",
) -> tuple[RowGroup, ...]:
    """Write a shard from its first byte to its last, a row group in memory at a time.

    Args:
        gather: the payloads of rows `first` to `last`, contiguous.

    Returns:
        where everything lies, for the manifest.
    """
    # Offsets are counted here: the sink need not tell its position, and may be a digest as well.
    written = sink.write(MAGIC)
    groups: list[list[_Page]] = []
    for first in range(0, num_rows, rows_per_row_group):
        part = gather(first, min(first + rows_per_row_group, num_rows))
        pages = []
        for column in columns:
            page = _write_page(sink, written, column, part[column.name], codec)
            written = page.start + page.header_bytes + page.compressed_bytes
            pages.append(page)
        groups.append(pages)
    footer = encoded(_footer(columns, groups, num_rows, codec))
    sink.write(footer + len(footer).to_bytes(4, "little") + MAGIC)
    return tuple(_row_group(pages, codec) for pages in groups)


def _write_page(sink: Sink, written: int, column: PayloadColumn, rows: Bytes2D, codec: Codec) -> _Page:
    payload = rows.reshape(-1).data
    # Of the uncompressed payload, which the loader checks in either form.
    crc32 = zlib.crc32(payload)
    body = payload if codec == "none" else _compressed(payload, codec)
    # Parquet's page checksum is of the bytes on disk.
    header = encoded(_page_header(rows, len(body), crc32 if codec == "none" else zlib.crc32(body)))
    end = written + len(header)
    # The payload is aligned, not the header, whose length varies by the numbers in it.
    padding = aligned(end, width_bytes(column)) - end
    sink.write(bytes(padding) + header)
    sink.write(body)
    return _Page(column, len(rows), written + padding, len(header), len(body), crc32)


def _compressed(payload: memoryview, codec: Codec) -> memoryview:
    import pyarrow as pa

    compressor = pa.Codec("zstd", compression_level=ZSTD_LEVEL) if codec == "zstd" else pa.Codec("lz4_raw")
    buffer = compressor.compress(payload)
    # The buffer's own view is as long as the room that compression might have taken.
    return memoryview(buffer)[: buffer.size]


def _page_header(rows: Bytes2D, compressed_bytes: int, crc32: int) -> StructValue:
    data_page = StructValue(((1, I32Value(len(rows))), (2, I32Value(PLAIN)), (3, I32Value(RLE)), (4, I32Value(RLE))))
    # Thrift has no unsigned numbers.
    signed = crc32 - (1 << 32) if crc32 >> 31 else crc32
    return StructValue(
        (
            (1, I32Value(DATA_PAGE)),
            (2, I32Value(rows.size)),
            (3, I32Value(compressed_bytes)),
            (4, I32Value(signed)),
            (5, data_page),
        )
    )


def _footer(
    columns: Sequence[PayloadColumn], groups: Sequence[Sequence[_Page]], num_rows: int, codec: Codec
) -> StructValue:
    layout = StructValue(((1, LAYOUT_KEY), (2, _layout(columns))))
    return StructValue(
        (
            (1, I32Value(1)),
            (2, ListValue(STRUCT, _schema(columns))),
            (3, I64Value(num_rows)),
            (4, ListValue(STRUCT, [_row_group_metadata(pages, codec) for pages in groups])),
            (5, ListValue(STRUCT, [layout])),
            (6, CREATED_BY),
        )
    )


def _schema(columns: Sequence[PayloadColumn]) -> list[Value]:
    root = StructValue(((4, b"schema"), (5, I32Value(len(columns)))))
    leaves = [
        StructValue(
            (
                (1, I32Value(FIXED_LEN_BYTE_ARRAY)),
                (2, I32Value(width_bytes(column))),
                (3, I32Value(REQUIRED)),
                (4, column.name.encode()),
            )
        )
        for column in columns
    ]
    return [root, *leaves]


def _layout(columns: Sequence[PayloadColumn]) -> bytes:
    """What the blobs mean, kept in the file for a reader without the manifest."""
    return canonical_json([column.model_dump(mode="json") for column in columns]).strip()


def _row_group_metadata(pages: Sequence[_Page], codec: Codec) -> StructValue:
    size_bytes = sum(page.header_bytes + page.payload_bytes for page in pages)
    chunks = ListValue(STRUCT, [_chunk_metadata(page, codec) for page in pages])
    return StructValue(((1, chunks), (2, I64Value(size_bytes)), (3, I64Value(pages[0].num_rows))))


def _chunk_metadata(page: _Page, codec: Codec) -> StructValue:
    metadata = StructValue(
        (
            (1, I32Value(FIXED_LEN_BYTE_ARRAY)),
            (2, ListValue(I32, [I32Value(PLAIN), I32Value(RLE)])),
            (3, ListValue(BINARY, [page.column.name.encode()])),
            (4, I32Value(CODECS[codec])),
            (5, I64Value(page.num_rows)),
            (6, I64Value(page.header_bytes + page.payload_bytes)),
            (7, I64Value(page.header_bytes + page.compressed_bytes)),
            # Absolute offsets, which tie the page to its place in this file.
            (9, I64Value(page.start)),
        )
    )
    return StructValue(((2, I64Value(page.start)), (3, metadata)))


def _row_group(pages: Sequence[_Page], codec: Codec) -> RowGroup:
    chunks = [
        ColumnChunk(
            column=page.column.name,
            offset_bytes=page.start + (page.header_bytes if codec == "none" else 0),
            crc32=page.crc32,
        )
        for page in pages
    ]
    return RowGroup(num_rows=pages[0].num_rows, chunks=tuple(chunks))
