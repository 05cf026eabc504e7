"""A real wheel of Headway's, and its installation in a folder that comes before this environment's packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = (
    *("pyproject.toml", "README.md", "headway"),
    *("data_contracts", "training", "tasks", "flows", "deployments"),
)


def built() -> Path:
    """The wheel, which the first test process that asks makes for all."""
    folder = Path(os.environ["HEADWAY_TESTS_SHARED"]) / "wheel"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build(folder)
    (found,) = (folder / "wheels").iterdir()
    return found


def _build(folder: Path) -> None:
    """From a copy of what it is made of."""
    folder.mkdir()
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run((*pip, "--wheel-dir", str(folder / "wheels"), str(folder)), check=True, capture_output=True)


def install(wheel: Path, target: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    subprocess.run((*pip, "--target", str(target), str(wheel)), check=True, capture_output=True)
    return target


def run(installed: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Python on the installed wheel and this environment's other packages."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HEADWAY_"))}
    return subprocess.run(
        # Without `site`: what has no file here, the editable install's finder would bring from the repository.
        (sys.executable, "-S", *arguments),
        cwd=cwd,
        env={
            **ours,
            "PYTHONPATH": f"{installed}{os.pathsep}{sysconfig.get_path('purelib')}",
            "PREFECT_HOME": str(installed.parent / "prefect"),
        },
        capture_output=True,
        text=True,
    )
