"""What the source says of each example of a split: columns that no shard keeps, in the shards' own order.

A row's group, split and place are functions of its file's path, its number there and the spec. So the files say again
which row of a shard was which of theirs, and any column of theirs can be had without a byte more in the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import ShardGroup, ShardManifest
from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.source_columns import column_of, plain
from headway.training.data.shards.bucket_shuffle import sorting_order
from headway.training.data.shards.row_blocks import blocks_of
from headway.training.data.shards.splits import GroupTask, SourceRows, plan_groups
from headway.training.data.splitmix import splitmix64

if TYPE_CHECKING:
    import pyarrow as pa

PATH = "path"
"""A column that every source has: of one that brings none, the path of a row's file."""
ReadValues = Callable[[SourceRows, SourceBlock], Any]
"""One value for each row of a file's block, as an Arrow array."""
RowTest = Callable[[SourceRows, SourceBlock], NDArray[np.bool_]]
"""Whether each row of a file's block is meant; (rows,)."""


def values_of_split(
    sources: Iterable[SourceRows], manifest: ShardManifest, split: str, columns: Sequence[str], *, in_row_order: bool
) -> dict[str, pa.Array]:
    """Values of source columns for all samples of a split.

    Args:
        sources: the files of the manifest's snapshot.
        in_row_order: as rows lie in the shards, where each sample is a row; else as `ShardGroup.documents` and
            `samples_by_document` count samples.

    Raises:
        DataError: a file is gone or changed since the snapshot, or lacks a column.
        IntegrityError: the files do not make up the manifest's groups.
    """
    readers = {name: partial(_column, name=name) for name in columns}
    return _values_of_split(sources, manifest, split, readers, in_row_order)


def heldout_where(
    sources: Iterable[SourceRows], manifest: ShardManifest, tests: Mapping[str, RowTest], *, in_row_order: bool
) -> dict[str, NDArray[np.bool_]]:
    """Which held-out samples pass each of some tests; (samples,) each.

    Args: and what is raised: as `values_of_split`, and what the tests raise.
    """
    readers = {name: partial(_tested, test=test) for name, test in tests.items()}
    found = _values_of_split(sources, manifest, HELDOUT, readers, in_row_order)
    return {name: values.to_numpy(zero_copy_only=False) for name, values in found.items()}


def _values_of_split(
    sources: Iterable[SourceRows],
    manifest: ShardManifest,
    split: str,
    readers: Mapping[str, ReadValues],
    in_row_order: bool,
) -> dict[str, pa.Array]:
    import pyarrow as pa

    spec = ShardSpec.model_validate(manifest.spec)
    tasks = {task.group: task for task in plan_groups(sources, spec) if split in task.splits}
    found: dict[str, list[pa.Array]] = {name: [] for name in readers}
    for group in (group for group in manifest.groups if group.split == split):
        task = tasks.get(group.group)
        # The same files in the same order, or rows would be matched with other rows' values.
        if task is None or tuple(member.path for member in task.members) != group.documents:
            raise IntegrityError("the source's files are not those of the shards.", where=manifest.link.short)
        for name, values in _values_of_group(task, group, spec, readers, in_row_order).items():
            found[name].append(values)
    return {name: pa.concat_arrays(parts) for name, parts in found.items()}


def _column(member: SourceRows, block: SourceBlock, name: str) -> Any:
    import pyarrow as pa

    if name == PATH and block.batch.schema.get_field_index(PATH) < 0:
        return pa.repeat(block.path, len(block.ids))
    return plain(column_of(block.batch, name, block.path))


def _tested(member: SourceRows, block: SourceBlock, test: RowTest) -> Any:
    import pyarrow as pa

    return pa.array(test(member, block))


def _values_of_group(
    task: GroupTask, group: ShardGroup, spec: ShardSpec, readers: Mapping[str, ReadValues], in_row_order: bool
) -> dict[str, pa.Array]:
    import pyarrow as pa

    ids: list[Any] = []
    parts: dict[str, list[pa.Array]] = {name: [] for name in readers}
    for member in task.members:
        for split, block in blocks_of(member, task, spec):
            if split != group.split:
                continue
            ids.append(block.ids)
            for name, read in readers.items():
                parts[name].append(read(member, block))
    keys = splitmix64(np.concatenate(ids)) if ids else np.zeros(0, np.uint64)
    # The number of rows as a last check that the split is still what it was.
    if len(keys) != group.num_samples:
        raise IntegrityError(f"the source yields {len(keys):,} of its {group.num_samples:,} rows.", where=group.name)
    # The shuffle of the shards is repeated, from ids alone: nothing is read back from them.
    order = pa.array(sorting_order(keys)) if in_row_order else None
    joined = {name: pa.concat_arrays(each) for name, each in parts.items()}
    return {name: values if order is None else values.take(order) for name, values in joined.items()}
