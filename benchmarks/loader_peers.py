"""Peers of the loader, each a process in an environment that has them; run by path, it imports nothing of Headway.

The parent asks for a slice by a line on stdin and gets rows per CPU second back, so that peers run turn about with
everybody else. Data are converted to each peer's own format first, one record a row, shuffled as its manual says.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.loader_data import Made, Task

SLICE_CPU_S = 1.0
MAX_ROWS = 50_000
"""Rows converted for peers: writing more would take minutes, and their rate does not depend on it."""
MODULES = {
    "HF datasets, map style": "datasets",
    "HF datasets, streaming": "datasets",
    "litdata": "litdata",
    "webdataset": "webdataset",
    "mosaic streaming": "streaming",
}


class PeerProcess:
    """One peer in its own process."""

    def __init__(self, python: str, name: str, task: Task, made: Made) -> None:
        job = {
            "name": name,
            "array": str(made.array),
            "num_rows": made.num_rows,
            "batch_rows": task.batch_rows,
            "columns": [[column.name, column.dtype, list(column.shape)] for column in task.columns],
        }
        self._process = subprocess.Popen(
            [python, __file__, json.dumps(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def rows_per_cpu_s(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    @classmethod
    @contextlib.contextmanager
    def all(cls, python: str | None, task: Task, made: Made) -> Iterator[dict[str, PeerProcess]]:
        """Those that the interpreter can import."""
        with contextlib.ExitStack() as stack:
            peers = {}
            for name, obstacle in obstacles(python).items() if python else ():
                if not obstacle:
                    peers[name] = cls(str(python), name, task, made)
                    stack.callback(peers[name].close)
            yield peers


@functools.cache
def obstacles(python: str | None) -> dict[str, str]:
    """By peer, why it cannot be measured; empty where it can."""
    if python is None:
        return dict.fromkeys(MODULES, "no --peers given")
    found = {}
    for name, module in MODULES.items():
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
        found[name] = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
    return found


def _rows(job: dict[str, Any]) -> dict[str, Any]:
    """Columns of the first rows, as arrays."""
    import numpy as np

    sizes = [np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in job["columns"]]
    count = min(job["num_rows"], MAX_ROWS)
    plain = np.fromfile(job["array"], np.uint8, count * sum(sizes)).reshape(count, sum(sizes))
    columns, start = {}, 0
    for (name, dtype, shape), size in zip(job["columns"], sizes, strict=True):
        columns[name] = np.ascontiguousarray(plain[:, start : start + size]).view(dtype).reshape(count, *shape)
        start += size
    return columns


def _hf(columns: dict[str, Any]) -> Any:
    import datasets

    # No unsigned 16-bit tensors in its torch formatter's path: as much as fits, in the width it prefers.
    return datasets.Dataset.from_dict(columns).with_format("torch")


def _hf_map(columns: dict[str, Any], batch_rows: int, folder: Path) -> Any:
    from torch.utils.data import DataLoader

    _hf(columns).save_to_disk(folder / "arrow")
    import datasets

    held = datasets.load_from_disk(str(folder / "arrow")).with_format("torch")
    return lambda: DataLoader(held, batch_size=batch_rows, shuffle=True)


def _hf_streaming(columns: dict[str, Any], batch_rows: int, folder: Path) -> Any:
    import datasets

    _hf(columns).to_parquet(str(folder / "rows.parquet"))
    files = {"train": [str(folder / "rows.parquet")]}
    held = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return lambda: held.shuffle(seed=0, buffer_size=1000).with_format("numpy").batch(batch_rows)


def _litdata(columns: dict[str, Any], batch_rows: int, folder: Path) -> Any:
    import litdata
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder / "litdata"), chunk_bytes="64MB")
    for number in range(len(next(iter(columns.values())))):
        writer[number] = {name: rows[number] for name, rows in columns.items()}
    writer.done()
    writer.merge()
    held = litdata.StreamingDataset(str(folder / "litdata"), shuffle=True)
    return lambda: litdata.StreamingDataLoader(held, batch_size=batch_rows)


def _webdataset(columns: dict[str, Any], batch_rows: int, folder: Path) -> Any:
    import webdataset

    with webdataset.TarWriter(str(folder / "rows.tar")) as tar:
        for number in range(len(next(iter(columns.values())))):
            tar.write({"__key__": f"{number:08d}", **{f"{name}.npy": rows[number] for name, rows in columns.items()}})
    keys = [f"{name}.npy" for name in columns]
    return lambda: (
        webdataset.WebDataset(str(folder / "rows.tar"), shardshuffle=False)
        .shuffle(1000)
        .decode()
        .to_tuple(*keys)
        .batched(batch_rows)
    )


def _mosaic(columns: dict[str, Any], batch_rows: int, folder: Path) -> Any:
    import streaming
    from torch.utils.data import DataLoader

    kinds = {name: f"ndarray:{rows.dtype}:{','.join(map(str, rows.shape[1:]))}" for name, rows in columns.items()}
    with streaming.MDSWriter(out=str(folder / "mds"), columns=kinds) as writer:
        for number in range(len(next(iter(columns.values())))):
            writer.write({name: rows[number] for name, rows in columns.items()})
    held = streaming.StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=batch_rows)
    return lambda: DataLoader(held, batch_size=batch_rows)


BUILDERS: dict[str, Callable[[dict[str, Any], int, Path], Any]] = {
    "HF datasets, map style": _hf_map,
    "HF datasets, streaming": _hf_streaming,
    "litdata": _litdata,
    "webdataset": _webdataset,
    "mosaic streaming": _mosaic,
}


def serve(job: dict[str, Any], folder: Path) -> None:
    """A rate for each line of stdin, going on through epoch after epoch."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # some of them print
    epochs = BUILDERS[job["name"]](_rows(job), job["batch_rows"], folder)
    batches = (batch for _ in iter(int, 1) for batch in epochs())
    for _ in sys.stdin:
        num_rows, started_s = 0, time.process_time()
        while (used_s := time.process_time() - started_s) < SLICE_CPU_S:
            next(batches)
            num_rows += job["batch_rows"]
        print(num_rows / used_s, file=answers, flush=True)


def main() -> None:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="headway-peer-") as folder:
        serve(json.loads(sys.argv[1]), Path(folder))


if __name__ == "__main__":
    main()
