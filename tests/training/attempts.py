"""Attempts of a run, begun without anybody to supervise them."""

from __future__ import annotations

from pathlib import Path

from training.launch.mandate import NAME, Mandate, grant
from training.launch.spec import attempt_folder


def begin(run_dir: Path, number: int) -> Mandate:
    """What the ranks of this attempt publish under, until a later one begins."""
    folder = attempt_folder(run_dir, number)
    folder.mkdir(parents=True)
    grant(run_dir, folder)
    return Mandate(folder / NAME)
