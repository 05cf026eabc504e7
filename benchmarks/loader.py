"""How fast the loader serves shuffled batches, against what numpy gathers from a plain memory map of the same rows.

    python -m benchmarks.loader [--json] [--scales 1,4,16] [--peers PYTHON]

One process, files in the page cache, CPU seconds of all its threads, contenders turn about in short slices; medians.
What prefetching is for shows in wall time: batches are served beside work that takes about as long as making them.
Peers run in an environment of their own (see `loader_peers.py`), which holds numpy, torch and some of datasets,
litdata, webdataset and mosaicml-streaming.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.figures import Figure, show
from benchmarks.loader_data import TASKS, Made, Task, make
from benchmarks.loader_peers import PeerProcess, obstacles
from training.data.block_gather import BLOCK_BYTES, BlockGather
from training.data.loader import ShardReader
from training.data.order_spec import OrderSpec
from training.data.prefetch import Prefetcher
from training.data.sample_order import sample_order

SLICE_BYTES = 96 << 20
PREFETCH_BYTES = 8 << 20
WINDOW_ROW_GROUPS = 4
Contender = Callable[[int], None]
"""Serves that many batches, going on where it stopped."""

TARGETS = {
    ("tokens", "exact order"): ">= 0.9",
    ("tabular", "exact order"): ">= 0.7",
    ("tabular", "window shuffle"): ">= 1.3",
}


def contenders(task: Task, made: Made, reader: ShardReader) -> dict[str, Contender]:
    return {
        "memmap gather": _memmap(task, made),
        "take from an array": _take(task, made),
        "torch DataLoader, __getitems__": _data_loader(task, made),
        "exact order": _ours(task, reader, "exact"),
        "window shuffle": _ours(task, reader, "window"),
        "exact order, prefetched": _ours_prefetched(task, reader, "exact"),
        "window shuffle, prefetched": _ours_prefetched(task, reader, "window"),
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


def _gather(task: Task, reader: ShardReader, shuffle: str) -> BlockGather:
    order = sample_order(
        OrderSpec.model_validate({"shuffle": shuffle, "window_row_groups": WINDOW_ROW_GROUPS}), reader, seed=0
    )
    return BlockGather(reader, order, batch_rows=task.batch_rows)


def _cut(block: Mapping[str, torch.Tensor], num_batches: int) -> Iterator[dict[str, torch.Tensor]]:
    """Tensors of each batch of a block."""
    parts = {name: rows.view(num_batches, -1, *rows.shape[1:]).unbind() for name, rows in block.items()}
    return (dict(zip(parts, batch, strict=True)) for batch in zip(*parts.values(), strict=True))


def _ours(task: Task, reader: ShardReader, shuffle: str) -> Contender:
    blocks = _gather(task, reader, shuffle)

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


def _ours_prefetched(task: Task, reader: ShardReader, shuffle: str, work: Callable[[], object] = int) -> Contender:
    """A prefetcher a slice, so that all of its work falls into the slice. `work` is done on each block."""
    blocks, done = _gather(task, reader, shuffle), 0

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


def _ours_with_work(task: Task, reader: ShardReader, shuffle: str, work: Callable[[], object]) -> Contender:
    """Makes a block and works on it, in turn."""
    blocks, number = _gather(task, reader, shuffle), 0

    def serve(num_batches: int) -> None:
        nonlocal number
        for _ in range(num_batches // blocks.batches_per_block):
            for _ in _cut(blocks.block(number), blocks.batches_per_block):
                pass
            work()
            number += 1

    return serve


def wall_with_prefetching(task: Task, reader: ShardReader, shuffle: str, rounds: int) -> float:
    """Wall seconds without prefetching over those with it, beside work in the processor's own cache."""
    matrix = torch.rand(192, 192)
    blocks = _gather(task, reader, shuffle)
    block_s = statistics.median(_wall_s(partial(blocks.block, number)) for number in range(8))
    product_s = statistics.median(_wall_s(lambda: matrix @ matrix) for _ in range(32))
    num_products = max(1, round(block_s / product_s))

    def work() -> None:
        for _ in range(num_products):
            torch.mm(matrix, matrix)

    alone, ahead = _ours_with_work(task, reader, shuffle, work), _ours_prefetched(task, reader, shuffle, work)
    num_batches = max(1, SLICE_BYTES // (task.row_bytes * task.batch_rows) // _gather_unit(task)) * _gather_unit(task)
    ratios = [_wall_s(lambda: alone(num_batches)) / _wall_s(lambda: ahead(num_batches)) for _ in range(rounds + 1)]
    return statistics.median(ratios[1:])


def _wall_s(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def rows_per_cpu_s(
    task: Task, ours: Mapping[str, Contender], peers: Mapping[str, PeerProcess], rounds: int
) -> dict[str, float]:
    """Medians over the rounds, each of which asks everybody for a slice."""
    unit = _gather_unit(task)
    num_batches = max(1, SLICE_BYTES // (task.row_bytes * task.batch_rows) // unit) * unit
    found: dict[str, list[float]] = {name: [] for name in (*ours, *peers)}
    gc.collect()
    gc.disable()  # the data loader's million indices would be walked again and again, on others' time
    for number in range(rounds + 1):
        for name, serve in ours.items():
            started_s = time.process_time()
            serve(num_batches)
            used_s = time.process_time() - started_s
            if number:  # the first round only warms up
                found[name].append(num_batches * task.batch_rows / used_s)
        if number % 8 == 1:
            for name, peer in peers.items():
                found[name].append(peer.rows_per_cpu_s())
    gc.enable()
    return {name: statistics.median(rates) for name, rates in found.items()}


def _gather_unit(task: Task) -> int:
    """Batches of a whole block, so that a prefetched slice has no rest."""
    return max(1, BLOCK_BYTES // (task.row_bytes * task.batch_rows))


def measure(task: Task, scale: int, folder: Path, peers: str | None, rounds: int) -> list[Figure]:
    made = make(task, scale, folder)
    started_s = time.process_time()
    reader = ShardReader(made.workspace, made.manifest, "train")
    opened_s = time.process_time() - started_s
    label = f"{task.name} {scale}x"
    with PeerProcess.all(peers if scale == 1 else None, task, made) as others:
        rates = rows_per_cpu_s(task, contenders(task, made, reader), others, rounds)
    limit = rates.pop("memmap gather")
    figures = [Figure(name=f"{label}: memmap gather", value=limit, unit="rows/CPU-s")]
    for name, rate in rates.items():
        target = TARGETS.get((task.name, name.removesuffix(", prefetched")), "")
        figures.append(Figure(name=f"{label}: {name}", value=rate / limit, ratio_to="memmap gather", target=target))
    for shuffle, kind in (("exact order", "exact"), ("window shuffle", "window")):
        ratio = rates[f"{shuffle}, prefetched"] / rates[shuffle]
        wall = wall_with_prefetching(task, reader, kind, rounds)
        without = f"{shuffle} without"
        figures += [
            Figure(name=f"{label}: {shuffle}, prefetched, per CPU second", value=ratio, ratio_to=without),
            Figure(name=f"{label}: {shuffle}, prefetched, beside work", value=wall, ratio_to=without, target=">= 1"),
        ]
    if others:
        best = max(others, key=lambda name: rates[name])
        figures.append(
            Figure(
                name=f"{label}: exact order against the best streaming peer",
                value=rates["exact order"] / rates[best],
                ratio_to=best,
                target=">= 8",
            )
        )
    verified = made.num_rows * task.row_bytes / opened_s
    figures.append(Figure(name=f"{label}: verified when opened", value=verified / 1e6, unit="MB/CPU-s"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--scales", default="1,4,16", help="multiples of 50 MB to measure at")
    parser.add_argument("--rounds", type=int, default=24, help="slices of each contender")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter of an environment with the peers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = []
    for name, obstacle in obstacles(arguments.peers).items():
        if obstacle:
            print(f"not measured: {name}: {obstacle}", file=sys.stderr)
    for task in TASKS:
        for scale in map(int, arguments.scales.split(",")):
            with tempfile.TemporaryDirectory(prefix="headway-loader-") as folder:
                figures += measure(task, scale, Path(folder), arguments.peers, arguments.rounds)
    show(figures, title="Loader", as_json=arguments.json, libraries=("torch", "numpy"))


if __name__ == "__main__":
    main()
