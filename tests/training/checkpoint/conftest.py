"""Gangs whose ranks are threads of the test, and checkpoints of a few numbers."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.data_contracts.store.documents import CheckpointManifest, DeviceFingerprint, Link
from headway.training.checkpoint import verified_files
from headway.training.checkpoint.pieces import Content
from headway.training.checkpoint.save import Checkpointer
from headway.training.ranks.distributed import ProcessGroup
from tests.waiting import DEADLINE_S

RUN = Link(kind="run", sha256="a" * 64)
FINGERPRINT = DeviceFingerprint(device="cpu", machine="m", cpu_capability="c", torch="t", num_threads=1)


@dataclass
class Meeting:
    barrier: threading.Barrier
    rows: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadGang(ProcessGroup):
    meeting: Meeting

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        self.meeting.rows[self.rank] = values
        self.meeting.barrier.wait()
        gathered = torch.cat([self.meeting.rows[rank] for rank in range(self.world_size)])
        self.meeting.barrier.wait()
        return gathered


def run_in_gang(world_size: int, work: Callable[[ProcessGroup], Any]) -> list[Any]:
    """What `work` returns, or raises, on each rank. A rank that raises leaves; the others find its chair empty."""
    meeting = Meeting(threading.Barrier(world_size, timeout=DEADLINE_S))
    results: list[Any] = [None] * world_size

    def live(rank: int) -> None:
        process_group = ThreadGang(rank=rank, world_size=world_size, device=torch.device("cpu"), meeting=meeting)
        try:
            results[rank] = work(process_group)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return results


class Disk:
    """What a power cut would leave: bytes of files, and names in folders, since they were made durable last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._written: set[int] = set()
        self._names: dict[int, set[str]] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync_and_note)

    def _fsync_and_note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = set(os.listdir(descriptor))
        else:
            self._written.add(status.st_ino)

    def names(self, folder: Path) -> set[str]:
        """Empty where nobody asked for it."""
        return self._names.get(folder.stat().st_ino, set())

    def has_bytes(self, file: Path) -> bool:
        return file.stat().st_ino in self._written


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of a checkpoint's files got."""
    read: list[int] = []

    def preadv(*arguments: Any) -> int:
        read.append(os.preadv(*arguments))
        return read[-1]

    class Os:
        def __getattr__(self, name: str) -> Any:
            return preadv if name == "preadv" else getattr(os, name)

    monkeypatch.setattr(verified_files, "os", Os())
    return read


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def make_content(step: int, tensors: Any, **changes: Any) -> Content:
    fields: dict[str, Any] = {
        "run": RUN,
        "step": step,
        "num_samples": 8 * step,
        "tensors": tensors,
        "scalars": {"optimizer_step": step},
        "proof_batch": {"tokens": torch.arange(6).view(2, 3)},
        "proof_loss": 1.25,
        "fingerprint": FINGERPRINT,
    }
    return Content(**{**fields, **changes})


@pytest.fixture(scope="session")
def in_gang() -> Callable[..., list[Any]]:
    return run_in_gang


@pytest.fixture(scope="session")
def content() -> Callable[..., Content]:
    return make_content


@pytest.fixture(scope="session")
def run() -> Link:
    return RUN


def save_checkpoint(
    checkpoints: Path, content: Content, process_group: ProcessGroup, *, newest: CheckpointManifest | None = None
) -> CheckpointManifest | None:
    """Write `checkpoints/step-NNNNNNNN/` and wait for it, all ranks together. Returns the manifest, on rank 0.

    Raises:
        EnvironmentProblem: no space left, or writing is refused; older checkpoints are untouched.
    """
    with Checkpointer(checkpoints, process_group, newest=newest) as checkpointer:
        checkpointer.save(content)
        return checkpointer.finish()
