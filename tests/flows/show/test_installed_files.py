"""A real wheel of Headway's, installed and then damaged as disks and other packages do: its `doctor` says so."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from headway.flows.show.installed_files import check_files
from tests import wheels

pytestmark = pytest.mark.long
OTHERS = {
    "headway/training/__init__.py": '"""Somebody else\'s trainings."""\n',
    "other-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n",
    "other-1.0.dist-info/RECORD": "headway/training/__init__.py,,\nother-1.0.dist-info/METADATA,,\n",
}
"""A package with files where ours lie, as pip would unpack it over them."""
FINDING = """
from headway.flows.show.doctor import _files_finding
found = _files_finding()
print(found.state, found.message)
"""
"""What `doctor` says of files alone: for all else it starts ranks and looks for a server."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return wheels.install(tmp_path / "installed")


def doctor(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    workspace = str(installed.parent / "workspace")
    return wheels.run(installed, "-m", "headway", "doctor", "--workspace", workspace, *arguments, cwd=installed.parent)


def finding(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (found,) = (each for each in json.loads(done.stdout)["findings"] if each["what"] == "files")
    return found


@pytest.mark.long
def test_a_wheel_as_it_was_installed_is_in_order_and_one_that_is_damaged_is_not(installed: Path) -> None:
    asked = wheels.run(installed, "-c", FINDING, cwd=installed.parent)
    assert asked.stdout.startswith("ok ") and "Headway's" in asked.stdout, asked.stdout + asked.stderr

    (installed / "headway" / "flows" / "act" / "export.py").unlink()
    altered = installed / "headway" / "training" / "engine" / "loop.py"
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
    for message in (
        *("flows/act/export.py is gone", "training/engine/loop.py is altered", "training/__init__.py is altered"),
        *("installed by other as well", "duckdb-engine: ", "duckdb_engine/config.py is gone"),
        f"headway=={metadata.version('headway')} duckdb-engine=={kept.version}",
    ):
        assert message in found["message"]
    assert "duckdb_engine/datatypes.py has" in found["message"]


@pytest.mark.parametrize("gone", ["headway/flows/show/doctor.py", "headway/flows/console/options.py"])
def test_where_doctor_itself_is_damaged_the_file_is_named_all_the_same(installed: Path, gone: str) -> None:
    (installed / gone).unlink()
    done = doctor(installed)
    assert done.returncode == 8 and f"{gone} is gone" in done.stderr and "Traceback" not in done.stderr
    assert "Reinstall" in done.stderr


def test_to_look_at_all_files_takes_less_than_a_second_of_the_processor() -> None:
    started_s = time.process_time()
    assert "by size" in check_files()
    assert time.process_time() - started_s < 1.0
