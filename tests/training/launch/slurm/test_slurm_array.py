"""Runs as elements of an array: what Slurm is told and what its answers mean; `tests/cluster` has the real one."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from headway.training.launch.base.stop_request import StopRequest
from headway.training.launch.jobs.job_request import JobHandle, JobRequest
from headway.training.launch.jobs.scheduler import ArrayScheduler, JobState
from headway.training.launch.slurm.job_array import SlurmArrays, array_script, holds, line_of
from headway.training.launch.slurm.job_start import job_of
from headway.training.launch.slurm.scheduler import Slurm
from tests.training.launch.slurm.test_slurm import NOW_S, SPEC, gang, say

GOLDEN = Path(__file__).parents[1] / "goldens" / "slurm-array.sh"
SHOWN = """\
JobId=12 ArrayJobId=12 ArrayTaskId=2-3,7%2 JobName=headway-trials-x JobState=PENDING Reason=JobArrayTaskLimit Restarts=0
JobId=14 ArrayJobId=12 ArrayTaskId=1 JobName=headway-trials-x JobState=RUNNING Reason=None Restarts=2 ExitCode=0:0
JobId=13 ArrayJobId=12 ArrayTaskId=0 JobName=headway-trials-x JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15
"""


def test_the_array_of_several_runs_is_what_their_spec_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.training.launch.slurm.batch_script.HEADWAY_HOME", "/opt/headway")
    monkeypatch.setattr("headway.training.launch.slurm.batch_script.sys.executable", "/opt/python")
    bound = StopRequest(at_unix_s=NOW_S + 1700, reason="window closed")
    folders = ("/runs of 100%/0", "/runs of 100%/1", "/it's here/2")
    gangs = [gang(bound, Path(folder)) for folder in folders]
    assert array_script(SPEC, gangs, "headway-trials-0a1b", 2, NOW_S) == GOLDEN.read_text()


@pytest.mark.process
@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_element_runs_its_own_run_and_writes_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "told $*"\n')
    python.chmod(0o755)
    monkeypatch.setattr("headway.training.launch.slurm.batch_script.sys.executable", str(python))
    gangs = [gang(run_dir=tmp_path / name) for name in ("a'b", "c d", "$HOME")]
    for each in gangs:
        (each.run_dir / "detached").mkdir(parents=True)
    script = array_script(SPEC, gangs, "headway-trials-x", 2, NOW_S)
    environment = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_ARRAY_JOB_ID": "12", "SLURM_JOB_ID": "99"}
    subprocess.run(["/bin/sh"], input=script, text=True, env=environment, check=True)
    message = (gangs[index].run_dir / "detached" / f"job-12_{index}.log").read_text()
    assert message == f"told -P -m headway.training.launch.supervise.detached {gangs[index].run_dir}\n"
    assert job_of(environment) == f"12_{index}" and job_of({"SLURM_JOB_ID": "99"}) == "99"


@pytest.mark.process
def test_an_element_is_found_by_its_arrays_name_and_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "echo '12_0 RUNNING'; echo '12_1 PENDING'; echo '12_10 PENDING'; echo '12_12 PENDING'"
    say(tmp_path, monkeypatch, squeue=f"echo \"$*\" >> '{tmp_path}/asked'; {listed}")
    slurm = SlurmArrays()
    found = [slurm.find(f"headway-trials-x[{index}]") for index in (0, 1, 2, 10)]
    assert found == ["12_0", "12_1", None, "12_10"]
    assert "--name=headway-trials-x " in (tmp_path / "asked").read_text()
    say(tmp_path, monkeypatch, squeue="echo '9 RUNNING'")
    assert slurm.find("headway-0123456789abcdef-x") == "9", "a job of one run"


@pytest.mark.process
def test_the_same_runs_are_one_array_however_often_they_are_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"cat '{tmp_path}/queue' 2>/dev/null; exit 0"
    batch = f"cat > '{tmp_path}/script'; echo \"42_[0-1] PENDING\" > '{tmp_path}/queue'; echo x >> '{tmp_path}/times'"
    say(tmp_path, monkeypatch, squeue=queue, sbatch=f"{batch}; echo 42")
    orders = [JobRequest.of(name, SPEC, gang(run_dir=tmp_path / name), "one") for name in "ab"]
    first = SlurmArrays().submit_array(orders, 2)
    (tmp_path / "queue").write_text("42_0 RUNNING\n42_1 PENDING\n")
    assert SlurmArrays().submit_array(orders, 2) == first
    assert (tmp_path / "times").read_text() == "x\n"
    assert [(handle.job, handle.order, Path(handle.log).parts[-3:]) for handle in first] == [
        *(("42_0", "a", ("a", "detached", "job-42_0.log")), ("42_1", "b", ("b", "detached", "job-42_1.log")))
    ]
    assert [handle.key for handle in first] == SlurmArrays().array_keys([tmp_path / "a", tmp_path / "b"])
    assert SlurmArrays().array_keys([tmp_path / "b", tmp_path / "a"])[0] != first[0].key, "an index is a run"


@pytest.mark.process
def test_what_slurm_shows_of_an_element_is_asked_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shown").write_text(SHOWN)
    say(tmp_path, monkeypatch, scontrol=f"echo \"$*\" >> '{tmp_path}/asked'; cat '{tmp_path}/shown'")
    slurm = SlurmArrays()

    def report(index: int) -> tuple[JobState, int]:
        found = slurm.poll(JobHandle(launcher="slurm", job=f"12_{index}", key="k", order="x", log=""))
        return found.state, found.restarts

    states = {0: JobState.PREEMPTED, 1: JobState.RUNNING, 3: JobState.PENDING, 7: JobState.PENDING}
    assert {index: report(index)[0] for index in states} == states
    assert report(1)[1] == 2
    assert report(4)[0] is JobState.FORGOTTEN
    asked = "--oneliner show job 12\n"
    assert (tmp_path / "asked").read_text() == asked
    slurm.poll(JobHandle(launcher="slurm", job="12_0", key="k", order="x", log=""), since_s=(now_s := time.monotonic()))
    slurm.poll(JobHandle(launcher="slurm", job="12_1", key="k", order="x", log=""), since_s=now_s)
    assert (tmp_path / "asked").read_text() == asked * 2, "once more for all who ask from the same moment on"


@pytest.mark.process
def test_no_answer_about_an_array_is_none_about_each_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tmp_path, monkeypatch, scontrol="echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    handle = JobHandle(launcher="slurm", job="12_0", key="k", order="x", log="")
    assert SlurmArrays().poll(handle).state is JobState.UNKNOWN


@pytest.mark.parametrize(
    ("indexes", "held"), [("3", {3}), ("0-2%2", {0, 1, 2}), ("1,4-5", {1, 4, 5}), ("N/A", set()), ("10", {10})]
)
def test_elements_are_named_one_by_one_or_together(indexes: str, held: set[int]) -> None:
    assert {index for index in range(12) if holds(indexes, index)} == held


def test_a_line_is_the_elements_own_where_it_has_one() -> None:
    assert line_of(SHOWN, 1, "12_1").startswith("JobId=14 ")
    assert isinstance(SlurmArrays(), ArrayScheduler) and not isinstance(Slurm(), ArrayScheduler)
