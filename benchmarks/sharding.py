"""What sharding a table costs, against reading and writing its bytes, DuckDB and polars.

    python -m benchmarks.sharding [--json] [--rows 2000000] [--scales 1,4,16] [--rounds 3] [--peers PYTHON]

The table has 15 float32 and 5 int64 columns, 100 bytes a row, in 16 files. The limit reads it and writes it again, in
no new order. Headway reads as its flow does, splits by row, standardises numbers, numbers categories, shuffles, writes,
hashes and syncs; fitted state and source digests are given. CPU seconds are of the work alone, without imports;
contenders take turns, medians are compared. Growth is measured under one memory bound, in a process that may hold no
more than a fixed amount of data.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, show
from benchmarks.measure import Usage, interleaved, measure
from benchmarks.sharding_work import NUM_FLOATS, NUM_INTS, ROWS_PER_ROW_GROUP

NUM_FILES = 16
BYTES_A_ROW = 4 * NUM_FLOATS + 8 * NUM_INTS
MEMORY_MB = 64
LIMIT_BYTES = 1 << 31
"""For all private memory that is asked for, touched or not: stacks, arenas and libraries take a third of it."""
CPU_TARGETS = {"none": ">= 0.5", "zstd": ">= 0.65"}


def write_table(folder: Path, num_rows: int) -> Path:
    """The source, the same for the same size."""
    folder.mkdir(parents=True)
    for file in range(NUM_FILES):
        random = np.random.default_rng(file)
        with pq.ParquetWriter(folder / f"part-{file:02d}.parquet", _piece(random, 1).schema) as writer:
            for first in range(0, num_rows // NUM_FILES, ROWS_PER_ROW_GROUP):
                writer.write_table(_piece(random, min(ROWS_PER_ROW_GROUP, num_rows // NUM_FILES - first)))
    return folder


def _piece(random: np.random.Generator, num_rows: int) -> pa.Table:
    floats = {f"f{number}": random.normal(0.5, 2, num_rows).astype(np.float32) for number in range(NUM_FLOATS)}
    return pa.table(floats | {f"i{number}": random.integers(0, 1000, num_rows) for number in range(NUM_INTS)})


def command(python: str, name: str, source: Path, target: Path, codec: str, *more: str) -> list[str]:
    return [python, "-m", "benchmarks.sharding_work", name, str(source), str(target), codec, *more]


def has_polars(python: str) -> bool:
    return subprocess.run([python, "-c", "import polars"], capture_output=True).returncode == 0


def median(usages: Sequence[Usage], what: str) -> float:
    return float(statistics.median(json.loads(usage.output)[what] for usage in usages))


def cost(source: Path, folder: Path, codec: str, num_bytes: int, rounds: int, peers: str) -> list[Figure]:
    """CPU and wall seconds of everyone at one size."""
    commands = {
        "raw": command(sys.executable, "raw", source, folder / "raw", codec),
        "headway": command(sys.executable, "headway", source, folder / "headway", codec),
        "duckdb": command(peers, "duckdb", source, folder / "duckdb", codec),
    }
    if has_polars(peers):
        commands["polars"] = command(peers, "polars", source, folder / "polars", codec)
    used = interleaved(commands, rounds=rounds)
    cpu_s = {name: median(usages, "cpu_s") for name, usages in used.items()}
    wall_s = {name: median(usages, "wall_s") for name, usages in used.items()}
    figures = [
        Figure(name=f"{codec}: read and write alone", value=num_bytes / 1e6 / cpu_s["raw"], unit="MB/CPU-s"),
        Figure(
            name=f"{codec}: Headway",
            value=cpu_s["raw"] / cpu_s["headway"],
            ratio_to="read and write alone, CPU",
            target=CPU_TARGETS[codec],
        ),
        Figure(
            name=f"{codec}: Headway, wall",
            value=wall_s["duckdb"] / wall_s["headway"],
            ratio_to="DuckDB ORDER BY hash, wall",
            target=">= 1",
        ),
    ]
    others = [name for name in commands if name not in ("raw", "headway")]
    for name in others:
        figures.append(
            Figure(name=f"{codec}: {name}", value=cpu_s["raw"] / cpu_s[name], ratio_to="read and write alone, CPU")
        )
    for name in ("headway", *others):
        peak = statistics.median(usage.peak_rss_bytes for usage in used[name])
        figures.append(Figure(name=f"{codec}: {name}, peak memory", value=peak / 1e6, unit="MB"))
    return figures


def growth(folder: Path, num_rows: int, scales: Sequence[int]) -> list[Figure]:
    """Peak memory and CPU a row at several sizes, within one memory bound and one limit of the process."""
    used: dict[int, Usage] = {}
    for scale in scales:
        source = write_table(folder / f"x{scale}", num_rows * scale)
        arguments = ("headway", source, folder / "grown", "none", str(MEMORY_MB))
        used[scale] = measure([sys.executable, "-m", "benchmarks.sharding", "--limited", *map(str, arguments)])
    first, last = used[scales[0]], used[scales[-1]]
    figures = [
        Figure(name=f"{scale}x: peak memory", value=usage.peak_rss_bytes / 1e6, unit="MB")
        for scale, usage in used.items()
    ]
    return [
        *figures,
        Figure(
            name=f"peak memory at {scales[-1]}x",
            value=last.peak_rss_bytes / first.peak_rss_bytes,
            ratio_to=f"peak memory at {scales[0]}x",
            target="<= 1.15",
        ),
        Figure(
            name=f"CPU a row at {scales[-1]}x",
            value=median([last], "cpu_s") / median([first], "cpu_s") / (scales[-1] / scales[0]),
            ratio_to=f"CPU a row at {scales[0]}x",
            target="<= 1.25",
        ),
        Figure(name="data segment's limit, kept", value=LIMIT_BYTES / 1e6, unit="MB"),
    ]


def work_within_limit(arguments: Sequence[str]) -> None:
    """Become a contender whose data segment cannot outgrow the limit: an allocation beyond it fails."""
    from benchmarks import sharding_work

    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    sys.argv[1:] = arguments
    sharding_work.main()


def main() -> None:
    if sys.argv[1:2] == ["--limited"]:
        work_within_limit(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharding", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--scales", default="1,4,16", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=sys.executable, help="an interpreter with duckdb, and perhaps polars")
    parser.add_argument("--scratch", type=Path, help="where to put data; 2 KB a row at 16x")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        folder = Path(name)
        source = write_table(folder / "source", arguments.rows)
        figures = []
        for codec in CPU_TARGETS:
            size_bytes = arguments.rows * BYTES_A_ROW
            figures += cost(source, folder, codec, size_bytes, arguments.rounds, arguments.peers)
        if arguments.scales:
            figures += growth(folder, arguments.rows, arguments.scales)
    show(figures, title="Sharding", as_json=arguments.json, libraries=("duckdb", "numpy", "pyarrow"))


if __name__ == "__main__":
    main()
