"""From row numbers to row groups: a table look-up instead of a binary search, which costs more than the copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_BUCKETS_PER_ROW_GROUP = 8


class RowGroupTable:
    """Rows numbered through row groups of the given sizes.

    Attributes:
        first_rows: the first row of each row group, int64.
        sizes: rows in each row group, int64.
    """

    def __init__(self, sizes: Sequence[int] | NDArray[np.int64]) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self._ends = np.cumsum(self.sizes)
        self.first_rows = self._ends - self.sizes
        self.num_rows = int(self._ends[-1]) if self.sizes.size else 0
        # A power of two, so that the bucket is a shift instead of a division.
        self._shift = _bucket_bits(self.sizes, self.num_rows)
        bucket_firsts = np.arange(0, max(self.num_rows, 1), 1 << self._shift)
        self._row_groups = self._ends.searchsorted(bucket_firsts, side="right")
        last = np.append(self._row_groups[1:], max(self.sizes.size - 1, 0))
        # A bucket may hold several borders; so many comparisons reach the right one.
        self._num_steps = int((last - self._row_groups).max(initial=0))

    def find(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row group of each row; rows must be in range.

        Raises:
            IndexError: a row out of range.
        """
        if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= self.num_rows):
            raise IndexError(f"a row outside range({self.num_rows})")
        found: NDArray[np.int64] = self._row_groups.take(rows >> self._shift)
        if self._num_steps > MAX_BUCKETS_PER_ROW_GROUP:  # crowds of tiny row groups between large ones
            return self._ends.searchsorted(rows, side="right")
        # As few vectorised steps as the fullest bucket needs; a search for each row would cost more than its copy.
        for _ in range(self._num_steps):
            found += rows >= self._ends.take(found)
        return found


def _bucket_bits(sizes: NDArray[np.int64], num_rows: int) -> int:
    """Buckets of 2^bits rows: as large as the usual row group, so that a bucket rarely meets two borders."""
    mean = num_rows // max(sizes.size, 1)
    return max(mean.bit_length() - 1, 0)
