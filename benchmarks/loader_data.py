"""Data for the loader's benchmark: the same rows as shards, and as one plain array a memory map can gather from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import Link, PayloadColumn, Shard, ShardGroup, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.data.shards.parquet_payload import Bytes2D, payload_of, write_shard

NOTHING = "0" * 64


class Task(NamedTuple):
    """Rows of one kind, `num_rows` of them at 1x: 50 MB."""

    name: str
    columns: tuple[PayloadColumn, ...]
    num_rows: int
    batch_rows: int
    rows_per_row_group: int
    rows_per_shard: int

    @property
    def row_bytes(self) -> int:
        return sum(np.dtype(column.dtype).itemsize * int(np.prod(column.shape)) for column in self.columns)


TASKS = (
    Task("tokens", (PayloadColumn(name="tokens", dtype="uint16", shape=(2048,)),), 12_288, 16, 1024, 8192),
    Task(
        "tabular",
        (
            PayloadColumn(name="numeric", dtype="float32", shape=(15,)),
            PayloadColumn(name="categorical", dtype="int64", shape=(5,)),
        ),
        500_000,
        256,
        4096,
        131_072,
    ),
)


class Made(NamedTuple):
    workspace: Workspace
    manifest: ShardManifest
    array: Path
    """The rows' bytes one after another."""
    num_rows: int


def make(task: Task, scale: int, folder: Path) -> Made:
    """Write both forms, a shard at a time."""
    workspace = Workspace.create(str(folder / f"{task.name}-{scale}x"))
    array = Path(workspace.root) / "rows.bin"
    shards, num_rows = [], task.num_rows * scale
    with array.open("wb") as plain:
        for first in range(0, num_rows, task.rows_per_shard):
            count = min(task.rows_per_shard, num_rows - first)
            payloads = {
                column.name: payload_of(column, _values(column, count, (first, number)))
                for number, column in enumerate(task.columns)
            }
            plain.write(np.concatenate(list(payloads.values()), axis=1).tobytes())
            sink = BytesIO()
            row_groups = write_shard(sink, task.columns, partial(_part, payloads), count, task.rows_per_row_group)
            file = workspace.publish(f"shards/{first:012d}.parquet", sink.getvalue())
            shards.append(Shard(file=file, num_rows=count, row_groups=row_groups))
    return Made(workspace, _manifest(task, shards, num_rows), array, num_rows)


def _part(payloads: Mapping[str, Bytes2D], first: int, last: int) -> dict[str, Bytes2D]:
    return {name: rows[first:last] for name, rows in payloads.items()}


def _values(column: PayloadColumn, count: int, seed: tuple[int, ...]) -> NDArray[Any]:
    generator = np.random.default_rng(seed)
    if column.dtype == "float32":
        return generator.standard_normal((count, *column.shape), dtype=np.float32)
    return generator.integers(0, 2000, (count, *column.shape), dtype=column.dtype)


def _manifest(task: Task, shards: list[Shard], num_rows: int) -> ShardManifest:
    group = ShardGroup(
        group=0, split="train", num_rows=num_rows, num_samples=num_rows, documents=(), shards=tuple(shards)
    )
    return ShardManifest(
        snapshot=Link(kind="snapshot", sha256=NOTHING),
        receipt=Link(kind="receipt", sha256=NOTHING),
        fitted=Link(kind="fitted", sha256=NOTHING),
        spec={},
        columns=task.columns,
        groups=(group,),
        content_sha256=NOTHING,
        libraries={},
    )
