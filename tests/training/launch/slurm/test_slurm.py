"""What Slurm is told and what its answers mean; `tests/cluster` has the real one."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import (
    ConfigError,
    ContractViolation,
    EnvironmentProblem,
    HeadwayError,
    RunStopped,
)
from headway.training.config.launcher_specs import SlurmSpec
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.gang import Gang, LaunchSpec, for_stepless_work
from headway.training.launch.base.lease import WatcherLease, WatcherLeaseMonitor
from headway.training.launch.base.stop_request import NEVER, StopRequest
from headway.training.launch.jobs.job_request import DetachedFiles, JobHandle, JobOutcome, JobRequest
from headway.training.launch.jobs.scheduler import JobState, SchedulerSilent
from headway.training.launch.slurm.batch_script import batch_script
from headway.training.launch.slurm.commands import read_job
from headway.training.launch.slurm.scheduler import Slurm, has_capacity_beside
from headway.training.launch.slurm.srun import parse_hosts

NOW_S = 1_700_000_000.0
SCRIPT = """\
#!/bin/sh
#SBATCH --job-name=headway-0123456789abcdef-0a1b
#SBATCH --comment="headway 0123456789abcdef"
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=31
#SBATCH --signal=B:TERM@50
#SBATCH --dependency=singleton
#SBATCH --open-mode=append
#SBATCH --output="/runs of 100%%/0123456789abcdef/detached/job-%j.log"
#SBATCH --partition=a100,h200
#SBATCH --account=speech
#SBATCH --requeue
#SBATCH --gpus-per-node=8
#SBATCH --constraint=ib&nvme
export PYTHONPATH=/opt/headway PYTHONSAFEPATH=1
exec /opt/python -P -m headway.training.launch.supervise.detached '/runs of 100%/0123456789abcdef'
"""
SPEC = LaunchSpec(
    launcher="slurm",
    slurm=SlurmSpec(
        partition="a100,h200", account="speech", sbatch_options=("--gpus-per-node=8", "--constraint=ib&nvme")
    ),
)


def gang(stop: StopRequest = NEVER, run_dir: Path = Path("/runs of 100%/0123456789abcdef")) -> Gang:
    return Gang(
        module="headway.training.programs.worker",
        arguments=("--steps", "3"),
        nodes=4,
        ranks_per_node=8,
        num_threads=2,
        import_path=("/code.zip",),
        run_dir=run_dir,
        environment={"NAME": "value"},
        possible_nodes=frozenset({1, 2, 4}),
        stop=stop,
    )


def test_the_job_of_a_run_is_what_its_spec_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.training.launch.slurm.batch_script.HEADWAY_HOME", "/opt/headway")
    monkeypatch.setattr("headway.training.launch.slurm.batch_script.sys.executable", "/opt/python")
    bound = StopRequest(at_unix_s=NOW_S + 1700, reason="window closed")
    assert batch_script(SPEC, gang(bound), "headway-0123456789abcdef-0a1b", NOW_S) == SCRIPT


@pytest.mark.parametrize("name", ["a\ntouch planted", "a\rb", "a\x1bb", "a\u2028b"])
def test_a_folder_whose_name_would_be_a_line_of_the_shell_makes_no_job(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot hold"):
        batch_script(SPEC, replace(gang(), run_dir=Path("/work") / name), "key", NOW_S)


def test_a_job_does_without_the_machines_that_are_left_out_and_those_that_the_pipeline_file_names() -> None:
    def lines(*options: str) -> list[str]:
        spec = SPEC.model_copy(update={"slurm": SlurmSpec(sbatch_options=options)})
        return [line for line in batch_script(spec, gang(), "key", NOW_S, ("b", "a")).splitlines() if "exclude" in line]

    assert lines() == ["#SBATCH --exclude=a,b"]
    assert lines("--exclude=c[1-3]")[-1] == "#SBATCH --exclude=c[1-3],a,b", "sbatch takes the last"


@pytest.mark.parametrize(
    ("bound_s", "limit_s", "minutes"),
    [
        pytest.param(math.inf, None, None, id="the partition's own"),
        pytest.param(math.inf, 3600, "60", id="what the file says"),
        pytest.param(1700, 3600, "31", id="the window, and time for the notice after it"),
        pytest.param(9999, 3600, "60", id="whichever is sooner"),
        pytest.param(-5, None, "2", id="over already: the supervisor says so"),
    ],
)
def test_a_job_may_run_until_its_run_must_end(bound_s: float, limit_s: int | None, minutes: str | None) -> None:
    spec = SPEC.model_copy(update={"slurm": SlurmSpec(time_limit_s=limit_s)})
    lines = batch_script(spec, gang(StopRequest(at_unix_s=NOW_S + bound_s)), "key", NOW_S).splitlines()
    told = [line.partition("=")[2] for line in lines if line.startswith("#SBATCH --time=")]
    assert told == ([] if minutes is None else [minutes])


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--time=10", "say it by `time_limit_s`"),
        ("--no-requeue", "follows from the run"),
        ("--job-name=mine", "follows from the run"),
        ("-N4", "no long option"),
        ("gpus=4", "no long option"),
        ("--comment=x\n#SBATCH --uid=0", "follows from the run"),
        ("--reservation=x\n#SBATCH --uid=0", "cannot hold"),
        ("--reservation='x'", "cannot hold"),
    ],
)
def test_options_of_sbatch_that_break_a_run_are_refused(option: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SlurmSpec(sbatch_options=(option,))


def test_what_is_said_of_slurm_to_another_launcher_is_refused() -> None:
    with pytest.raises(ValidationError, match="launcher is 'local'"):
        LaunchSpec(slurm=SlurmSpec(partition="train"))


def test_quiet_work_of_a_detached_run_is_done_beside_the_flow() -> None:
    assert not for_stepless_work(SPEC).is_detached


@pytest.mark.parametrize(
    ("shown", "state", "reason"),
    [
        ("JobState=PENDING Reason=Priority Restarts=0 ExitCode=0:0", JobState.PENDING, "PENDING, Priority"),
        ("JobState=RUNNING Reason=None Restarts=2 ExitCode=0:0", JobState.RUNNING, "RUNNING"),
        ("JobState=COMPLETING Reason=None", JobState.RUNNING, "COMPLETING"),
        ("JobState=COMPLETED Reason=None ExitCode=0:0", JobState.SUCCEEDED, "COMPLETED"),
        ("JobState=CANCELLED Reason=None ExitCode=0:15", JobState.CANCELLED, "CANCELLED, exit status 0:15"),
        (
            "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0",
            JobState.FAILED,
            "FAILED, NonZeroExitCode, exit status",
        ),
        ("JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0", JobState.PREEMPTED, "NODE_FAIL, NodeDown"),
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15", JobState.PREEMPTED, "TIMEOUT"),
        ("JobState=LOST_IN_SPACE Reason=None", JobState.UNKNOWN, "LOST_IN_SPACE"),
        ("", JobState.UNKNOWN, ""),
    ],
)
def test_what_slurm_shows_of_a_job(shown: str, state: JobState, reason: str) -> None:
    report = read_job(f"JobId=7 JobName=headway-x {shown} Comment=JobState=NOTHING" if shown else "")
    assert report.state is state and report.reason.startswith(reason)
    assert report.restarts == (2 if "Restarts=2" in shown else 0)


def test_nodes_are_reached_where_slurm_reaches_them() -> None:
    shown = (
        "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=rack1 State=ALLOCATED \n"
        "NodeName=n2 CoresPerSocket=1 NodeAddr=n2.cluster NodeHostName=rack1 State=ALLOCATED \n"
    )
    assert [(host.name, host.address) for host in parse_hosts(shown)] == [("n1", "10.0.0.1"), ("n2", "n2.cluster")]


def say(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Puts programs before all others, as a site's own wrappers are."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.process
def test_what_sbatch_says_instead_of_a_job_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tmp_path, monkeypatch, squeue="exit 0", sbatch="echo 'Mind the maintenance.'")
    order = JobRequest.of("x", SPEC, gang(run_dir=tmp_path), "one")
    with pytest.raises(EnvironmentProblem, match=r"sbatch named no job; it said 'Mind the maintenance\.'"):
        Slurm().submit(order)
    say(tmp_path, monkeypatch, sbatch="echo 'Mind the maintenance.'; echo '42;cluster'")
    assert Slurm().submit(order).job == "42"


@pytest.mark.process
def test_a_job_that_lives_is_not_submitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tmp_path, monkeypatch, squeue="echo '41 COMPLETING'; echo '43 PENDING'", sbatch="echo 44")
    assert Slurm().submit(JobRequest.of("x", SPEC, gang(run_dir=tmp_path), "one")).job == "43"


@pytest.mark.process
def test_machines_that_are_left_out_are_better_than_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(
        tmp_path,
        monkeypatch,
        squeue="exit 0",
        sbatch="grep -q exclude && { echo 'not available' >&2; exit 1; }; echo 7",
    )
    assert Slurm().submit(JobRequest.of("x", SPEC, gang(run_dir=tmp_path), "one", {"n2"})).job == "7"


@pytest.mark.process
@pytest.mark.parametrize(
    ("later_s", "waiting", "has_room"),
    [
        pytest.param(5, "", True, id="now"),
        pytest.param(5, "12", False, id="now, with somebody before us"),
        pytest.param(3600, "", False, id="when somebody else has done"),
        pytest.param(None, "", False, id="never"),
    ],
)
def test_there_is_room_beside_a_job_where_slurm_would_start_a_node_now(
    later_s: int | None, waiting: str, has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = datetime.datetime.now() + datetime.timedelta(seconds=later_s or 0)
    words = f"sbatch: Job 3 to start at {starts:%Y-%m-%dT%H:%M:%S} using 1 processors on nodes n3 in partition train"
    failed = "echo 'allocation failure: Requested node configuration is not available' >&2; exit 1"
    say(
        tmp_path,
        monkeypatch,
        sbatch=f"cat > '{tmp_path}/script'; " + (f"echo '{words}' >&2" if later_s else failed),
        squeue=f"echo {waiting}",
    )
    assert has_capacity_beside(SPEC, gang(), {"n2", "n1"}) is has_room
    assert {"#SBATCH --nodes=1", "#SBATCH --exclude=n1,n2"} <= set((tmp_path / "script").read_text().splitlines())


@pytest.mark.process
def test_no_answer_says_nothing_about_the_job_and_its_absence_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = JobHandle(launcher="slurm", job="7", key="k", order="x", log="")
    say(tmp_path, monkeypatch, scontrol="echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    assert Slurm().poll(handle).state is JobState.UNKNOWN
    say(tmp_path, monkeypatch, scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert Slurm().poll(handle).state is JobState.FORGOTTEN


@pytest.mark.process
def test_a_command_that_is_not_there_or_knows_no_cluster_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = "echo 'squeue: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    say(tmp_path, monkeypatch, squeue=silent)
    with pytest.raises(SchedulerSilent):
        Slurm().find("key")
    say(tmp_path, monkeypatch, squeue="echo 'squeue: error: Could not establish a configuration source' >&2; exit 1")
    with pytest.raises(EnvironmentProblem, match="configuration source") as refused:
        Slurm().find("key")
    assert not isinstance(refused.value, SchedulerSilent)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentProblem, match="`squeue` is not installed here"):
        Slurm().find("key")


@pytest.mark.process
def test_a_job_inherits_what_ranks_may_see_and_no_options_by_the_back_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(tmp_path, monkeypatch, squeue="exit 0", sbatch=f"env > '{tmp_path}/seen'; cat > '{tmp_path}/script'; echo 1")
    given = {"AWS_PROFILE": "team", "SLURM_CONF": "/etc/x", "SBATCH_PARTITION": "other", "SLURM_JOB_ID": "9"}
    for name, value in (given | {"PREFECT_API_KEY": "secret", "MLFLOW_TRACKING_TOKEN": "secret"}).items():
        monkeypatch.setenv(name, value)
    Slurm().submit(JobRequest.of("x", SPEC, gang(run_dir=tmp_path), "one"))
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {"AWS_PROFILE", "SLURM_CONF"} <= seen
    assert not seen & {"SBATCH_PARTITION", "SLURM_JOB_ID", "PREFECT_API_KEY", "MLFLOW_TRACKING_TOKEN"}
    assert "team" not in (tmp_path / "script").read_text()


def test_two_runs_of_one_name_in_two_workspaces_have_two_jobs(tmp_path: Path) -> None:
    keys = {Slurm().key(tmp_path / place / "0123456789abcdef") for place in "ab"}
    assert len(keys) == 2 and all(key.startswith("headway-0123456789abcdef-") for key in keys)


@pytest.mark.parametrize("stop", [NEVER, StopRequest(at_unix_s=NOW_S, at_step=7, reason="window closed")])
def test_an_order_is_read_as_it_was_written(tmp_path: Path, stop: StopRequest) -> None:
    files = DetachedFiles(tmp_path)
    files.folder.mkdir()
    JobRequest.of("x", SPEC, gang(stop), "one").save(files)
    read = JobRequest.load(files)
    assert (read.order, read.spec, read.to_gang(), read.budget_scope) == ("x", SPEC, gang(stop), "one")


@pytest.mark.parametrize(
    "error",
    [
        ContractViolation("no receipt.", where="here", advice="Validate first."),
        RunStopped("over.", where="here", advice="Later.", reason="window closed"),
    ],
)
def test_an_error_comes_out_of_the_job_as_it_was(tmp_path: Path, error: HeadwayError) -> None:
    files = DetachedFiles(tmp_path)
    files.folder.mkdir()
    JobOutcome.of_error("x", "7", error, str(tmp_path)).save(files)
    assert JobOutcome.load(files, "y") is None, "another order's"
    left = JobOutcome.load(files, "x")
    assert left is not None
    told = left.to_error("job.log")
    assert type(told) is type(error) and str(told) == str(error)
    assert getattr(told, "reason", None) == getattr(error, "reason", None)


def test_a_defect_in_the_job_is_told_as_one() -> None:
    assert Failure.of(KeyError("x")).to_error() is None
    outcome = JobOutcome.of_error("x", "7", KeyError("x"), ".")
    assert outcome.state == "failed" and "KeyError" in str(outcome.to_error("job.log"))


def test_a_lease_is_over_when_there_was_no_news_of_it_for_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("headway.training.launch.base.lease.time.monotonic", lambda: now_s)
    lease, watch = WatcherLease(tmp_path / "lease.json", 60.0), WatcherLeaseMonitor(tmp_path / "lease.json", 60.0)
    for now_s in (1050.0, 1100.0, 1150.0):  # noqa: B007
        lease.renew()
        assert not watch.is_over()
    now_s = 1210.0
    assert not watch.is_over()
    now_s = 1211.0
    assert watch.is_over()
    lease.renew()
    assert not watch.is_over(), "somebody is back in time"
