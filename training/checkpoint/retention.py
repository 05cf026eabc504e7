"""Which checkpoints may go, and how one goes."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from training.checkpoint import layout
from training.checkpoint.verify import committed_steps


def expired(steps: Collection[int], *, known_good: Collection[int], keep_last: int) -> tuple[int, ...]:
    """Steps whose checkpoints may be deleted, oldest first.

    The newest `keep_last` stay, and so does the newest that is known to be good, however old it is. While none is
    known to be good, all stay.
    """
    newest = sorted(steps)[-keep_last:] if keep_last > 0 else []
    good = [step for step in steps if step in known_good]
    kept = {*newest, *([max(good)] if good else steps)}
    return tuple(sorted(step for step in steps if step not in kept))


def discard_expired(checkpoints: Path, *, known_good: Collection[int], keep_last: int) -> None:
    """Delete what has expired, its manifest first, so that an interrupted deletion leaves no checkpoint."""
    for step in expired(committed_steps(checkpoints), known_good=known_good, keep_last=keep_last):
        directory = checkpoints / layout.directory_name(step)
        (directory / layout.MANIFEST_NAME).unlink()
        shutil.rmtree(directory)
