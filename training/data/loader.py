"""The loader: rows of a split by number, gathered from mapped shards without decoding anything.

Rows are numbered in manifest order: group, split, shard, row group, row. Which rows make a batch is `order.py`'s
business; together they need no state but the position. Imports numpy and no Parquet reader: a rank starts fast.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.documents import Link, PayloadColumn, Shard, ShardManifest
from data_contracts.errors import ConfigError, IntegrityError
from data_contracts.publication import Workspace
from training.data.address_range import AddressRange

OUTSIDE = 1 << 62
"""Offset that no record has, so that numpy itself refuses a row out of range: one more row group past the last, which
-1, the row group of negative rows, names as well."""
ADVICE = "Run the pipeline again: stage shard writes the damaged group anew, the same bytes."


class ShardReader:
    """Random access to the rows of one split.

    Args:
        columns: names of the columns to gather; all by default.
        on_shard: called after each shard is verified: opening many takes long.

    Raises:
        IntegrityError: a shard is gone, or differs from the manifest in any bit; or the manifest contradicts itself.
        ConfigError: no such split or column.
    """

    def __init__(
        self,
        workspace: Workspace,
        manifest: ShardManifest,
        split: str,
        columns: Sequence[str] | None = None,
        *,
        on_shard: Callable[[], None] = lambda: None,
    ) -> None:
        self.manifest_link = manifest.link
        self.split = split
        self.num_rows = manifest.num_rows(split)
        self.columns = _chosen(manifest.columns, columns)
        shards = list(_shards(manifest, split))
        paths = [_present(workspace, shard) for shard in shards]
        self._range = AddressRange([(path, shard.file.size_bytes) for path, shard in zip(paths, shards, strict=True)])
        self._verify(shards, on_shard)
        self._index(manifest, shards)

    @classmethod
    def open(
        cls, workspace: Workspace, manifest: Link, split: str, columns: Sequence[str] | None = None
    ) -> ShardReader:
        """Open by link, which the manifest's bytes must match.

        Raises:
            IntegrityError: the manifest is gone, altered, or not the one asked for.
        """
        return cls(workspace, workspace.load(manifest, ShardManifest), split, columns)

    def gather(self, rows: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Rows by number, in the order asked for.

        Args:
            rows: shape (n,), each in range(num_rows); may repeat.

        Returns:
            by column, an array of its own, shape (n, *column.shape).

        Raises:
            IndexError: a row out of range.
        """
        wanted = np.asarray(rows, dtype=np.int64)
        row_groups = self._first_rows.searchsorted(wanted, side="right") - 1
        try:
            return {payload.name: payload.gather(wanted, row_groups) for payload in self._payloads}
        except IndexError:
            raise IndexError(f"a row outside range({self.num_rows})") from None

    def _verify(self, shards: Sequence[Shard], on_shard: Callable[[], None]) -> None:
        """Hash what was mapped: the very bytes that will be read."""
        views = [
            self._range.array[start : start + shard.file.size_bytes]
            for start, shard in zip(self._range.starts, shards, strict=True)
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            digests = pool.map(lambda view: hashlib.sha256(view).hexdigest(), views)
            for shard, digest in zip(shards, digests, strict=True):
                if digest != shard.file.sha256:
                    raise IntegrityError(
                        f"the shard is corrupt: sha256 is {digest[:12]}, its manifest says {shard.file.sha256[:12]}.",
                        where=shard.file.path,
                        advice=ADVICE,
                    )
                on_shard()

    def _index(self, manifest: ShardManifest, shards: Sequence[Shard]) -> None:
        """The first row of every row group, and one row group past the end for rows out of range."""
        sizes = [row_group.num_rows for shard in shards for row_group in shard.row_groups]
        ends = np.cumsum(np.array(sizes, dtype=np.int64))
        if (int(ends[-1]) if sizes else 0) != self.num_rows:
            raise IntegrityError("the manifest's row counts contradict each other.", where=manifest.link.short)
        self._first_rows = np.append(ends - np.array(sizes, dtype=np.int64), self.num_rows)
        self._payloads = [self._payload(column, shards) for column in self.columns]

    def _payload(self, column: PayloadColumn, shards: Sequence[Shard]) -> _Payload:
        width = _dtype(column).itemsize * math.prod(column.shape)
        starts = [
            start + _offset(shard, number, column, width)
            for start, shard in zip(self._range.starts, shards, strict=True)
            for number in range(len(shard.row_groups))
        ]
        origins = np.append(np.array(starts, dtype=np.int64) - self._first_rows[:-1] * width, OUTSIDE)
        return _Payload(column, _sliding_records(self._range.array, width), origins)


class _Payload:
    """One column's records at every offset, and per row group where row 0 of the split would lie if it began there."""

    def __init__(self, column: PayloadColumn, records: NDArray[Any], origins: NDArray[np.int64]) -> None:
        self.name, self._shape, self._dtype = column.name, column.shape, _dtype(column)
        self._records, self._origins, self._width = records, origins, records.itemsize

    def gather(self, rows: NDArray[np.int64], row_groups: NDArray[np.int64]) -> NDArray[Any]:
        offsets = rows * self._width
        offsets += self._origins[row_groups]
        return self._records[offsets].view(self._dtype).reshape(rows.size, *self._shape)


def _sliding_records(data: NDArray[np.uint8], width: int) -> NDArray[Any]:
    """A record of `width` bytes at every offset: payloads lie unaligned, and gathering them copies whole records."""
    return np.ndarray((data.size - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))


def _dtype(column: PayloadColumn) -> np.dtype[Any]:
    return np.dtype(column.dtype).newbyteorder("<")


def _chosen(held: Sequence[PayloadColumn], names: Sequence[str] | None) -> tuple[PayloadColumn, ...]:
    by_name = {column.name: column for column in held}
    unknown = sorted(set(names or ()) - set(by_name))
    if unknown:
        raise ConfigError(f"no column {unknown[0]!r} in the shards; there are {', '.join(by_name)}.")
    return tuple(by_name[name] for name in (names or by_name))


def _shards(manifest: ShardManifest, split: str) -> Iterator[Shard]:
    groups = [group for group in manifest.groups if group.split == split]
    if not groups:
        there = ", ".join(sorted({group.split for group in manifest.groups})) or "none"
        raise ConfigError(f"no split {split!r} in the shards; there is {there}.", where=manifest.link.short)
    return (shard for group in groups for shard in group.shards)


def _present(workspace: Workspace, shard: Shard) -> Path:
    """The shard's path, its size checked: a mapping past a file's end would kill the process when read."""
    path = workspace.local_path(shard.file.path)
    try:
        actual_bytes = path.stat().st_size
    except FileNotFoundError as error:
        raise IntegrityError("the shard is gone.", where=shard.file.path, advice=ADVICE) from error
    if actual_bytes != shard.file.size_bytes:
        raise IntegrityError(
            f"the shard has {actual_bytes} bytes, its manifest says {shard.file.size_bytes}.",
            where=shard.file.path,
            advice=ADVICE,
        )
    return path


def _offset(shard: Shard, row_group: int, column: PayloadColumn, width: int) -> int:
    """Where the row group's payload of this column starts in its file, checked against the file's end."""
    held = shard.row_groups[row_group]
    offsets = [chunk.offset_bytes for chunk in held.chunks if chunk.column == column.name]
    if len(offsets) != 1 or not 0 <= offsets[0] <= shard.file.size_bytes - held.num_rows * width:
        raise IntegrityError(f"the manifest places column {column.name} outside the file.", where=shard.file.path)
    return offsets[0]
