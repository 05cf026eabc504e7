"""Who serves shuffled batches in `benchmarks.loader`: this project's loader, plain arrays, and torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from benchmarks.loader_data import Made, Task
from headway.training.config.order_spec import OrderSpec
from headway.training.data.load.prefetch import Prefetcher
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.order.block_gather import BlockGather
from headway.training.data.order.mixing import sample_order

PREFETCH_BYTES = 8 << 20
WINDOW_ROW_GROUPS = 4
Contender = Callable[[int], None]
"""Serves that many batches, going on where it stopped."""


def contenders(task: Task, made: Made, reader: ShardReader) -> dict[str, Contender]:
    return {
        "memmap gather": _memmap(task, made),
        "take from an array": _take(task, made),
        "torch DataLoader, __getitems__": _data_loader(task, made),
        "exact order": _ours(task, reader, "exact"),
        "window shuffle": _ours(task, reader, "window"),
        "exact order, prefetched": ours_prefetched(task, reader, "exact"),
        "window shuffle, prefetched": ours_prefetched(task, reader, "window"),
    }


def _permuted(made: Made, batch_rows: int) -> Iterator[np.ndarray]:
    """Random batches without end; the permutation is made beforehand and costs these contenders nothing."""
    order = np.random.default_rng(0).permutation(made.num_rows)
    while True:
        for first in range(0, made.num_rows - batch_rows + 1, batch_rows):
            yield order[first : first + batch_rows]


def _shape(task: Task, made: Made) -> tuple[str, tuple[int, ...]]:
    if len(task.columns) == 1:
        return task.columns[0].dtype, (made.num_rows, *task.columns[0].shape)
    return "uint8", (made.num_rows, task.row_bytes)


def _mapped(task: Task, made: Made) -> np.ndarray:
    """The plain array, every page of it touched, as verifying does for the shards."""
    dtype, shape = _shape(task, made)
    rows = np.memmap(made.array, dtype, "r", shape=shape)
    rows[..., 0].sum()
    return rows


def _memmap(task: Task, made: Made) -> Contender:
    rows, batches = _mapped(task, made), _permuted(made, task.batch_rows)

    def serve(num_batches: int) -> None:
        for _ in range(num_batches):
            torch.from_numpy(rows[next(batches)])

    return serve


def _take(task: Task, made: Made) -> Contender:
    rows, batches = np.asarray(_mapped(task, made)), _permuted(made, task.batch_rows)

    def serve(num_batches: int) -> None:
        for _ in range(num_batches):
            torch.from_numpy(rows.take(next(batches), axis=0))

    return serve


class _Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, task: Task, made: Made) -> None:
        self._rows = _mapped(task, made)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._rows[index])

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.from_numpy(self._rows[indices])


def _data_loader(task: Task, made: Made) -> Contender:
    loader: torch.utils.data.DataLoader[torch.Tensor] = torch.utils.data.DataLoader(
        _Rows(task, made), batch_size=task.batch_rows, shuffle=True, drop_last=True, collate_fn=lambda batch: batch
    )

    def without_end() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    batches = without_end()

    def serve(num_batches: int) -> None:
        for _ in range(num_batches):
            next(batches)

    return serve


def gather(task: Task, reader: ShardReader, shuffle: str) -> BlockGather:
    order = sample_order(
        OrderSpec.model_validate({"shuffle": shuffle, "window_row_groups": WINDOW_ROW_GROUPS}), reader, seed=0
    )
    return BlockGather(reader, order, batch_rows=task.batch_rows)


def _cut(block: Mapping[str, torch.Tensor], num_batches: int) -> Iterator[dict[str, torch.Tensor]]:
    """Tensors of each batch of a block."""
    parts = {name: rows.view(num_batches, -1, *rows.shape[1:]).unbind() for name, rows in block.items()}
    return (dict(zip(parts, batch, strict=True)) for batch in zip(*parts.values(), strict=True))


def _ours(task: Task, reader: ShardReader, shuffle: str) -> Contender:
    blocks = gather(task, reader, shuffle)

    def without_end() -> Iterator[dict[str, torch.Tensor]]:
        number = 0
        while True:
            yield from _cut(blocks.block(number), blocks.batches_per_block)
            number += 1

    batches = without_end()

    def serve(num_batches: int) -> None:
        for _ in range(num_batches):
            next(batches)

    return serve


def ours_prefetched(task: Task, reader: ShardReader, shuffle: str, work: Callable[[], object] = int) -> Contender:
    """A prefetcher a slice, so that all of its work falls into the slice. `work` is done on each block."""
    blocks, done = gather(task, reader, shuffle), 0

    def serve(num_batches: int) -> None:
        nonlocal done
        stop = done + num_batches // blocks.batches_per_block
        with Prefetcher(
            blocks.block,
            size_bytes=lambda block: sum(rows.nbytes for rows in block.values()),
            max_bytes=PREFETCH_BYTES,
            start=done,
            stop=stop,
        ) as made:
            for block in made:
                for _ in _cut(block, blocks.batches_per_block):
                    pass
                work()
        done = stop

    return serve


def ours_with_work(task: Task, reader: ShardReader, shuffle: str, work: Callable[[], object]) -> Contender:
    """Makes a block and works on it, in turn."""
    blocks, number = gather(task, reader, shuffle), 0

    def serve(num_batches: int) -> None:
        nonlocal number
        for _ in range(num_batches // blocks.batches_per_block):
            for _ in _cut(blocks.block(number), blocks.batches_per_block):
                pass
            work()
            number += 1

    return serve
