"""The `headway` command's first step, and registered models for Python: both stand on Headway's own four packages.

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data_contracts.publication import Workspace
    from tasks.prediction import TableModel, TextModel

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


def complaint(strangers: list[str]) -> str:
    return (
        f"{', '.join(strangers)} hides Headway's own package of that name. "
        "Take that project's folder off PYTHONPATH, or start from another folder."
    )


def load_table_model(model_uri: str, workspace: str = "") -> TableModel:
    """A registered model of table rows, to be asked: `load_table_model("models:/churn@champion").predict(rows)`.

    Args:
        model_uri: `models:/NAME@champion` or `models:/NAME/VERSION`.
        workspace: a folder or URI; empty: HEADWAY_WORKSPACE, or the folder `workspace` of the project.

    Raises:
        ConfigError: no such model, or none of tables.
        EnvironmentProblem: there is no workspace, or it cannot be used.
        IntegrityError: something that it stands on is gone or altered.
        ImportError: another package hides one of Headway's.
    """
    opened = _opened(workspace)
    from tasks.prediction import load_table_model

    return load_table_model(opened, model_uri)


def load_text_model(model_uri: str, workspace: str = "") -> TextModel:
    """A registered language model, to be asked: `load_text_model("models:/stdlib-lm@champion").bits(text)`.

    Args: and what is raised: as `load_table_model`.
    """
    opened = _opened(workspace)
    from tasks.prediction import load_text_model

    return load_text_model(opened, model_uri)


def _opened(workspace: str) -> Workspace:
    if strangers := intruders():
        raise ImportError(complaint(strangers))
    from data_contracts.publication import Workspace
    from flows.environment import default_workspace, prepare

    prepare()
    return Workspace.existing(workspace or default_workspace())


def main() -> None:
    if strangers := intruders():
        print(f"headway: {complaint(strangers)}", file=sys.stderr)
        sys.exit(2)
    # What is imported here stays: to look for garbage in it every 700 objects takes a fifth of a command's start.
    gc.set_threshold(50_000, 20, 20)
    ends_with: list[int] = []
    atexit.register(leave, ends_with)  # registered before all others, so it comes after them
    try:
        from flows.command_line import run
    except Exception as error:
        sys.exit(_damaged(error))
    ends_with.append(run())
    sys.exit(ends_with[0])


def _damaged(error: Exception) -> int:
    """Say which installed files are altered or gone, where that is why nothing can be imported; else raise the error.

    Returns:
        The exit code.
    """
    try:
        from data_contracts.errors import EnvironmentProblem
        from flows.installed_files import check_files
    except Exception:
        raise error from None  # so little is left that nobody can look
    try:
        check_files()
    except EnvironmentProblem as problem:
        print(f"headway: {problem}", file=sys.stderr)
        return problem.exit_code
    raise error


def leave(ends_with: list[int]) -> None:
    """End now. All is said and closed; to unload every module takes a second, in which DuckDB complains of leaks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if ends_with:
        os._exit(ends_with[0])


if __name__ == "__main__":
    main()
