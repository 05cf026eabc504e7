"""A shuffle of any number of rows in bounded memory: rows are ordered by SplitMix64 of their ids.

Pass 1 collects rows in a buffer. A full buffer is sorted and written to scratch as one *run*; where its keys' top bits
change (its *buckets*) is remembered. Pass 2 reads the buckets that a shard lies in from every run, and merges them;
rows that were never spilled stay where they are. Rows of one key, should two ids meet, keep the order in which they
came; so the result does not depend on the buffer's size.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import PayloadColumn
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.data.shards.parquet_payload import Bytes2D, width_bytes
from headway.training.data.splitmix import U64, splitmix64

BUCKET_BITS = 12
NUM_BUCKETS = 1 << BUCKET_BITS
BOOKKEEPING_BYTES = 8 + 8 + 8
"""A row's key, its place in the order, and what finding it takes."""
SLICE_BYTES = 4 << 20

Order = NDArray[np.int64]


class SortedRun(Protocol):
    """Rows by bucket; `starts` has the first row of each bucket, and the end of the last."""

    starts: NDArray[np.int64]

    def keys(self, first: int, last: int) -> U64: ...

    def payload(self, column: str, first: int, last: int) -> Bytes2D: ...


class SortedRows(NamedTuple):
    """Some consecutive rows of the shuffled order, in memory."""

    order: Order
    payloads: Mapping[str, Bytes2D]

    def gather(self, first: int, last: int) -> dict[str, Bytes2D]:
        chosen = self.order[first:last]
        return {name: rows.take(chosen, axis=0) for name, rows in self.payloads.items()}


class BucketShuffle:
    """Rows in, shuffled rows out.

    Args:
        budget_bytes: size of the buffer; no row is larger.
        scratch: a local folder for what the buffer cannot hold, the system's by default. The file has no name: it goes
            with the process.
    """

    def __init__(self, columns: Sequence[PayloadColumn], budget_bytes: int, scratch: Path | None = None) -> None:
        self._widths = {column.name: width_bytes(column) for column in columns}
        row_bytes = sum(self._widths.values()) + BOOKKEEPING_BYTES
        self._buffer = _Buffer(self._widths, max(1, budget_bytes // row_bytes))
        self._spill = _Spill(scratch)
        self._runs: list[SortedRun] = []

    def add(self, ids: U64, payloads: Mapping[str, Bytes2D]) -> None:
        """Take rows; their bytes are copied.

        Raises:
            EnvironmentProblem: no space left in scratch, or writing there is refused.
        """
        # By id, not by arrival: the order of files and the buffer's size must not show.
        keys = splitmix64(ids)
        taken = 0
        while taken < len(keys):
            taken += self._buffer.fill(keys[taken:], {name: rows[taken:] for name, rows in payloads.items()})
            if self._buffer.is_full:
                self._runs.append(self._spill.write(self._buffer.run(), self._widths))
                self._buffer.num_rows = 0

    def finish(self) -> ShuffledRows:
        """Everything that was added; the shuffle takes no more."""
        if self._buffer.num_rows:
            # The last rows never leave memory; small groups spill nothing.
            self._runs.append(self._buffer.run())
        return ShuffledRows(self._runs, self._widths)


class ShuffledRows:
    """All rows in their order; any part of it can be had, from several threads."""

    def __init__(self, runs: Sequence[SortedRun], widths: Mapping[str, int]) -> None:
        self._runs, self._widths = runs, widths
        self._starts = sum((run.starts for run in runs), np.zeros(NUM_BUCKETS + 1, dtype=np.int64))
        self.num_rows = int(self._starts[-1])

    def part(self, first: int, last: int) -> SortedRows:
        """Rows `first` to `last` of the order."""
        # Nothing was spilled: rows are taken where they are.
        if len(self._runs) == 1 and isinstance(self._runs[0], _MemoryRun):
            run = self._runs[0]
            return SortedRows(run.order[first:last], run.payloads)
        # A part of the order lies in some buckets of each run; only these are read.
        low = int(self._starts.searchsorted(first, side="right")) - 1
        high = int(self._starts.searchsorted(last, side="left"))
        places = [(run, int(run.starts[low]), int(run.starts[high])) for run in self._runs]
        pieces = [piece for piece in places if piece[1] < piece[2]]
        keys = [run.keys(start, stop) for run, start, stop in pieces]
        # Each run is in order, and the stable sort merges what is: five times as fast as the other.
        order = np.concatenate([*keys, np.zeros(0, dtype=np.uint64)]).argsort(kind="stable")
        skipped = first - int(self._starts[low])
        payloads = {name: _joined(pieces, name, width) for name, width in self._widths.items()}
        return SortedRows(order[skipped : skipped + last - first], payloads)


def sorting_order(keys: U64) -> Order:
    """Places in the order of keys; equal ones as they came.

    A key's upper bits and its place share a word, since sorting words is faster than sorting places by words.
    """
    place_bits = (len(keys) - 1).bit_length() if len(keys) else 0
    mask = np.uint64((1 << place_bits) - 1)
    packed = keys & ~mask
    packed |= np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    # Keys that agree in the upper bits are rare, and are ordered by their whole keys afterwards.
    agree = np.flatnonzero((packed[1:] ^ packed[:-1]) <= mask)
    packed &= mask
    order: Order = packed.view(np.int64)
    if len(agree):  # by chance, one row in 2**24 where there are a million
        met = np.union1d(agree, agree + 1)
        undecided = order[met]
        order[met] = undecided[keys.take(undecided).argsort(kind="stable")]
    return order


def _joined(pieces: Sequence[tuple[SortedRun, int, int]], column: str, width: int) -> Bytes2D:
    if len(pieces) == 1:
        run, start, stop = pieces[0]
        return run.payload(column, start, stop)
    joined: Bytes2D = np.empty((sum(stop - start for _, start, stop in pieces), width), dtype=np.uint8)
    first = 0
    for run, start, stop in pieces:
        joined[first : first + stop - start] = run.payload(column, start, stop)
        first += stop - start
    return joined


class _Buffer:
    """Room for rows, filled again and again. Pages that were never written cost nothing."""

    def __init__(self, widths: Mapping[str, int], capacity: int) -> None:
        self._keys: U64 = np.empty(capacity, dtype=np.uint64)
        # `empty`: pages that are never written take no memory.
        self._payloads: dict[str, Bytes2D] = {
            name: np.empty((capacity, width), dtype=np.uint8) for name, width in widths.items()
        }
        self.num_rows = 0

    @property
    def is_full(self) -> bool:
        return self.num_rows == len(self._keys)

    def fill(self, keys: U64, payloads: Mapping[str, Bytes2D]) -> int:
        """Take as many rows as there is room for, and say how many."""
        first = self.num_rows
        self.num_rows = min(first + len(keys), len(self._keys))
        taken = self.num_rows - first
        self._keys[first : self.num_rows] = keys[:taken]
        for name, held in self._payloads.items():
            held[first : self.num_rows] = payloads[name][:taken]
        return taken

    def run(self) -> _MemoryRun:
        return _MemoryRun(
            self._keys[: self.num_rows], {name: held[: self.num_rows] for name, held in self._payloads.items()}
        )


class _MemoryRun:
    """A buffer's rows, where they are, and their order."""

    def __init__(self, keys: U64, payloads: Mapping[str, Bytes2D]) -> None:
        self._keys, self.payloads = keys, payloads
        self.order = sorting_order(keys)
        buckets = np.bincount((keys >> np.uint64(64 - BUCKET_BITS)).view(np.int64), minlength=NUM_BUCKETS)
        # Starts of buckets, so that a part of a run is found without its keys.
        self.starts = np.concatenate([np.zeros(1, dtype=np.int64), buckets.cumsum()])

    def keys(self, first: int, last: int) -> U64:
        return self._keys.take(self.order[first:last])

    def payload(self, column: str, first: int, last: int) -> Bytes2D:
        return self.payloads[column].take(self.order[first:last], axis=0)


class _Spill:
    """A nameless file of runs, made when the first one comes."""

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch or Path(tempfile.gettempdir())
        self._file: IO[bytes] | None = None

    def write(self, run: _MemoryRun, widths: Mapping[str, int]) -> _DiskRun:
        num_rows = int(run.starts[-1])
        try:
            if self._file is None:
                # Nameless: whatever happens, the file goes with the process.
                self._file = tempfile.TemporaryFile(dir=self._scratch, prefix="shuffle-", buffering=0)  # noqa: SIM115
            offset = os.lseek(self._file.fileno(), 0, os.SEEK_END)
            _write_all(self._file, run.keys(0, num_rows))
            for name, width in widths.items():
                # In slices: sorted rows are gathered as they are written, never a second time as a whole.
                rows = max(1, SLICE_BYTES // width)
                for first in range(0, num_rows, rows):
                    _write_all(self._file, run.payload(name, first, min(first + rows, num_rows)))
        except OSError as error:
            raise _refused(self._scratch, error) from error
        return _DiskRun(self._file, offset, run.starts, widths)


class _DiskRun:
    """Rows of one run in the spill: keys, then each column's payload, all by bucket."""

    def __init__(self, file: IO[bytes], offset: int, starts: NDArray[np.int64], widths: Mapping[str, int]) -> None:
        self._file, self.starts = file, starts
        num_rows = int(starts[-1])
        self._keys_at, offset = offset, offset + 8 * num_rows
        self._columns: dict[str, tuple[int, int]] = {}
        for name, width in widths.items():
            self._columns[name] = offset, width
            offset += width * num_rows

    def keys(self, first: int, last: int) -> U64:
        keys: U64 = np.empty(last - first, dtype=np.uint64)
        self._read(keys, self._keys_at + 8 * first)
        return keys

    def payload(self, column: str, first: int, last: int) -> Bytes2D:
        offset, width = self._columns[column]
        rows: Bytes2D = np.empty((last - first, width), dtype=np.uint8)
        self._read(rows, offset + width * first)
        return rows

    def _read(self, target: NDArray[Any], offset: int) -> None:
        view = memoryview(target.data).cast("B")
        while view:
            # `preadv` names its place, so several threads read one file without a lock.
            num_bytes = os.preadv(self._file.fileno(), [view], offset)
            if not num_bytes:
                raise EnvironmentProblem("the spilled rows ended early.", where="scratch")
            view, offset = view[num_bytes:], offset + num_bytes


def _write_all(file: IO[bytes], values: NDArray[Any]) -> None:
    view = memoryview(values.data).cast("B")
    while view:
        view = view[file.write(view) :]


def _refused(scratch: Path, error: OSError) -> EnvironmentProblem:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return EnvironmentProblem(
        "no space left for spilled rows." if full else f"rows cannot be spilled ({error.strerror}).",
        where=str(scratch),
        advice="Free some space or raise shards.memory_mb, and run again: finished groups are kept.",
    )
