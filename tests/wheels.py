"""A real wheel of Headway's, and its installation in a folder that comes before this environment's packages.

It is built and installed once for all test processes. Whoever asks gets a copy, with the compiled modules beside their
sources: each installation would compile a hundred thousand lines for its first command.
"""

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
OF_THE_PROJECT = ("training", "tasks", "flows", "tests", "data_contracts", "deployments")


def with_folders_of_its_own(folder: Path) -> Path:
    """Packages of a user's, called like Headway's folders."""
    for name in OF_THE_PROJECT:
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    return folder


def install(target: Path) -> Path:
    """As pip put it there: a copy that a test may damage."""
    folder = Path(os.environ["HEADWAY_TESTS_SHARED"]) / "wheel"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            _install(_build(folder), folder / "new")
            (folder / "new").rename(folder / "installed")
    return Path(shutil.copytree(folder / "installed", target))


def _build(folder: Path) -> Path:
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
    (wheel,) = (folder / "wheels").iterdir()
    return wheel


def _install(wheel: Path, target: Path) -> None:
    """Compiled is what a command imports; it writes down that itself."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    subprocess.run((*pip, "--target", str(target), str(wheel)), check=True, capture_output=True)
    warm = "import headway.flows.cli.command_line, headway.flows.show.doctor, headway.flows.retrain"
    subprocess.run((sys.executable, "-S", "-c", warm), cwd=target, env=_environment(target), check=True)


def run(installed: Path, *arguments: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Python on the installed wheel and this environment's other packages.

    Args:
        settings: environment variables that it gets besides.
    """
    # Without `site`: what has no file here, the editable install's finder would bring from the repository.
    command = (sys.executable, "-S", *arguments)
    return subprocess.run(command, cwd=cwd, env=_environment(installed) | settings, capture_output=True, text=True)


def _environment(installed: Path) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HEADWAY_"))}
    return {
        **ours,
        "PYTHONPATH": f"{installed}{os.pathsep}{sysconfig.get_path('purelib')}",
        "PREFECT_HOME": str(installed.parent / "prefect"),
    }
