"""One flow at a time: a lock file that the kernel frees when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from data_contracts.errors import RegistryError
from data_contracts.places import naming_the_place

WITHIN_S = 600.0
"""Longer than any registration should take, its upload to a server included."""
POLL_S = 0.05


@contextlib.contextmanager
def holding(path: Path, *, within_s: float = WITHIN_S) -> Iterator[None]:
    """Hold the lock file exclusively, waiting for whoever holds it.

    Raises:
        RegistryError: still held at the deadline; names the holder.
        EnvironmentProblem: the lock file cannot be written.
    """
    with naming_the_place(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Children must not inherit the descriptor: the lock would live as long as they do.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(descriptor, path, within_s)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline_s:
                raise RegistryError(
                    f"another flow has held this for more than {within_s:g} s ({_holder(descriptor)}).",
                    where=str(path),
                    advice="Wait for it, or end it; what was trained is kept.",
                ) from error
            time.sleep(POLL_S)


def _holder(descriptor: int) -> str:
    with contextlib.suppress(ValueError, KeyError):
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"pid {holder['pid']} on {holder['host']}"
    return "its pid is unknown"
