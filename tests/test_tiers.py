"""Each test has one tier, and a unit test that starts a process or keeps the processor busy fails by its name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[1]
CONFTEST = """
import subprocess, time
import pytest

pytest_plugins = ("tests.tiers",)

def pytest_configure():
    from tests import tiers
    tiers.LIMIT_S = 0.1  # of which a busy machine is given twice as much

def work(cpu_s):
    started_s = time.thread_time()
    while time.thread_time() - started_s < cpu_s: pass

@pytest.fixture(scope="session")
def costly():
    work(0.4)

@pytest.fixture(scope="module")
def server():
    subprocess.run(["true"])

@pytest.fixture
def s3_server(): pass

@pytest.fixture
def dear():
    work(0.4)
"""
UNITS = """
import os, subprocess, sys, types
import pytest
from conftest import work
from tests.started_processes import note

def test_quick(): pass
def test_fails_by_itself(): assert not os.system("true")[0]
def test_opens_a_process(): subprocess.run(["true"])
def test_opens_one_in_vain():
    with pytest.raises(OSError): subprocess.run(["no such command"])
def test_forks():
    if not (child := os.fork()): os._exit(0)
    os.waitpid(child, 0)
def test_spawns(): os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
def test_asks_a_nursery(): note("tests.nursery.start", "worker")
def test_works(): work(0.4)
def test_has_a_dear_fixture(dear): pass
def test_waits():
    import time; time.sleep(0.4)
def test_runs_beside_a_busy_thread():
    import threading
    busy = threading.Thread(target=work, args=(0.4,)); busy.start(); busy.join()
def test_imports():
    work(0.4)
    sys.modules.update({f"toy{number}": types.ModuleType("toy") for number in range(30)})
def test_comes_first_to_what_is_shared(costly): pass
def test_has_a_server(server): pass
def test_has_it_too(server): pass
def test_marked_parameter(): pass
@pytest.mark.process
def test_says_so(): subprocess.run(["true"]); work(0.4)
def test_fixture_says_so(s3_server): subprocess.run(["true"])
@pytest.mark.parametrize("place", ["folder", pytest.param("bucket", marks=pytest.mark.process)])
def test_place(place): assert place == "folder" or subprocess.run(["true"])
@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("place", ["near", pytest.param("far", marks=pytest.mark.soak)])
def test_at_length(place): work(0.4)
"""
WHOLE = """
import subprocess, pytest
def test_whole(): subprocess.run(["true"])
@pytest.mark.soak
def test_at_length(): pass
"""
STARTS = {
    *("opens_a_process", "opens_one_in_vain", "forks", "spawns", "asks_a_nursery", "has_a_server", "has_it_too"),
}
WORKS = {"works", "has_a_dear_fixture"}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers\nmarkers =\n  unit:\n  process:\n  e2e:\n  cluster:\n  long:\n  soak:\n"
    )
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_units.py").write_text(UNITS)
    for folder in ("e2e", "prefect", "cluster"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(WHOLE)
    return tmp_path


def outcomes(suite: Path, *options: str, report: str = "") -> tuple[dict[str, set[str]], str]:
    """Names of tests by what became of them, and all that was said."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "HEADWAY_TIERS_REPORT": report,
        "PYTEST_ADDOPTS": "",
        "CI": "true",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *options, str(suite)]
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True)
    found: dict[str, set[str]] = {}
    for name, word in re.findall(r"^\S*::test_(\S+) (PASSED|FAILED|ERROR)", done.stdout, re.M):
        found.setdefault(word, set()).add(name)
    return found, done.stdout + done.stderr


def test_a_unit_test_that_starts_a_process_or_takes_long_fails_and_is_told_why(suite: Path) -> None:
    found, message = outcomes(suite, "-m", "unit")
    assert found["FAILED"] == {*STARTS, *WORKS, "fails_by_itself"}, message
    assert found["PASSED"] == {
        *(
            "quick",
            "waits",
            "runs_beside_a_busy_thread",
            "imports",
            "comes_first_to_what_is_shared",
            "marked_parameter",
            "place[folder]",
        )
    }, message
    assert (
        "is no unit test: it starts a process (subprocess.Popen true). Mark it `process`, or let it do less." in message
    )
    assert "is no unit test: it takes 0.4 s of the processor." in message
    assert "object is not subscriptable" in message, "its own failure is told, and no other"


def test_the_other_tiers_are_by_mark_fixture_and_folder_and_may_do_as_they_like(suite: Path) -> None:
    assert outcomes(suite, "-m", "process and not long and not soak")[0] == {
        "PASSED": {"says_so", "fixture_says_so", "place[bucket]"}
    }
    assert outcomes(suite, "-m", "e2e or cluster")[0] == {"PASSED": {"whole"}}
    assert outcomes(suite, "-m", "long and not soak")[0] == {"PASSED": {"whole", "at_length[near]"}}
    assert outcomes(suite, "-m", "soak")[0] == {"PASSED": {"at_length", "at_length[far]"}}


def test_a_report_lists_what_would_fail_and_lets_it_pass(suite: Path) -> None:
    found, message = outcomes(suite, "-m", "unit", report=str(suite / "report"))
    assert found["FAILED"] == {"fails_by_itself"}, message
    lines = (suite / "report").read_text().splitlines()
    assert {line.split("\t")[0] for line in lines} == {f"test_units.py::test_{name}" for name in (*STARTS, *WORKS)}
