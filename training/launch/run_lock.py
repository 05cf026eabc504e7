"""One owner a run: the kernel drops the lock with the process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from data_contracts.errors import RunBusy
from training.launch.protocol import DETACHED

NAME = "owner.lock"


@contextlib.contextmanager
def owning(folder: Path, run: str = "") -> Iterator[None]:
    """Hold a run's folder, or one in it, exclusively.

    Args:
        run: the run's name, where the folder has another.

    Raises:
        RunBusy: another process holds it; the message names it.
    """
    # Children must not inherit the descriptor: the lock would live as long as they do. Python opens it close-on-exec.
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunBusy(
                f"another process trains this run already ({_owner(descriptor)}).",
                where=str(folder),
                advice="`headway retrain --wait` waits for it; "
                f"`headway stop {run or folder.name}` ends it, and a checkpoint is kept.",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def owner_of(run_dir: Path) -> str | None:
    """Who holds the run's folder; None when nobody does."""
    try:
        descriptor = os.open(run_dir / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(descriptor)
    finally:
        os.close(descriptor)
    return None


def holder_of(run_dir: Path) -> str | None:
    """Who trains the run, or watches the job that does or will; None where nobody is."""
    return owner_of(run_dir) or owner_of(run_dir / DETACHED)


def is_at_work(run_dir: Path) -> bool:
    """Whether anybody trains the run, or verifies, evaluates or exports what it made."""
    return any(owner_of(lock.parent) is not None for lock in run_dir.rglob(NAME))


def _owner(descriptor: int) -> str:
    with contextlib.suppress(ValueError, KeyError):
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"pid {owner['pid']} on {owner['host']}"
    return "its pid is unknown"
