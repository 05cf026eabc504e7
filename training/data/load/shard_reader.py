"""The loader: rows of a split by number, gathered from mapped shards without decoding anything.

Rows are numbered in manifest order: dataset, group, split, shard, row group, row. Which rows make a batch is the
sample order's business; together they need no state but the position. Imports no Parquet reader, and torch only to
open shards: a rank starts fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import PayloadColumn, Shard, ShardManifest
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.config.loader_spec import LoaderSpec, loader_spec
from headway.training.data.load.address_range import AddressRange
from headway.training.data.load.cold_shards import is_cold, payloads_are_good
from headway.training.data.load.row_groups import RowGroupTable
from headway.training.data.load.shard_files import ADVICE, ShardFiles, corrupt
from headway.training.data.shards.parquet_payload import width_bytes

if TYPE_CHECKING:
    from torch import Tensor


WIDE_BYTES = 1024
"""Copying a row of so many takes longer than finding it in memory: looking at all of them first lets memory look for
the next while one is copied, a quarter faster from far more rows than the caches hold."""
MEMORY_ALIGNMENT_BYTES = 64
"""Where torch's own allocations begin."""


class Dataset(NamedTuple):
    """The rows of one manifest among a reader's."""

    first_row: int
    row_groups: RowGroupTable
    group_rows: Mapping[str, int]
    """How many rows each group of files has, one after another."""


class LocatedRows(NamedTuple):
    """Where rows lie in the mapped files, int64 (n,), one array a column."""

    places: tuple[NDArray[np.int64], ...]

    def part(self, start: int, stop: int) -> LocatedRows:
        return LocatedRows(tuple(places[start:stop] for places in self.places))


class ShardReader:
    """Random access to the rows of one split, of one dataset or of several side by side.

    Args:
        columns: names of the columns to gather; all by default.
        also: further datasets, encoded alike, whose rows follow those of `manifest`.
        on_shard: called after each shard is fetched or verified: opening many takes long.
        spec: where shards of a remote workspace are kept; as the launch said by default.

    Raises:
        IntegrityError: a shard is gone, or differs from its manifest in any bit; or a manifest contradicts itself.
        ConfigError: no such split or column; or the datasets were encoded differently.
        EnvironmentProblem: a remote workspace, or the node's cache of it, fails.
    """

    def __init__(
        self,
        workspace: Workspace,
        manifest: ShardManifest,
        split: str,
        columns: Sequence[str] | None = None,
        *,
        also: Sequence[ShardManifest] = (),
        on_shard: Callable[[], None] = lambda: None,
        spec: LoaderSpec | None = None,
    ) -> None:
        self.split = split
        self.columns = _chosen(manifest.columns, columns)
        manifests = (manifest, *also)
        for other in also:
            require_same_encoding(manifest, other)
        by_dataset = [list(_shards(held, split)) for held in manifests]
        self.datasets = _numbered(by_dataset, manifests, split)
        shards = [shard for held in by_dataset for shard in held]
        self.row_groups = RowGroupTable([size for held in by_dataset for size in _sizes(held)])
        self.num_rows = self.row_groups.num_rows
        forms = self._map(workspace, shards, manifest.columns, spec or loader_spec(), on_shard)
        self._payloads = [self._payload(column, forms) for column in self.columns]

    @property
    def row_bytes(self) -> int:
        """Bytes of one gathered row, over all columns."""
        return sum(payload.width_bytes for payload in self._payloads)

    def gather(self, rows: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Rows by number, in the order asked for.

        Args:
            rows: shape (n,), each in range(num_rows); may repeat.

        Returns:
            by column, an array of its own, shape (n, *column.shape).

        Raises:
            IndexError: a row out of range.
        """
        return {name: values.numpy() for name, values in self.read(self.locate(rows)).items()}

    def locate(self, rows: NDArray[np.integer]) -> LocatedRows:
        """Where rows lie, for `read`: worth doing for many batches at once.

        Raises:
            IndexError: a row out of range.
        """
        # 64-bit: row numbers of large data sets do not fit into 32.
        wanted = np.asarray(rows, dtype=np.int64)
        row_groups = self.row_groups.find(wanted)
        return LocatedRows(tuple(payload.locate(wanted, row_groups) for payload in self._payloads))

    def read(self, located: LocatedRows, *, pinned: bool = False) -> dict[str, Tensor]:
        """Copies of located rows.

        Args:
            pinned: into page-locked memory, from which a GPU copies by itself.

        Returns:
            by column, a tensor of its own, shape (n, *column.shape).
        """
        pairs = zip(self._payloads, located.places, strict=True)
        return {payload.name: payload.read(places, pinned) for payload, places in pairs}

    def _map(
        self,
        workspace: Workspace,
        shards: Sequence[Shard],
        columns: Sequence[PayloadColumn],
        spec: LoaderSpec,
        on_shard: Callable[[], None],
    ) -> tuple[Shard, ...]:
        """Map the files, then prove what was mapped: the very bytes that will be read. Returns the shards' forms."""
        # Mapped first and checked afterwards: what was checked in another copy could differ from what is read.
        files = ShardFiles(workspace, shards, columns, spec, on_shard)
        self.cached_bytes = files.cached_bytes
        sizes = [form.file.size_bytes for form in files.forms]
        widths = [width_bytes(column) for column in self.columns]
        self._range = mapped = AddressRange(list(zip(files.paths, sizes, strict=True)), widths=widths, keep=files)

        def problem(number: int) -> IntegrityError | None:
            if files.proved.get(number) == mapped.inodes[number]:
                return None  # its bytes were hashed on their way into these very pages
            return _problem(shards[number], files.forms[number], columns, mapped, number)

        # Digests release the GIL, so all processors verify.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for number, found in enumerate(pool.map(problem, range(len(shards)))):
                # Bad in the cache: fetched again once. Bad in the workspace itself: there is no other copy.
                if found is not None and (renewed := files.renewed(number, mapped.inodes[number])) is not None:
                    mapped.replace(number, renewed)
                    found = problem(number)
                if found is not None:
                    raise found
                on_shard()
        return files.forms

    def _payload(self, column: PayloadColumn, shards: Sequence[Shard]) -> _Payload:
        starts = [
            start + _offset(shard, number, column)
            for start, shard in zip(self._range.starts, shards, strict=True)
            for number in range(len(shard.row_groups))
        ]
        return _Payload(column, self._range, np.array(starts, dtype=np.int64), self.row_groups.first_rows)


def _problem(
    shard: Shard, form: Shard, columns: Sequence[PayloadColumn], mapped: AddressRange, number: int
) -> IntegrityError | None:
    """What is wrong with a shard as mapped: a hot one has its own digest, a decoded one the CRCs of its payloads."""
    if not is_cold(shard):
        digest = mapped.sha256(number)
        return None if digest == shard.file.sha256 else corrupt(shard.file, digest)
    if payloads_are_good(form, columns, mapped.file(number)):
        return None
    return IntegrityError("the decoded shard differs from its payloads' CRCs.", where=shard.file.path, advice=ADVICE)


class _Payload:
    """One column's records: all that was mapped taken for one array of them, where every payload starts at a multiple
    of its width, as shards are written; else the records at every byte, which numpy takes a little more slowly."""

    def __init__(
        self, column: PayloadColumn, mapped: AddressRange, starts: NDArray[np.int64], first_rows: NDArray[np.int64]
    ) -> None:
        import torch  # here, so that a process that only names readers need not pay for it

        self.name, self.width_bytes, self._shape = column.name, width_bytes(column), column.shape
        self._is_array = not (starts % self.width_bytes).any()
        every_bytes = self.width_bytes if self._is_array else 1
        self._step = self.width_bytes // every_bytes
        self._records = mapped.records(self.width_bytes, every_bytes=every_bytes)
        self._heads = mapped.records(1, every_bytes=every_bytes) if self.width_bytes >= WIDE_BYTES else None
        # Row numbers count from each row group's origin, so one addition finds a row.
        self._origins = starts // every_bytes - first_rows * self._step
        self._numpy_dtype = np.dtype(column.dtype)
        self._dtype = torch.from_numpy(np.empty(0, dtype=self._numpy_dtype)).dtype
        self._from_numpy, self._pinned = torch.from_numpy, partial(torch.empty, dtype=torch.uint8, pin_memory=True)

    def locate(self, rows: NDArray[np.int64], row_groups: NDArray[np.int64]) -> NDArray[np.int64]:
        places = self._origins.take(row_groups)
        # In place: the array of origins is fresh, and another would double the memory of a large batch.
        places += rows if self._is_array else rows * self._step
        return places

    def read(self, places: NDArray[np.int64], pinned: bool) -> Tensor:
        count = len(places)
        if pinned:
            out = self._pinned(count * self.width_bytes)
            self._take(places, out.numpy(), 0)
            return out.view(self._dtype).view(count, *self._shape)
        # Numpy gives memory again as soon as it is free, still in a core's cache. Torch's is aligned, for which it
        # takes other memory each time: a third slower to write to.
        memory = np.empty(count * self.width_bytes + MEMORY_ALIGNMENT_BYTES, dtype=np.uint8)
        start = -memory.__array_interface__["data"][0] % MEMORY_ALIGNMENT_BYTES
        self._take(places, memory, start)
        return self._from_numpy(np.ndarray((count, *self._shape), self._numpy_dtype, memory, start))

    def _take(self, places: NDArray[np.int64], memory: NDArray[np.uint8], start: int) -> None:
        if self._heads is not None:
            # Touching each row's first byte lets the processor fetch the next rows while one is copied.
            self._heads[places]
        out = np.ndarray(len(places), self._records.dtype, memory, start)
        if self._is_array:
            self._records.take(places, out=out, mode="clip")  # in range they are; to raise, numpy would copy twice
        else:
            out[:] = self._records[places]


def _chosen(held: Sequence[PayloadColumn], names: Sequence[str] | None) -> tuple[PayloadColumn, ...]:
    by_name = {column.name: column for column in held}
    unknown = sorted(set(names or ()) - set(by_name))
    if unknown:
        raise ConfigError(f"no column {unknown[0]!r} in the shards; there are {', '.join(by_name)}.")
    return tuple(by_name[name] for name in (names or by_name))


def require_same_encoding(manifest: ShardManifest, other: ShardManifest) -> None:
    """Raises `ConfigError` when rows of the two cannot lie in one batch."""
    if other.columns != manifest.columns or other.fitted != manifest.fitted:
        raise ConfigError(
            f"it cannot be mixed with {manifest.link.short}: their columns or fitted states differ.",
            where=other.link.short,
            advice="Shard both with one encoder and one fitted state.",
        )


def _shards(manifest: ShardManifest, split: str) -> Iterator[Shard]:
    groups = [group for group in manifest.groups if group.split == split]
    if not groups:
        there = ", ".join(sorted({group.split for group in manifest.groups})) or "none"
        raise ConfigError(f"no split {split!r} in the shards; there is {there}.", where=manifest.link.short)
    return (shard for group in groups for shard in group.shards)


def _sizes(shards: Sequence[Shard]) -> list[int]:
    return [row_group.num_rows for shard in shards for row_group in shard.row_groups]


def group_rows(manifest: ShardManifest, split: str) -> dict[str, int]:
    """How many rows of a split each group has, in the order in which they are numbered."""
    groups = (group for group in manifest.groups if group.split == split)
    return {group.name or f"group {group.group}": group.num_rows for group in groups}


def _numbered(
    by_dataset: Sequence[Sequence[Shard]], manifests: Sequence[ShardManifest], split: str
) -> tuple[Dataset, ...]:
    first_row, numbered = 0, []
    for shards, manifest in zip(by_dataset, manifests, strict=True):
        table = RowGroupTable(_sizes(shards))
        # Counted in two places of the manifest, which a damaged or foreign one contradicts.
        if table.num_rows != manifest.num_rows(split):
            raise IntegrityError("the manifest's row counts contradict each other.", where=manifest.link.short)
        numbered.append(Dataset(first_row, table, group_rows(manifest, split)))
        first_row += table.num_rows
    return tuple(numbered)


def _offset(shard: Shard, row_group: int, column: PayloadColumn) -> int:
    """Where the row group's payload of this column starts in its file, checked against the file's end."""
    held = shard.row_groups[row_group]
    offsets = [chunk.offset_bytes for chunk in held.chunks if chunk.column == column.name]
    # A payload beyond the file's end would be read from addresses where nothing is mapped, and end the process.
    if len(offsets) != 1 or not 0 <= offsets[0] <= shard.file.size_bytes - held.num_rows * width_bytes(column):
        raise IntegrityError(f"the manifest places column {column.name} outside the file.", where=shard.file.path)
    return offsets[0]
