"""Detached runs on a real Slurm: several nodes on this machine, toy workers where the promise is about processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ContractViolation, EnvironmentProblem, RunStopped
from headway.flows.console.command_signals import HungUp
from headway.training.launch.base.gang import DetachedSpec, LaunchSpec
from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.base.protocol import TOKEN as RUN_TOKEN
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.base.stop_request import StopRequest, request_stop
from headway.training.launch.hosts.probe import HEADWAY_HOME
from headway.training.launch.jobs.follow import WORKER_LOST
from headway.training.launch.jobs.job_request import JobHandle, JobOutcome
from headway.training.launch.jobs.scheduler import JobState
from headway.training.launch.slurm import batch_script
from headway.training.launch.slurm.commands import run_command
from headway.training.launch.slurm.scheduler import Slurm
from headway.training.observe.ledger import read_events
from tests.cluster.conftest import PATIENT, QUICK
from tests.cluster.detached_run import LONG, REPOSITORY, DetachedRun
from tests.cluster.slurm import SlurmCluster
from tests.cluster.toys import start_toy_agents
from tests.training.conftest import make_project
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture(autouse=True)
def toy_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    start_toy_agents(monkeypatch.setattr)


@pytest.fixture
def real_agents(toy_agents: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_script, "HEADWAY_HOME", HEADWAY_HOME)


@dataclass
class Run(DetachedRun):
    cluster: SlurmCluster = field(kw_only=True)


SPEC = LaunchSpec(launcher="slurm", **QUICK, **PATIENT)


def give_notice(handle: JobHandle) -> None:
    """As Slurm does before it ends a job."""
    run_command("scancel", "--signal=TERM", "--batch", handle.job)


@pytest.fixture
def run(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Run]:
    # As a site may name its folders; sbatch has its own ideas of both characters.
    folder = tmp_path / "runs of 100%" / "0123456789abcdef"
    folder.mkdir(parents=True)
    made = Run(folder, SPEC, cluster=slurm)
    yield made
    for flow in made.flows:
        flow.kill()
        flow.wait()
    slurm.cancel_all()
    assert made.survivors() == []


def test_a_job_of_two_nodes_runs_to_its_end_and_the_flow_sees_it(run: Run) -> None:
    run.follow(run.gang("--steps", "12"), SPEC)

    assert run.records() == ["done"]
    statuses = [run.attempt(1).read_status(node) for node in (0, 1)]
    assert [status.state for status in statuses if status is not None] == ["ended", "ended"]
    assert len(run.events("job.submitted")) == 1 and len(run.events("attempt")) == 1
    assert run.events("attempt")[0]["folder"] == str(run.attempt(1).folder), "the account of time finds the ranks"
    assert JobOutcome.load(run.files, run.handle().order) is None, "taken to heart"
    wait_until(lambda: run.state() is JobState.SUCCEEDED, what="the job's end")
    assert run.survivors() == []


def test_the_job_itself_keeps_a_bound_on_the_cost_and_ends_in_order(run: Run) -> None:
    flow = run.start_flow(SPEC, *LONG, stop=StopRequest(paid_s=8.0, paid_detail="usd_per_run: 1.00"))
    run.wait_for_step()
    flow.kill()
    wait_until(lambda: run.state() is JobState.SUCCEEDED, what="the job's end, which nobody watches")
    left = JobOutcome.load(run.files, run.handle().order)
    assert left is not None and (left.state, left.failure.reason) == ("stopped", "cost bound reached")
    assert "usd_per_run: 1.00" in left.failure.what and run.checkpoint() >= 3
    assert run.records() == ["stopped"] and run.survivors() == []


def test_a_flow_that_dies_harms_nothing_and_the_next_one_watches_the_same_job(run: Run) -> None:
    first = run.start_flow(SPEC, *LONG)
    run.wait_for_step()
    second = run.start_flow(SPEC, *LONG)
    assert second.wait(DEADLINE_S) == 1
    assert f"pid {first.pid}" in (run.folder / "flows.log").read_text(), "who watches is named"
    first.kill()
    first.wait()
    (job,) = run.cluster.job_ids(run.handle().key)

    with pytest.raises(RunStopped, match="enough") as stopped:
        run.follow(run.gang(*LONG), SPEC, lambda: request_stop(run.folder, "enough"))

    assert stopped.value.reason == "requested"
    assert run.checkpoint() >= 3, "it was stopped in order"
    assert [event["job"] for event in run.events("job.found")] == [job]
    assert run.cluster.job_ids(run.handle().key) == [job], "one job in all"
    assert run.records() == ["stopped"] and run.survivors() == []


def test_only_a_persons_wish_ends_the_job_with_the_flow(run: Run) -> None:
    def lose_the_worker() -> None:
        if run.newest_step(1) >= 3:
            run.ledger.event(WORKER_LOST)
            raise KeyboardInterrupt

    def hang_up() -> None:
        raise HungUp

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.follow(run.gang(*LONG), SPEC, lose_the_worker)
    with pytest.raises(HungUp):
        run.follow(run.gang(*LONG), SPEC, hang_up)
    assert run.state() is JobState.RUNNING and run.checkpoint() == 0
    with pytest.raises(KeyboardInterrupt):
        run.follow(run.gang(*LONG), SPEC, interrupt)

    assert run.checkpoint() >= 3
    assert run.survivors() == []
    wait_until(lambda: run.state().has_ended, what="the job's end")
    assert len(run.events("job.submitted")) == 1


def test_a_flow_learns_in_plain_words_that_somebody_cancelled_the_job(run: Run) -> None:
    def cancel() -> None:
        if run.newest_step(1) >= 3 and run.state() is JobState.RUNNING:
            Slurm().cancel(run.handle())

    with pytest.raises(RunStopped, match=r"job \d+ was cancelled in slurm") as stopped:
        run.follow(run.gang(*LONG), SPEC, cancel)

    assert "continues it" in str(stopped.value)
    assert run.survivors() == []


def test_notice_before_the_job_is_pre_empted_costs_no_attempt_and_no_step(run: Run) -> None:
    flow = run.start_flow(SPEC.model_copy(update={"max_attempts": 1}), "--until", str(run.folder / "enough"))
    run.wait_for_step()

    give_notice(run.handle())

    run.wait_for_step(attempt=2)
    kept = run.checkpoint()
    assert kept >= 3
    first = next(event for event in read_events(run.attempt(2).rank_spool(0)) if event["event"] == "step")
    assert first["step"] == kept + 1, "it goes on where it was stopped"
    (run.folder / "enough").touch()
    assert flow.wait(DEADLINE_S) == 0, run.logs()
    assert run.records() == ["stopped", "done"]
    assert [event["restarts"] for event in run.events("job.begin")] == [0, 1]
    assert len(run.events("job.submitted")) == 1


def test_whoever_of_supervisor_guard_agent_and_rank_is_killed_the_next_attempt_goes_on(run: Run) -> None:
    patient = {"max_attempts": 9, "max_cycles_without_progress": 9}
    flow = run.start_flow(SPEC.model_copy(update=patient), "--children", "--until", str(run.folder / "enough"))
    for number, victim in enumerate(("rank", "agent", "guard", "supervisor"), start=1):
        run.wait_for_step(attempt=number)
        wait_until(lambda: 1 in run.attempt(number).read_markers(), what="rank 1")  # noqa: B023
        status, marker = run.attempt(number).read_status(1), run.attempt(number).read_markers()[1]
        left = Handle.load(run.folder)
        assert status is not None and left is not None
        pids = {"rank": marker.pid, "agent": status.agent_pid, "guard": status.guard_pid, "supervisor": left.owner_pid}
        os.kill(pids[victim], signal.SIGKILL)
    wait_until(lambda: not processes_with(RUN_TOKEN, left.token), what="the end of all that the supervisor left")
    run.wait_for_step(attempt=5)
    (run.folder / "enough").touch()
    assert flow.wait(DEADLINE_S) == 0, run.logs()
    assert run.records() == ["failed"] * 4 + ["done"]
    message = [str(event["what"]) for event in run.events("attempt")]
    assert "rank 1" in message[0] and "agent of node 1" in message[1] and "guard of node 1" in message[2]
    assert len(run.events("job.submitted")) == 2, "the supervisor's death ended the first job"
    assert run.survivors() == []


def test_a_run_that_nobody_watches_keeps_a_checkpoint_and_stops_and_is_taken_up_again(run: Run) -> None:
    spec = SPEC.model_copy(update={"detached": DetachedSpec(lease_s=10.0)})
    kept = run.go_unwatched(spec, living=run.survivors)
    run.be_taken_up_again(spec)
    assert run.newest_step(2) in (0, max(kept, 20)), "from the checkpoint on"


def test_a_lost_machine_costs_an_attempt_and_slurm_starts_the_job_elsewhere(run: Run, slurm: SlurmCluster) -> None:
    # Two attempts, so that one too many is one that fails.
    flow = run.start_flow(SPEC.model_copy(update={"max_attempts": 2}), "--until", str(run.folder / "enough"))
    run.wait_for_step()
    shown = slurm.command("scontrol", "--oneliner", "show", "job", run.handle().job)
    lost = shown.partition("BatchHost=")[2].split()[0]
    try:
        # What the node runs lives on, out of Slurm's reach: the old supervisor has to make room for the new one.
        slurm.kill_node(lost)
        run.wait_for_step(attempt=2)
        (run.folder / "enough").touch()
        assert flow.wait(DEADLINE_S) == 0, run.logs()
    finally:
        slurm.start_node(lost)
        slurm.wait_for_nodes()
    assert run.records() == ["failed", "done"]
    assert [event["restarts"] for event in run.events("job.begin")] == [0, 1]
    assert len(run.events("job.submitted")) == 1


def test_an_error_of_a_rank_comes_back_as_itself(run: Run) -> None:
    trouble = json.dumps({"kind": "contract", "step": 3})
    with pytest.raises(ContractViolation) as refused:
        run.follow(run.gang("--trouble", trouble), SPEC)
    assert str(refused.value) == "here: no receipt. Validate first."
    assert run.records() == ["failed"]


def test_what_slurm_refuses_is_told_in_its_own_words_and_leaves_nothing(run: Run) -> None:
    spec = SPEC.model_copy(update={"slurm": SPEC.slurm.model_copy(update={"partition": "nowhere"})})
    Slurm().dry_run(SPEC, run.gang())
    with pytest.raises(EnvironmentProblem, match="invalid partition specified: nowhere"):
        Slurm().dry_run(spec, run.gang())
    with pytest.raises(EnvironmentProblem, match="invalid partition specified: nowhere"):
        run.follow(run.gang(*LONG), spec)
    assert run.cluster.command("squeue", "--noheader") == ""


def test_a_stop_asked_for_while_the_job_waits_takes_it_out_of_the_queue(run: Run) -> None:
    hold = SPEC.slurm.model_copy(update={"sbatch_options": ("--hold",)})

    def stop() -> None:
        if run.events("job.state"):
            request_stop(run.folder, "not tonight")

    with pytest.raises(RunStopped, match=r"not tonight.*taken out of the queue"):
        run.follow(run.gang(*LONG), SPEC.model_copy(update={"slurm": hold}), stop)
    wait_until(lambda: run.state() is JobState.CANCELLED, what="the job's end")
    assert run.records() == []


SLOW = ("--steps", "150", "--in-step", "--step-s", "0.02", "--slow-on", "n2", "--slow-by-s", "0.5")
EXCLUDE = SPEC.model_copy(update={"stragglers": "exclude", "max_attempts": 1})


def test_a_slow_node_is_left_out_where_another_is_free_by_another_job_that_goes_on_at_the_same_step(run: Run) -> None:
    enough = run.folder / "enough"

    def end_the_second() -> None:
        if run.newest_step(2) >= 1:
            enough.touch()

    run.follow(run.gang(*SLOW, "--steps", "1", "--until", str(enough)), EXCLUDE, end_the_second)

    (told,) = run.events("rank.slow")
    assert (told["rank"], told["host"], told["part"]) == (1, "n2", "forward")
    (excluded,) = run.events("host.excluded")
    assert excluded["host"] == "n2" and "The run continues without n2." in excluded["what"]
    assert len(run.events("job.again")) == 1
    records = AttemptRecords(run.folder).all()
    assert [(record.state, record.excluded) for record in records] == [("stopped", "n2"), ("done", "")]
    assert run.first_step(2) == run.newest_step(1) + 1, "what was done is kept"
    first, second = sorted(run.cluster.job_ids(run.handle().key), key=int)
    assert "NodeList=n[1-2]" in run.cluster.command("scontrol", "--oneliner", "show", "job", first)
    shown = run.cluster.command("scontrol", "--oneliner", "show", "job", second)
    assert "ExcNodeList=n2" in shown and "NodeList=n[1,3]" in shown


def test_a_slow_node_is_better_than_a_place_in_the_queue(run: Run) -> None:
    run.cluster.command("sbatch", "--nodelist=n3", "--exclusive", "--wrap=sleep 600", "--output=/dev/null")
    wait_until(lambda: "R" in run.cluster.command("squeue", "--noheader", "--format=%t"), what="n3 to be taken")

    run.follow(run.gang(*SLOW), EXCLUDE)

    assert len(run.events("rank.slow")) == 1 and run.events("host.excluded") == []
    assert run.records() == ["done"] and len(run.cluster.job_ids(run.handle().key)) == 1


@pytest.mark.usefixtures("real_agents")
def test_real_workers_on_two_nodes_come_to_the_bits_of_a_run_without_slurm(run: Run, tmp_path: Path) -> None:
    project = make_project(tmp_path / "workspace")
    spec = project.publish_run()
    assert project.train(spec, tmp_path / "without", world_size=2) == [0, 0]
    arguments = ("--workspace", project.workspace.uri, "--run-spec", spec.sha256, "--run-dir", str(run.folder))

    run.follow(
        run.gang(module="headway.training.programs.worker", arguments=arguments, import_path=(str(REPOSITORY),)), SPEC
    )

    bits = [json.loads((folder / "result.json").read_bytes()) for folder in (run.folder, tmp_path / "without")]
    assert bits[0]["tensors_sha256"] == bits[1]["tensors_sha256"]
