"""A real wheel of Headway's, installed and then damaged as disks and other packages do: its `doctor` says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from flows.installed_files import check_files

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "headway.py", "flows", "tasks", "training", "data_contracts")
OTHERS = {
    "training/__init__.py": '"""Somebody else\'s trainings."""\n',
    "other-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n",
    "other-1.0.dist-info/RECORD": "training/__init__.py,,\nother-1.0.dist-info/METADATA,,\n",
}
"""A package with a top-level folder `training`, as pip would unpack it over ours."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run((*pip, "--wheel-dir", str(folder / "wheels"), str(folder)), check=True, capture_output=True)
    (found,) = (folder / "wheels").iterdir()
    return found


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """A folder that comes before this environment's own packages, with Headway installed in it."""
    target = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    subprocess.run((*pip, "--target", str(target), str(wheel)), check=True, capture_output=True)
    return target


def doctor(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HEADWAY_"))}
    return subprocess.run(
        # Without `site`: what has no file here, the editable install's finder would bring from the repository.
        (
            sys.executable,
            "-S",
            "-m",
            "headway",
            "doctor",
            "--workspace",
            str(installed.parent / "workspace"),
            *arguments,
        ),
        cwd=installed.parent,
        env={
            **ours,
            "PYTHONPATH": f"{installed}{os.pathsep}{sysconfig.get_path('purelib')}",
            "PREFECT_HOME": str(installed.parent / "prefect"),
        },
        capture_output=True,
        text=True,
    )


def finding(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (found,) = (each for each in json.loads(done.stdout)["findings"] if each["what"] == "files")
    return found


def test_a_wheel_as_it_was_installed_is_in_order_and_one_that_is_damaged_is_not(installed: Path) -> None:
    done = doctor(installed, "--json")
    assert done.returncode == 0, done.stderr
    assert finding(done)["state"] == "ok" and "Headway's" in finding(done)["said"]

    (installed / "flows" / "export.py").unlink()
    altered = installed / "training" / "loop.py"
    data = bytearray(altered.read_bytes())
    data[4] ^= 1  # in its docstring: it can be imported as before
    altered.write_bytes(data)
    for name, text in OTHERS.items():
        (installed / name).parent.mkdir(exist_ok=True)
        (installed / name).write_text(text)
    kept = metadata.distribution("duckdb-engine")
    for path in kept.files or ():
        if ".." not in path.parts and path.suffix != ".pyc":
            (installed / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(path.locate()), installed / path)
    (installed / "duckdb_engine" / "config.py").unlink()
    with (installed / "duckdb_engine" / "datatypes.py").open("a") as file:
        file.write("\n")

    done = doctor(installed, "--json")
    assert done.returncode == 8 and "would fail: files" in done.stderr and "Traceback" not in done.stderr
    found = finding(done)
    assert found["state"] == "FAULT"
    for said in (
        *("flows/export.py is gone", "training/loop.py is altered", "training/__init__.py is altered"),
        *("installed by other as well", "duckdb-engine: ", "duckdb_engine/config.py is gone"),
        f"headway=={metadata.version('headway')} duckdb-engine=={kept.version}",
    ):
        assert said in found["said"]
    assert "duckdb_engine/datatypes.py has" in found["said"]


@pytest.mark.parametrize("gone", ["flows/doctor.py", "flows/options.py"])
def test_where_doctor_itself_is_damaged_the_file_is_named_all_the_same(installed: Path, gone: str) -> None:
    (installed / gone).unlink()
    done = doctor(installed)
    assert done.returncode == 8 and f"{gone} is gone" in done.stderr and "Traceback" not in done.stderr
    assert "Reinstall" in done.stderr


def test_to_look_at_all_files_takes_less_than_a_second_of_the_processor() -> None:
    began_s = time.process_time()
    assert "by size" in check_files()
    assert time.process_time() - began_s < 1.0
