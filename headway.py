"""The `headway` command's first step: make sure the four packages it stands on are Headway's own.

`training` and `tasks` are common folder names. A project that has its own, put before Headway on the
path, would be imported in our place; it is named here instead of failing somewhere deep.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import os
import sys
from pathlib import Path

PACKAGES = ("data_contracts", "training", "tasks", "flows")
HOME = Path(__file__).resolve().parent


def intruders() -> list[str]:
    """Folders and modules that would be imported in place of Headway's own packages."""
    found = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None:
            continue
        places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
        found += [str(place) for place in places if Path(place).resolve() != HOME / package]
    return found


def main() -> None:
    if strangers := intruders():
        print(
            f"headway: {', '.join(strangers)} hides Headway's own package of that name. "
            "Take that project's folder off PYTHONPATH, or start `headway` from another folder.",
            file=sys.stderr,
        )
        sys.exit(2)
    # What is imported here stays: to look for garbage in it every 700 objects takes a fifth of a command's start.
    gc.set_threshold(50_000, 20, 20)
    ends_with: list[int] = []
    atexit.register(leave, ends_with)  # registered before all others, so it comes after them
    from flows.command_line import run

    ends_with.append(run())
    sys.exit(ends_with[0])


def leave(ends_with: list[int]) -> None:
    """End now. All is said and closed; to unload every module takes a second, in which DuckDB complains of leaks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if ends_with:
        os._exit(ends_with[0])


if __name__ == "__main__":
    main()
