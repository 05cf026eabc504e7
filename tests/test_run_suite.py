"""What failed among others counts, unless it passes by itself each time; and it is named either way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = """
from pathlib import Path
def test_late():
    times = Path("times")
    times.write_text((times.read_text() if times.exists() else "") + "I")
    assert len(times.read_text()) not in {FAILS_AT}
def test_in_time():
    assert True
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("fails_at", "exit_code", "said"),
    [
        pytest.param({1}, 0, "FLAKY: failed among others, and passed alone:\n  test_it.py::test_late\n", id="once"),
        pytest.param({1, 4}, 1, "failed, and run 3 times by itself:\n  test_it.py::test_late\n", id="again"),
        pytest.param({0}, 0, "2 passed", id="never"),
    ],
)
def test_a_test_that_failed_among_others_passes_by_itself_each_time_or_counts(
    tmp_path: Path, fails_at: set[int], exit_code: int, said: str
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS.replace("{FAILS_AT}", repr(fails_at)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.run_suite", "-p", "no:xdist", "-p", "no:hypothesispytest"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert said in done.stdout
