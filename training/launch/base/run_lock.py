"""One owner a run: the kernel drops the lock with the process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.data_contracts.store.errors import HeadwayError, RunBusy
from headway.data_contracts.store.places import all_named, naming_the_place
from headway.data_contracts.store.regular_files import open_lock, open_unbuffered
from headway.training.launch.base.protocol import DETACHED

NAME = "owner.lock"
POLL_S = 0.05


@contextlib.contextmanager
def owning(folder: Path, run: str = "") -> Iterator[None]:
    """Hold a run's folder, or one in it, exclusively.

    Args:
        run: the run's name, where the folder has another.

    Raises:
        RunBusy: another process holds it; the message names it.
        EnvironmentProblem: the lock file cannot be written.
    """

    def busy(owner: str) -> RunBusy:
        return RunBusy(
            f"another process trains this run already ({owner}).",
            where=str(folder),
            advice="The same command with `--wait` waits for it; "
            f"`headway stop {run or folder.name}` ends it, and a checkpoint is kept.",
        )

    with locked(folder / NAME, busy):
        yield


@contextlib.contextmanager
def locked(path: Path, busy: Callable[[str], HeadwayError], *, within_s: float = 0.0) -> Iterator[None]:
    """Hold a lock file exclusively, and say in it who does.

    Args:
        busy: what is raised where another process, which it is given, still holds it after so long.

    Raises:
        EnvironmentProblem: the lock file cannot be written.
    """
    with naming_the_place(str(path)):
        descriptor = open_lock(path)
    try:
        _acquire(descriptor, busy, time.monotonic() + within_s)
        # Truncated only once the lock is held: before, the content names the owner that keeps us out.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, busy: Callable[[str], HeadwayError], deadline_s: float) -> None:
    while True:
        try:
            # `flock`, not `lockf`: it belongs to the open file, and another close in this process does not drop it.
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            # Asked without waiting, in a loop: a blocking `flock` knows no deadline.
            if time.monotonic() >= deadline_s:
                raise busy(_owner(descriptor)) from error
            time.sleep(POLL_S)


def owner_of(run_dir: Path) -> str | None:
    """Who holds the run's folder; None when nobody does."""
    try:
        stream = open_unbuffered(run_dir / NAME)
    except FileNotFoundError:
        return None
    with stream:
        try:
            # Shared, so that two who only look never take each other for an owner.
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _owner(stream.fileno())
    return None


def holder_of(run_dir: Path) -> str | None:
    """Who trains the run, or watches the job that does or will; None where nobody is."""
    return owner_of(run_dir) or owner_of(run_dir / DETACHED)


def is_at_work(run_dir: Path) -> bool:
    """Whether anybody trains the run, or verifies, evaluates or exports what it made."""
    return any(owner_of(lock.parent) is not None for lock in all_named(NAME, run_dir))


def _owner(descriptor: int) -> str:
    with contextlib.suppress(ValueError, KeyError):
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"pid {owner['pid']} on {owner['host']}"
    return "its pid is unknown"
