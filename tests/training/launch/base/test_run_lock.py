from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base.protocol import DETACHED
from headway.training.launch.base.run_lock import holder_of, owning

HOLD = """
import sys, pathlib
from headway.training.launch.base.run_lock import owning
with owning(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_owner_is_refused_by_the_first_ones_number(tmp_path: Path) -> None:
    with (
        owning(tmp_path),
        pytest.raises(EnvironmentProblem, match=f"pid {os.getpid()} on ") as refused,
        owning(tmp_path),
    ):
        pass
    assert refused.value.exit_code == 8


def test_a_run_is_held_by_whoever_watches_the_job_that_trains_it(tmp_path: Path) -> None:
    (tmp_path / DETACHED).mkdir()
    with owning(tmp_path / DETACHED, "f00"):
        assert f"pid {os.getpid()} on " in str(holder_of(tmp_path))
        with pytest.raises(EnvironmentProblem, match="`headway stop f00`"), owning(tmp_path / DETACHED, "f00"):
            pass
    assert holder_of(tmp_path) is None


@pytest.mark.process
def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None and owner.stdin is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(EnvironmentProblem, match=str(owner.pid)), owning(tmp_path):
        pass
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    with owning(tmp_path):
        pass


@pytest.mark.process
def test_a_child_does_not_hold_its_parents_lock(tmp_path: Path) -> None:
    with owning(tmp_path):
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        with owning(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()
