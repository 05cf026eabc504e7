"""Batches of the sample order, several in one gather, and many more located at once: fixed costs are spread thin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headway.training.data.load.shard_reader import LocatedRows, ShardReader
from headway.training.data.order.exact_order import SampleOrder

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_BYTES = 2 << 20
"""Gathered at once: fixed costs, such as waking a thread that waits for it, are little beside the copying."""
LOCATED_ROWS = 1 << 16
"""Never more than an epoch's: orders begin each anew."""


class BlockGather:
    """One share of every batch of the sample order, for any range of batches.

    Args:
        batch_rows: rows of a batch; batch k holds batch_rows positions, from first_row + k * batch_rows on.
        share: places in each batch to gather, such as a rank's; all by default.

    Attributes:
        batches_per_block: how many make a block worth gathering.
    """

    def __init__(
        self,
        reader: ShardReader,
        order: SampleOrder,
        *,
        batch_rows: int,
        first_row: int = 0,
        share: slice | NDArray[np.int64] | None = None,
    ) -> None:
        self._reader, self._order, self._batch_rows = reader, order, batch_rows
        self._first_row = first_row
        # Places within a batch; a rank's share may be strided.
        self._places = np.arange(batch_rows)[slice(None) if share is None else share]
        share_rows = max(1, self._places.size)
        self.batches_per_block = max(1, BLOCK_BYTES // (share_rows * max(1, reader.row_bytes)))
        blocks_at_once = max(1, min(LOCATED_ROWS, reader.num_rows) // (share_rows * self.batches_per_block))
        self._batches_at_once = blocks_at_once * self.batches_per_block
        self._known: tuple[int, LocatedRows] | None = None

    def gather(self, first_batch: int, num_batches: int, *, pinned: bool = False) -> dict[str, Tensor]:
        """The batches' rows one after another: by column, shape (num_batches * share, *column.shape)."""
        return self._reader.read(self._located(first_batch, num_batches), pinned=pinned)

    def block(self, number: int, *, pinned: bool = False) -> dict[str, Tensor]:
        """Batches [number * batches_per_block, (number + 1) * batches_per_block)."""
        return self.gather(number * self.batches_per_block, self.batches_per_block, pinned=pinned)

    def _located(self, first_batch: int, num_batches: int) -> LocatedRows:
        """Out of many located at once, where the batches do not cross a border.

        What is remembered never shows: threads may replace it under each other.
        """
        part, place = divmod(first_batch, self._batches_at_once)
        # A range across two parts is located by itself; it is rare.
        if place + num_batches > self._batches_at_once:
            return self._locate(first_batch, num_batches)
        # Read once into a local: another thread may replace it between the test and the use.
        known = self._known
        if known is None or known[0] != part:
            known = self._known = part, self._locate(part * self._batches_at_once, self._batches_at_once)
        return known[1].part(place * self._places.size, (place + num_batches) * self._places.size)

    def _locate(self, first_batch: int, num_batches: int) -> LocatedRows:
        first, last = (self._first_row + batch * self._batch_rows for batch in (first_batch, first_batch + num_batches))
        if self._places.size == self._batch_rows:
            # The whole batch is one range, which needs no addition for each row.
            positions = np.arange(first, last)
        else:
            positions = (np.arange(first, last, self._batch_rows)[:, None] + self._places).reshape(-1)
        return self._reader.locate(self._order.rows(positions))
