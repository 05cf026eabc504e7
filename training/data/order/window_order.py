"""Row-group window shuffle: row groups in random order, cut into windows, rows shuffled inside a window.

Rows of a batch lie close together, so that they come out of caches, and off a disk in long reads; the price is that
rows of one row group meet in the same part of an epoch. Like the exact order it is a pure function of the position:
an epoch's row groups and a window's rows are sorted anew by hashed keys, from wherever one begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.training.data.load.row_groups import RowGroupTable
from headway.training.data.order.exact_order import check_positions, epochs_and_indices
from headway.training.data.splitmix import MASK, mix, splitmix64

KEPT_WINDOWS = 4
MAX_WINDOW_ROWS = 1 << 30


class _Epoch(NamedTuple):
    number: int
    row_groups: NDArray[np.int64]
    window_ends: NDArray[np.int64]


class WindowOrder:
    """Every row exactly once an epoch; `window_row_groups` row groups are mixed with each other at a time.

    What it remembers speeds up and never shows: any positions may be asked for at any time, from any thread.

    Args:
        table: the row groups.

    Raises:
        ValueError: no rows, or a window of none or too many.
    """

    def __init__(self, table: RowGroupTable, *, seed: int, window_row_groups: int) -> None:
        # A window of more row groups than there are is all of them.
        window_row_groups = min(window_row_groups, table.sizes.size)
        most_rows = window_row_groups * int(table.sizes.max(initial=0))
        if table.num_rows == 0 or not 0 < most_rows <= MAX_WINDOW_ROWS:
            raise ValueError(f"no window order for {table.num_rows} rows, {window_row_groups=}")
        self._table, self._seed, self._window_row_groups = table, seed, window_row_groups
        self._epoch = self._open_epoch(0)
        self._windows: dict[tuple[int, int], NDArray[np.int64]] = {}

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        check_positions(positions)
        if not positions.size:
            return np.empty(0, dtype=np.int64)
        epochs, indices = epochs_and_indices(positions, self._table.num_rows)
        if epochs.size == 1:
            return self._rows_of_epoch(int(epochs[0]), indices)
        first, last = int(epochs[0]), int(epochs[-1])
        # Positions ascend, so epochs are runs; each is one call.
        cuts = epochs.searchsorted(np.arange(first + 1, last + 1))
        parts = np.split(indices, cuts)
        return np.concatenate(
            [self._rows_of_epoch(first + number, part) for number, part in enumerate(parts) if part.size]
        )

    def _rows_of_epoch(self, number: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        epoch = self._epoch
        if epoch.number != number:
            epoch = self._epoch = self._open_epoch(number)
        # The last and the first index tell whether the range crosses a window.
        first, last = epoch.window_ends.searchsorted(indices[[0, -1]], side="right").tolist()
        if first == last:
            return self._rows_of_window(epoch, first, indices)
        parts = np.split(indices, indices.searchsorted(epoch.window_ends[first:last]))
        return np.concatenate(
            [self._rows_of_window(epoch, first + place, part) for place, part in enumerate(parts) if part.size]
        )

    def _rows_of_window(self, epoch: _Epoch, window: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        kept = self._windows
        rows = kept.get((epoch.number, window))
        if rows is None:
            rows = self._open_window(epoch, window)
            newest = list(kept.items())[-(KEPT_WINDOWS - 1) :]
            # A new dictionary each time: other threads keep the one they are reading.
            self._windows = dict([*newest, ((epoch.number, window), rows)])
        start = int(epoch.window_ends[window]) - rows.size
        first, last = int(indices[0]) - start, int(indices[-1]) - start
        if last - first == indices.size - 1:  # one after another, the usual case
            return rows[first : last + 1]
        found: NDArray[np.int64] = rows.take(indices - start)
        return found

    def _open_epoch(self, number: int) -> _Epoch:
        row_groups = permutation(self._table.sizes.size, mix(self._seed, number))
        ends = np.cumsum(self._table.sizes[row_groups])
        width = self._window_row_groups
        # The last window takes what is left, and may be smaller.
        return _Epoch(number, row_groups, np.append(ends[width - 1 : -1 : width], ends[-1]))

    def _open_window(self, epoch: _Epoch, window: int) -> NDArray[np.int64]:
        """The window's rows, shuffled."""
        first = window * self._window_row_groups
        members = epoch.row_groups[first : first + self._window_row_groups]
        first_rows, sizes = self._table.first_rows[members], self._table.sizes[members]
        rows = np.concatenate(
            [np.arange(start, start + size) for start, size in zip(first_rows.tolist(), sizes.tolist(), strict=True)]
        )
        shuffled_rows: NDArray[np.int64] = rows.take(permutation(rows.size, mix(self._seed, epoch.number, window)))
        shuffled_rows.flags.writeable = False  # parts of it are handed out
        return shuffled_rows


def permutation(count: int, seed: int) -> NDArray[np.int64]:
    """Numbers below `count` by the upper 32 bits of their hashed keys, the smaller first where those are equal. 16 bits
    at a time, which numpy sorts by counting: in a third of the time that comparing whole keys takes."""
    keys = splitmix64(np.arange(count, dtype=np.uint64) ^ np.uint64(seed & MASK))
    keys >>= np.uint64(32)
    numbers = keys.astype(np.uint16).argsort(kind="stable")
    keys >>= np.uint64(16)
    return numbers.take(keys.astype(np.uint16).take(numbers).argsort(kind="stable"))
