"""Workers of xdist that are forks: what is imported is imported once, and one that falls is missed and replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.training.launch.base.process_tree import processes_with
from tests.waiting import DEADLINE_S, wait_until

REPOSITORY = Path(__file__).resolve().parents[1]
TOKEN = "TEST_FORKED_WORKERS"
TOY = """\
import os, random, signal
from pathlib import Path

with Path("imports").open("a") as file:
    file.write(__name__ + "\\n")


def test_notes() -> None:
    assert os.environ["PYTEST_XDIST_WORKER"].startswith("gw")
    with Path("notes").open("a") as file:
        file.write(f"{os.getpid()} {random.random()} {os.environ['HEADWAY_LOCAL']}\\n")


def test_falls() -> None:
    if __name__ == "tests.test_b" and not Path("fallen").exists():
        Path("fallen").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_tests_are_imported_once_and_a_worker_that_falls_is_named_and_leaves_nobody(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "tests").mkdir()
    for name in ("a", "b"):
        (tmp_path / "tests" / f"test_{name}.py").write_text(TOY)
    (tmp_path / "tests" / "test_broken.py").write_text("import no_such_module\n")
    plugins = ("xdist", "xdist.looponfail", "tests.forked_workers")
    loaded = [part for plugin in plugins for part in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", *loaded, "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(REPOSITORY),
        TOKEN: str(tmp_path),
    }
    where = [str(tmp_path / "tests"), "--continue-on-collection-errors"]
    done = subprocess.run(
        command + where, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert "1 failed, 4 passed, 1 error" in done.stdout, done.stdout
    assert "crashed while running 'tests/test_b.py::test_falls'" in done.stdout
    assert "No module named 'no_such_module'" in done.stdout, "which a worker reports as it would on its own"
    assert sorted((tmp_path / "imports").read_text().split()) == ["tests.test_a", "tests.test_b"]
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert all(len(set(column)) == 2 for column in zip(*notes, strict=True)), "of each a process, draws and a folder"
    wait_until(lambda: not processes_with(TOKEN, str(tmp_path)), what="the end of all that it started")
