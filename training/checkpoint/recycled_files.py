"""Files of an expired checkpoint, kept to be written over: a disk takes them faster than new ones.

New blocks have to be found, and told to the file system's journal, before a file is durable: a quarter of a save.

A spare is, by its name and its rights, what a killed writer leaves: nothing counts it, and whoever looks for leftovers
may take it away. It lies beside the checkpoints, under the name of the file that it was and is to be, so that each rank
finds its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.full_disk import is_out_of_space
from headway.data_contracts.store.leftovers import STAGING_SUFFIX, staging_name
from headway.training.checkpoint.layout import TENSOR_FILES

T = TypeVar("T")

FILE_SYSTEMS = frozenset({"ext4", "xfs"})
"""Where overwriting is faster, and where this machine's kernel knows of everyone who has a file open."""


def keep(checkpoints: Path, expired: Path) -> None:
    """Make spares of an expired checkpoint's files, which is none any more; those of another one go."""
    # One generation: two would hold the space of a whole checkpoint that nobody counts.
    drop(checkpoints)
    if _is_fit(checkpoints):
        for path in expired.glob(TENSOR_FILES):
            # Into the staging name: a leftover of that form counts as nothing, and any cleaner may take it.
            path.rename(checkpoints / staging_name(path.name))


def drop(checkpoints: Path) -> None:
    """Delete all spares."""
    for spare in _recycled(checkpoints, TENSOR_FILES):
        with contextlib.suppress(OSError):  # gone, or it will tell whoever writes here
            spare.unlink()


def take(checkpoints: Path, name: str, size_bytes: int, staging: Path) -> None:
    """Move a spare for the file `name` to `staging`, with any content of that size, if there is one to be had.

    Whoever opened it while it was a checkpoint's is not disturbed: then it is not taken, and goes.
    """
    if not _is_fit(checkpoints):
        return
    # Escaped: a name could hold characters that glob reads as patterns.
    for spare in _recycled(checkpoints, glob.escape(name)):
        try:
            spare.rename(staging)
        except OSError:
            continue  # another's, or gone
        # Under a name that nobody knows: who has not opened it by now never will.
        if _make_own(staging, size_bytes):
            return
        staging.unlink(missing_ok=True)


def with_room(checkpoints: Path, publish: Callable[[], T]) -> T:
    """What `publish` returns. Where the disk is full it is called again, once the spares are gone."""
    try:
        return publish()
    except (OSError, EnvironmentProblem) as error:
        if not is_out_of_space(error.__cause__ or error):
            raise
        # Spares hold the space of one checkpoint; without them there may be room for a smaller one.
        drop(checkpoints)
    return publish()


def _recycled(checkpoints: Path, name: str) -> list[Path]:
    return list(checkpoints.glob(f".{name}.*{STAGING_SUFFIX}"))


def _make_own(path: Path, size_bytes: int) -> bool:
    """Give a file that size, unless anybody else has it: under another name, open or mapped."""
    with contextlib.suppress(OSError):
        # No symbolic link: it could lead to a file outside the run.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # A second name would be someone's hard link, whose content must not change.
            if os.fstat(descriptor).st_nlink == 1:
                _require_sole_holder(descriptor)
                os.ftruncate(descriptor, size_bytes)
                return True
        finally:
            os.close(descriptor)
    return False


def _require_sole_holder(descriptor: int) -> None:
    """Raises `OSError` where somebody has it open or mapped, or where the file system cannot tell.

    The kernel gives a lease to write to the only holder; who opened the file meanwhile would make it send a signal,
    which must not be the usual SIGIO: that ends a process.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _is_fit(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    try:
        device = folder.stat().st_dev
        fields = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return False
    # Device numbers, not paths: bind mounts show one file system under several places.
    kinds = {each[each.index("-") + 1] for each in fields if each[2] == f"{os.major(device)}:{os.minor(device)}"}
    return bool(kinds) and kinds <= FILE_SYSTEMS
