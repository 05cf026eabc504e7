"""The rows of a group, file after file: without those in quarantine, and by split where rows decide it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from headway.data_contracts.store.errors import DataError
from headway.training.config.given_split import Value
from headway.training.config.shards import TRAIN, ShardSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.shards.splits import GroupTask, SourceRows, rows_by_split
from headway.training.data.splitmix import hash_text


def training_blocks(task: GroupTask, spec: ShardSpec) -> Iterator[SourceBlock]:
    """The rows of a group that train."""
    for member in task.members:
        for split, block in blocks_of(member, task, spec):
            if split == TRAIN:
                yield block


def blocks_of(member: SourceRows, task: GroupTask, spec: ShardSpec) -> Iterator[tuple[str, SourceBlock]]:
    """A file's rows with the split they belong to, in file order.

    Raises:
        DataError: the file is gone, or changed since the snapshot was taken.
    """
    for block in _accepted(member, spec.seed):
        if len(task.splits) == 1:
            yield task.splits[0], block
            continue
        for split, mask in rows_by_split(member, block.batch, block.row_numbers, spec):
            # A block without rows of a split must not reach the encoder: it may not expect one.
            if mask.any():
                yield split, chosen(block, mask)


def listed_without_rows(sources: Iterable[SourceRows], spec: ShardSpec) -> tuple[Value, ...]:
    """Values of a given split that no accepted row has; none where no column decides.

    Raises:
        DataError: as `GivenSplit.without_rows` and `blocks_of`.
    """
    split = spec.split
    if split is None or (name := split.column) is None:
        return ()
    from headway.training.data.encode.source_columns import column_of, plain

    return split.without_rows(
        (source.path, plain(column_of(block.batch, name, source.path)))
        for source in sources
        for block in _accepted(source, spec.seed)
    )


def chosen(block: SourceBlock, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> SourceBlock:
    """The rows where the mask is true."""
    import pyarrow as pa

    # The usual case, and a copy of the whole block less.
    if mask.all():
        return block
    return SourceBlock(block.path, block.row_numbers[mask], block.ids[mask], block.batch.filter(pa.array(mask)))


def _accepted(member: SourceRows, seed: int) -> Iterator[SourceBlock]:
    """The rows that are not in quarantine."""
    # By path and seed: a row keeps its id while other files come and go.
    file_seed = np.uint64(hash_text("row", str(seed), member.path))
    first = 0
    for batch in _batches(member):
        numbers = np.arange(first, first + batch.num_rows, dtype=np.int64)
        first += batch.num_rows
        block = SourceBlock(member.path, numbers, numbers.astype(np.uint64) ^ file_seed, batch)
        # Quarantined rows are sorted, so two searches find those of this batch.
        low, high = member.excluded.searchsorted([numbers[0], first]) if batch.num_rows else (0, 0)
        if low < high:
            accepted = np.ones(batch.num_rows, dtype=bool)
            accepted[member.excluded[low:high] - numbers[0]] = False
            block = chosen(block, accepted)
        if len(block.ids):
            yield block
    # Counted at the end: a file that was swapped since the snapshot would shift all row numbers.
    if first != member.num_rows:
        raise DataError(
            f"the file has {first:,} rows, its snapshot says {member.num_rows:,}.",
            where=member.path,
            advice="Run again: the new snapshot will hold the new rows.",
        )


def _batches(member: SourceRows) -> Iterator[Any]:
    try:
        yield from member.read()
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}).", where=member.path) from error
