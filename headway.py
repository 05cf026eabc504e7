"""The `headway` command's first step: make sure the four packages it stands on are Headway's own.

`training` and `tasks` are common folder names. A project that has its own, put before Headway on the
path, would be imported in our place; it is named here instead of failing somewhere deep.
"""

from __future__ import annotations

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
    from flows.command_line import run

    code = run()
    sys.stderr.flush()
    # All is said. DuckDB's bindings list what they take for leaks while the interpreter is torn down.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
