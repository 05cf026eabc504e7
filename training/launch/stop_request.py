"""A request to stop a run, left in its folder, where whoever owns the run finds it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from training.launch.protocol import read_json, write_json

NAME = "stop-request.json"


def request_stop(run_dir: Path, reason: str) -> None:
    write_json(run_dir / NAME, {"reason": reason, "unix_s": time.time()})


def requested_stop(run_dir: Path) -> str | None:
    """The reason given, or None when nobody asked."""
    value = read_json(run_dir / NAME)
    return None if value is None else str(value.get("reason", "a stop was requested"))


def clear_stop(run_dir: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (run_dir / NAME).unlink()
