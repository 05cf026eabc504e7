"""What `benchmarks.checkpoint` measures, on one rank.

`python -m benchmarks.checkpoint_work FOLDER MEGABYTES ROUNDS PEERS`

Every method saves the same state, of a model with AdamW's two moments, sharded over the ranks as FSDP2 does. The
methods take turns within a round, and each begins with all ranks ready and nothing left to flush. The slowest rank
counts. What training loses is measured beside a stand-in for a step's forward and backward passes, of about 100 ms,
which is timed alone just before and just after. Rank 0 prints one JSON object: seconds by method and phase, in the
order of the rounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from blake3 import blake3
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.placement_types import Shard

from headway.data_contracts.store.documents import DeviceFingerprint, Link
from headway.training.checkpoint import recycled_files
from headway.training.checkpoint.layout import directory_name
from headway.training.checkpoint.pieces import Content, pieces_of
from headway.training.checkpoint.read import verify_checkpoint
from headway.training.checkpoint.retention import discard_expired
from headway.training.checkpoint.save import Checkpointer, SavedCheckpoint
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.ranks.distributed import ProcessGroup

WIDTH = 1024
CHUNK_BYTES = 4 << 20
STEP_S = 0.1
KEEP = CheckpointSpec(keep_last=2)
Times = dict[str, float]


def model_state(megabytes: int) -> dict[str, Tensor]:
    """Matrices of 4 MiB with two moments each, and a bias each, as transformers have them; sharded by rows."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    state: dict[str, Tensor] = {}
    for number in range(max(1, megabytes // 12)):
        for kind in ("model", "optimizer.mean", "optimizer.mean_square"):
            for name, shape in (("weight", (WIDTH, WIDTH)), ("bias", (WIDTH,))):
                state[f"{kind}.layers.{number}.{name}"] = distribute_tensor(torch.randn(shape), mesh, [Shard(0)])
    return state


def content(step: int, state: dict[str, Tensor]) -> Content:
    return Content(
        run=Link(kind="run", sha256="0" * 64),
        step=step,
        num_samples=step,
        tensors={name: value for name, value in state.items() if name.startswith("model.")},
        moments={name: value for name, value in state.items() if not name.startswith("model.")},
        scalars={},
        proof_batch={"tokens": torch.zeros(4, 128, dtype=torch.int64)},
        proof_loss=1.0,
        fingerprint=DeviceFingerprint(device="cpu", machine="", cpu_capability="", torch="", num_threads=1),
    )


class StandIn:
    """A forward and a backward pass, and as many more as make up `STEP_S`."""

    def __init__(self) -> None:
        layers = [each for _ in range(4) for each in (nn.Linear(512, 512), nn.GELU())]
        self._model, self._rows, self._num_passes = nn.Sequential(*layers), torch.randn(64, 512), 1
        fastest_s = min(self() for _ in range(20))
        self._num_passes = max(1, round(STEP_S / fastest_s))

    def __call__(self) -> float:
        """Returns the seconds it took."""
        started_s = time.perf_counter()
        for _ in range(self._num_passes):
            self._model(self._rows).square().mean().backward()
        return time.perf_counter() - started_s


class Methods:
    """Each returns seconds by phase; `stall` is how long training stands still, `durable` until all is on disk."""

    def __init__(self, folder: Path, state: dict[str, Tensor], process_group: ProcessGroup) -> None:
        self._folder, self._state, self._process_group = folder, state, process_group
        self._raw = torch.cat([piece.local.flatten() for piece in pieces_of(state).values()]).numpy().view("uint8").data
        self._checkpointer = Checkpointer(folder / "headway", process_group, retain=self._retain, on_saved=self._note)
        self._step, self._durable_s = 0, 0.0
        self._stand_in = StandIn()

    def raw(self) -> Times:
        path = self._folder / f"raw-{self._process_group.rank}"
        path.unlink(missing_ok=True)
        return self._written(path, "wb")

    def raw_over_old(self) -> Times:
        path = self._folder / f"raw-old-{self._process_group.rank}"
        return self._written(path, "r+b" if path.exists() else "wb")

    def _written(self, path: Path, mode: Literal["wb", "r+b"]) -> Times:
        with self._timed() as times:
            with path.open(mode, buffering=0) as file:
                left = self._raw
                while left:
                    left = left[file.write(left[:CHUNK_BYTES]) :]
                os.fsync(file.fileno())
            self._lap(times, "durable")
        return times

    def headway(self) -> Times:
        with self._timed() as times:
            self._save()
            self._checkpointer.finish()
            self._gather(times, durable=self._durable_s)
        return times

    def headway_beside_a_step(self) -> Times:
        """The next update is asked for as soon as the step's passes are done."""
        alone_s = self._stand_in()
        with self._timed() as times:
            self._save()
            call_s = time.perf_counter() - self._started_s
            beside_s = self._stand_in()
            started_s = time.perf_counter()
            self._checkpointer.finish_staging()
            wait_s = time.perf_counter() - started_s
            self._checkpointer.finish()
            alone_s = (alone_s + self._stand_in()) / 2
            stall_s = call_s + wait_s
            self._gather(
                times,
                stall=stall_s,
                wait=wait_s,
                beside=beside_s,
                alone=alone_s,
                lost=stall_s + beside_s - alone_s,
                durable=self._durable_s,
            )
        return times

    def _save(self) -> None:
        self._step += 1
        self._checkpointer.save(content(self._step, self._state))

    def _note(self, saved: SavedCheckpoint) -> None:
        self._durable_s = saved.durable_s

    def headway_new(self) -> Times:
        if self._process_group.leads:
            recycled_files.drop(self._folder / "headway")
        return self.headway()

    def keep_as_many_as_a_run(self) -> None:
        """From now on one expires at each save, and the next is written over its files."""
        for _ in range(KEEP.keep_last):
            self.headway()

    def _retain(self, step: int) -> None:
        discard_expired(self._folder / "headway", KEEP, known_good={step})

    def torch_save(self) -> Times:
        path = self._folder / f"torch-{self._process_group.rank}"
        path.unlink(missing_ok=True)
        local = {name: piece.local for name, piece in pieces_of(self._state).items()}
        with self._timed() as times:
            with path.open("wb") as file:
                torch.save(local, file)
                file.flush()
                os.fsync(file.fileno())
            self._lap(times, "durable")
        return times

    def dcp_save(self) -> Times:
        from torch.distributed.checkpoint.state_dict_saver import save

        self._forget(self._folder / "dcp")
        with self._timed() as times:
            save(self._state, checkpoint_id=self._folder / "dcp")
            self._lap(times, "durable")
        return times

    def dcp_async_save(self) -> Times:
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self._forget(self._folder / "dcp-async")
        with self._timed() as times:
            future: Any = async_save(self._state, checkpoint_id=self._folder / "dcp-async")
            self._lap(times, "stall")
            future.result()
            self._lap(times, "durable")
        return times

    def cold_read(self) -> Times:
        """Of every file of the newest checkpoint, by one process, in the same pieces; alone, and with BLAKE3."""
        times: Times = {}
        if self._process_group.leads:
            files = self._cold()
            started_s = time.perf_counter()
            _read(files, lambda _part: None)
            times["durable"] = time.perf_counter() - started_s
            files = self._cold()
            digest = blake3()
            started_s = time.perf_counter()
            _read(files, digest.update)
            times["blake3"] = time.perf_counter() - started_s
        return times

    def verify(self) -> Times:
        """The newest checkpoint, whole, by one process."""
        times: Times = {}
        if self._process_group.leads:
            self._cold()
            started_s = time.perf_counter()
            verify_checkpoint(self._folder / "headway" / directory_name(self._step))
            times["durable"] = time.perf_counter() - started_s
        return times

    def _cold(self) -> list[Path]:
        """The newest checkpoint's files, none of which is in memory any more."""
        files = sorted((self._folder / "headway" / directory_name(self._step)).iterdir())
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return files

    @contextlib.contextmanager
    def _timed(self) -> Iterator[Times]:
        os.sync()
        self._process_group.barrier()
        self._started_s = time.perf_counter()
        yield {}

    def _lap(self, times: Times, phase: str) -> None:
        self._gather(times, **{phase: time.perf_counter() - self._started_s})

    def _gather(self, times: Times, **own_s: float) -> None:
        slowest = self._process_group.gather(torch.tensor([list(own_s.values())], dtype=torch.float64)).amax(dim=0)
        times |= zip(own_s, slowest.tolist(), strict=True)

    def _forget(self, folder: Path) -> None:
        self._process_group.barrier()
        if self._process_group.leads:
            shutil.rmtree(folder, ignore_errors=True)
        self._process_group.barrier()


def _read(files: list[Path], use: Callable[[memoryview], object]) -> None:
    part = memoryview(bytearray(CHUNK_BYTES))
    for path in files:
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(part):
                use(part[:got])


def main() -> None:
    folder, megabytes, rounds, peers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "peers"
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    methods = Methods(
        folder, model_state(megabytes), ProcessGroup(rank=rank, world_size=world_size, device=torch.device("cpu"))
    )
    turns = {
        "raw": methods.raw,
        "headway": methods.headway,
        "headway, beside a step": methods.headway_beside_a_step,
        "headway, new": methods.headway_new,
        "raw over old": methods.raw_over_old,
        "cold read": methods.cold_read,
        "verify": methods.verify,
    }
    if peers:
        turns |= {
            "torch.save": methods.torch_save,
            "dcp.save": methods.dcp_save,
            "dcp.async_save": methods.dcp_async_save,
        }
    found: dict[str, list[Times]] = {name: [] for name in turns}
    for number in range(1 + rounds):
        if number == 1:
            methods.keep_as_many_as_a_run()
        for name, turn in turns.items():
            found[name].append(turn())
    if rank == 0:
        print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
