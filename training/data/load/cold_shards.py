"""Compressed ("cold") shards, decoded once a node into bare payloads that can be mapped like a hot shard's.

The decoded file is a pure function of manifest and payload: payloads in the manifest's order, each aligned as
in a hot shard. The manifest's CRC-32 of every payload proves it, when it is decoded and whenever it is mapped.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import PayloadColumn, RowGroup, Shard
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.full_disk import is_out_of_space
from headway.training.data.shards.parquet_payload import aligned, width_bytes


def is_cold(shard: Shard) -> bool:
    return shard.codec != "none"


def mapped_form(shard: Shard, columns: Sequence[PayloadColumn]) -> Shard:
    """The shard as it is mapped: itself when hot; when cold, sizes and offsets of the decoded file."""
    if not is_cold(shard):
        return shard
    widths = {column.name: width_bytes(column) for column in columns}
    end, row_groups = 0, []
    for row_group in shard.row_groups:
        chunks = []
        for chunk in row_group.chunks:
            # Aligned as in a hot shard, so that both are read by the same code.
            width = widths[chunk.column]
            start = aligned(end, width)
            chunks.append(chunk.model_copy(update={"offset_bytes": start}))
            end = start + row_group.num_rows * width
        row_groups.append(row_group.model_copy(update={"chunks": tuple(chunks)}))
    file = shard.file.model_copy(update={"size_bytes": end})
    return shard.model_copy(update={"file": file, "row_groups": tuple(row_groups)})


def decode(compressed: Path, form: Shard, columns: Sequence[PayloadColumn], target: Path) -> None:
    """Write the payloads of a cold shard to `target`, an existing file of the form's size.

    Raises:
        IntegrityError: it is not the Parquet that its manifest describes, or a payload differs from its CRC.
    """
    import pyarrow as pa  # a rank without cold shards never loads it
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(compressed) as file, target.open("r+b") as out:
            for number, row_group in enumerate(form.row_groups):
                # One thread: shards are decoded side by side already. Combined, so that
                # each column is one run of bytes.
                table = file.read_row_group(number, use_threads=False).combine_chunks()
                for chunk in row_group.chunks:
                    out.seek(chunk.offset_bytes)
                    for values in table[chunk.column].chunks:
                        width = values.type.byte_width
                        # The value buffer of fixed-size binaries; a slice may begin inside it.
                        rows = values.buffers()[1].slice(values.offset * width, len(values) * width)
                        out.write(rows)
    except (pa.ArrowException, OSError, KeyError, AttributeError) as error:
        if is_out_of_space(error):
            # A full disk is no damage of the shard, and must not be reported as such.
            raise
        raise IntegrityError(f"the cold shard cannot be decoded ({error}).", where=form.file.path) from error
    # From the file, as it will be mapped: the check covers what reached the disk.
    mapped = np.memmap(target, np.uint8, "r") if form.file.size_bytes else np.empty(0, np.uint8)
    if not payloads_are_good(form, columns, mapped):
        raise IntegrityError("a payload differs from its manifest's CRC.", where=form.file.path)


def payloads_are_good(form: Shard, columns: Sequence[PayloadColumn], data: NDArray[np.uint8]) -> bool:
    """Whether every payload in the decoded file's bytes has the CRC-32 of its manifest."""
    widths = {column.name: width_bytes(column) for column in columns}
    return all(_chunks_are_good(row_group, widths, data) for row_group in form.row_groups)


def _chunks_are_good(row_group: RowGroup, widths: dict[str, int], data: NDArray[np.uint8]) -> bool:
    return all(
        zlib.crc32(data[chunk.offset_bytes : chunk.offset_bytes + row_group.num_rows * widths[chunk.column]].data)
        == chunk.crc32
        for chunk in row_group.chunks
    )
