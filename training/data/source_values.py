"""What the source says of each example of a split: columns that no shard keeps, in the shards' own order.

A row's group, split and place are functions of its file's path, its number there and the spec. So the files say again
which row of a shard was which of theirs, and any column of theirs can be had without a byte more in the shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from data_contracts.documents import ShardGroup, ShardManifest
from data_contracts.errors import IntegrityError
from training.data.bucket_shuffle import sorting_order
from training.data.row_blocks import blocks_of
from training.data.source_columns import column_of, plain
from training.data.spec import ShardSpec
from training.data.splitmix import splitmix64
from training.data.splits import GroupTask, SourceRows, plan_groups

if TYPE_CHECKING:
    import pyarrow as pa

PATH = "path"
"""A column that every source has: of one that brings none, the path of a row's file."""


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
    import pyarrow as pa

    spec = ShardSpec.model_validate(manifest.spec)
    tasks = {task.group: task for task in plan_groups(sources, spec) if split in task.splits}
    found: dict[str, list[pa.Array]] = {name: [] for name in columns}
    for group in (group for group in manifest.groups if group.split == split):
        task = tasks.get(group.group)
        if task is None or tuple(member.path for member in task.members) != group.documents:
            raise IntegrityError("the source's files are not those of the shards.", where=manifest.link.short)
        for name, values in _values_of_group(task, group, spec, columns, in_row_order).items():
            found[name].append(values)
    return {name: pa.concat_arrays(parts) for name, parts in found.items()}


def _values_of_group(
    task: GroupTask, group: ShardGroup, spec: ShardSpec, columns: Sequence[str], in_row_order: bool
) -> dict[str, pa.Array]:
    import pyarrow as pa

    ids: list[Any] = []
    parts: dict[str, list[pa.Array]] = {name: [] for name in columns}
    for member in task.members:
        for split, block in blocks_of(member, task, spec):
            if split != group.split:
                continue
            ids.append(block.ids)
            for name in columns:
                has_none = name == PATH and block.batch.schema.get_field_index(PATH) < 0
                whole = pa.repeat(block.path, len(block.ids)) if has_none else None
                parts[name].append(plain(column_of(block.batch, name, block.path)) if whole is None else whole)
    keys = splitmix64(np.concatenate(ids)) if ids else np.zeros(0, np.uint64)
    if len(keys) != group.num_samples:
        raise IntegrityError(f"the source yields {len(keys):,} of its {group.num_samples:,} rows.", where=group.name)
    order = pa.array(sorting_order(keys)) if in_row_order else None
    joined = {name: pa.concat_arrays(each) for name, each in parts.items()}
    return {name: values if order is None else values.take(order) for name, values in joined.items()}
