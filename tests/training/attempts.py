"""Attempts of a run, begun without anybody to supervise them."""

from __future__ import annotations

from pathlib import Path

from headway.training.launch.base.fence import NAME, AttemptFence, acquire
from headway.training.launch.base.gang import attempt_folder


def begin(run_dir: Path, number: int) -> AttemptFence:
    """What the ranks of this attempt publish under, until a later one begins."""
    folder = attempt_folder(run_dir, number)
    folder.mkdir(parents=True)
    acquire(run_dir, folder)
    return AttemptFence(folder / NAME)
