"""A project with folders named like ours still works, or is told by name what collides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_in(project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("headway")), "--help"]
    return subprocess.run(command, cwd=project, env={**os.environ, **environment}, capture_output=True, text=True)


def with_training_package(folder: Path) -> Path:
    (folder / "training").mkdir()
    (folder / "training" / "__init__.py").write_text("raise RuntimeError('the wrong training package')\n")
    return folder


def test_a_project_with_its_own_training_folder_can_use_headway(tmp_path: Path) -> None:
    done = run_in(with_training_package(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "retrain" in done.stdout


def test_an_intruder_on_the_path_is_refused_by_name(tmp_path: Path) -> None:
    done = run_in(with_training_package(tmp_path), PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path / "training") in done.stderr
    assert "Traceback" not in done.stderr


def test_an_intruding_module_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("raise RuntimeError('the wrong tasks module')\n")
    done = run_in(tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path / "tasks.py") in done.stderr


def test_a_script_beside_an_intruder_is_refused_by_name(tmp_path: Path) -> None:
    script = with_training_package(tmp_path) / "ask.py"
    script.write_text("import headway\nheadway.load_table_model('models:/any@champion')\n")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert "ImportError" in done.stderr and str(tmp_path / "training") in done.stderr
