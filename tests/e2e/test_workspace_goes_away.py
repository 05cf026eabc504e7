"""A workspace that goes away, or is mounted anew for reading alone, while a real retrain trains in it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.project import DEADLINE_S, Project
from tests.waiting import wait_until

pytestmark = pytest.mark.long

ON_A_MOUNT = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
MOUNTED = 'mount -t tmpfs -o size=256m tmpfs "$0" && exec "$@"'
"""The workspace is a file system of its own, which only the command and what it starts see."""
# While files are open, a mount stays writable: what refuses lies over it, and what is opened anew meets that. It is
# made beside and comes whole: in its place, a file that the run opens meanwhile would keep it from refusing.
READ_ONLY = """
mkdir "$0.beside" && mount --bind "$0" "$0.beside" && mount -o remount,bind,ro "$0.beside" &&
mount --move "$0.beside" "$0"
"""


@pytest.fixture
def training(new_project: Project) -> Project:
    new_project.edit("tiny.yaml", "max_steps: 120", "max_steps: 100000")
    return new_project


def the_end(project: Project, process: subprocess.Popen[str]) -> str:
    """What the command said on its way out: exit 8, one message, no traceback, and no process left."""
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 8, (process.returncode, out, err)
    assert "Traceback" not in out + err, (out, err)
    (card,) = re.findall(r"cannot keep the failure card; it is (\S+)", err)
    Path(card).unlink()
    assert len(err.splitlines()) == 2 and err.count(str(project.workspace)) == 1, err
    wait_until(lambda: not project.everybody(), what="the end of all that the command started")
    return err


def test_a_workspace_that_is_renamed_ends_the_retrain_and_nothing_is_made_in_its_stead(training: Project) -> None:
    process = training.start("retrain", "tiny.yaml")
    wait_until(lambda: training.newest_step() > 25, what="training")
    away = training.root / "away"
    training.workspace.rename(away)
    message = the_end(training, process)
    assert message.count("moved, unmounted or deleted") == 1
    assert not training.workspace.exists()
    assert len([*away.glob("runs/*/attempts/*/ledger")]) == 1, "no other attempt is spent on it"


@pytest.mark.parametrize(
    ("then", "told"),
    [
        pytest.param('umount --lazy "$0"', "moved, unmounted or deleted", marks=pytest.mark.soak, id="unmounted"),
        pytest.param(READ_ONLY, "Read-only file system", id="read-only"),
    ],
)
def test_a_mount_that_goes_or_refuses_to_be_written_ends_the_retrain(training: Project, then: str, told: str) -> None:
    if os.geteuid() != 0 or subprocess.run(("unshare", "--mount", "true"), capture_output=True).returncode != 0:
        pytest.skip("only root has mounts of its own")
    training.workspace.mkdir()
    process = training.start("retrain", "tiny.yaml", wrapper=(*ON_A_MOUNT, MOUNTED, str(training.workspace)))
    inside = Project(Path(f"/proc/{process.pid}/root{training.root}"), training.prefect_home)
    wait_until(lambda: inside.newest_step() > 25 or process.poll() is not None, what="training")
    enter = ("nsenter", "--mount", "--target", str(process.pid))
    subprocess.run((*enter, "sh", "-c", then, str(training.workspace)), check=True)
    message = the_end(training, process)
    assert message.count(told) == 1
    assert list(training.workspace.iterdir()) == [], "what lies under the mount is as it was"
