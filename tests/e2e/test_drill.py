"""`headway drill` for real: failures in a sandbox of its own, and nothing of it left, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.flows.drill.report import has_its_digest
from headway.flows.drill.sandbox import SANDBOX
from headway.training.launch.base.process_tree import processes_with, sweep
from tests.waiting import wait_until
from tests.warm_programs import Program

MARK = "TEST_DRILL"
WITHIN_S = 900.0


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """In the environment of all that the command starts."""
    yield str(tmp_path)
    sweep(MARK, str(tmp_path))


def drill(*arguments: str, mark: str) -> subprocess.Popen[str]:
    (folder := Path(mark) / "tmp").mkdir(exist_ok=True)
    environment = {**os.environ, MARK: mark, "TMPDIR": str(folder), "HEADWAY_WORKSPACE": f"{mark}/workspace"}
    return Program(
        [sys.executable, Path(sys.executable).with_name("headway"), "drill", *arguments],
        cwd=mark,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )


# Minutes beside other tests. A game day makes a drill to its end, and nothing is left below.
@pytest.mark.soak
def test_a_killed_rank_a_pre_emption_and_a_flipped_bit_are_mended_to_equal_bits(tmp_path: Path, mark: str) -> None:
    with drill("F4", "f7", "--seed", "7", "--out", "report.json", "--json", mark=mark) as process:
        out, err = process.communicate(timeout=WITHIN_S)
    report = json.loads(out)
    assert process.returncode == 0, f"{err}\n{json.dumps(report, indent=1)}"
    assert report == json.loads((tmp_path / "report.json").read_text()) and has_its_digest(report)
    assert "Corrupt checkpoint: passed" in (tmp_path / "report.html").read_text()
    damaged, preempted = report["drills"]
    assert (damaged["mode"], damaged["state"], preempted["mode"], preempted["state"]) == (
        "F4",
        "passed",
        "F7",
        "passed",
    )
    assert damaged["figures"]["equal_bits"] is preempted["figures"]["equal_bits"] is True
    assert damaged["figures"]["lost_steps"] == 30 and preempted["figures"]["lost_steps_of_stop"] == 0
    assert damaged["alert"]["after"] == damaged["alert"]["before"] + 1 and preempted["alert"]["raised"]
    assert damaged["exit_codes"] == [0] and preempted["exit_codes"] == [0, 143, 0]
    assert processes_with(MARK, mark) == [] and [*(tmp_path / "tmp").iterdir()] == []
    assert not (tmp_path / "workspace").exists()


@pytest.mark.long
def test_ctrl_c_leaves_neither_a_process_nor_a_folder(tmp_path: Path, mark: str) -> None:
    with drill("F7", "--seed", "7", mark=mark) as process:
        wait_until(lambda: [*(tmp_path / "tmp").glob("*/workspace/runs/*/attempts/001/rank-1.json")], what="a rank")
        (sandbox,) = (
            path.parents[5] for path in (tmp_path / "tmp").glob("*/workspace/runs/*/attempts/001/rank-1.json")
        )
        assert processes_with(SANDBOX, str(sandbox))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130 and "nothing of the drill is left running" in err
    assert processes_with(SANDBOX, str(sandbox)) == [] and [*(tmp_path / "tmp").iterdir()] == []
