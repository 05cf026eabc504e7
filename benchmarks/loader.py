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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from benchmarks.figures import Figure, show
from benchmarks.loader_contenders import Contender, contenders, gather, ours_prefetched, ours_with_work
from benchmarks.loader_data import TASKS, Task, make
from benchmarks.loader_peers import PeerProcess, obstacles
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.order.block_gather import BLOCK_BYTES

SLICE_BYTES = 96 << 20

TARGETS = {
    ("tokens", "exact order"): ">= 0.9",
    ("tabular", "exact order"): ">= 0.7",
    ("tabular", "window shuffle"): ">= 1.3",
}


def wall_with_prefetching(task: Task, reader: ShardReader, shuffle: str, rounds: int) -> float:
    """Wall seconds without prefetching over those with it, beside work in the processor's own cache."""
    matrix = torch.rand(192, 192)
    blocks = gather(task, reader, shuffle)
    block_s = statistics.median(_wall_s(partial(blocks.block, number)) for number in range(8))
    product_s = statistics.median(_wall_s(lambda: matrix @ matrix) for _ in range(32))
    num_products = max(1, round(block_s / product_s))

    def work() -> None:
        for _ in range(num_products):
            torch.mm(matrix, matrix)

    alone, ahead = ours_with_work(task, reader, shuffle, work), ours_prefetched(task, reader, shuffle, work)
    num_batches = max(1, SLICE_BYTES // (task.row_bytes * task.batch_rows) // _gather_unit(task)) * _gather_unit(task)
    ratios = [_wall_s(lambda: alone(num_batches)) / _wall_s(lambda: ahead(num_batches)) for _ in range(rounds + 1)]
    return statistics.median(ratios[1:])


def _wall_s(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


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
        target = TARGETS.get((task.name, name), "")
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
