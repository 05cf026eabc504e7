"""Detached runs on Kubernetes, which is emulated: its own client, its protocol, pods as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem, RunStopped
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.launch.base.gang import DetachedSpec
from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.base.stop_request import request_stop
from headway.training.launch.jobs.job_request import JobOutcome
from headway.training.launch.jobs.scheduler import JobState
from tests.cluster.conftest import delete_all, kubernetes_spec
from tests.cluster.detached_run import LONG, REPOSITORY, DetachedRun
from tests.cluster.kubernetes_recorder import KubernetesRecorder, Pod
from tests.training.conftest import TINY, make_project
from tests.waiting import DEADLINE_S, wait_until

FORMS = pytest.mark.parametrize("runtime", [None, "headway"], ids=["indexed-job", "train-job"])


@pytest.fixture(scope="module")
def cluster(kubernetes: KubernetesRecorder) -> KubernetesRecorder:
    return kubernetes


@pytest.fixture
def run(cluster: KubernetesRecorder, tmp_path: Path) -> Iterator[DetachedRun]:
    folder = tmp_path / "runs of $(HOME)" / "0123456789abcdef"
    folder.mkdir(parents=True)
    made = DetachedRun(folder, kubernetes_spec(tmp_path))
    yield made
    for flow in made.flows:
        flow.kill()
        flow.wait()
    delete_all(cluster)
    assert cluster.living() == []


@FORMS
def test_a_job_of_two_pods_runs_to_its_end_and_the_flow_sees_it(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path, runtime: str | None
) -> None:
    run.spec = kubernetes_spec(tmp_path, pods={"training_runtime": runtime})
    run.follow(run.gang("--steps", "12", "--in-step"), run.spec)

    assert run.records() == ["done"]
    statuses = [run.attempt(1).read_status(node) for node in (0, 1)]
    assert [status.state for status in statuses if status is not None] == ["ended", "ended"]
    assert len(run.events("job.submitted")) == 1 and len(run.events("attempt")) == 1
    assert JobOutcome.load(run.files, run.handle().order) is None, "taken to heart"
    wait_until(lambda: run.state() is JobState.SUCCEEDED, what="the job's end")
    assert cluster.living() == []


def test_a_flow_that_dies_harms_nothing_and_the_next_one_watches_the_same_job(
    run: DetachedRun, cluster: KubernetesRecorder
) -> None:
    first = run.start_flow(run.spec, *LONG)
    run.wait_for_step()
    first.kill()
    first.wait()
    made = [request for request in cluster.requests if request.startswith("POST") and request.endswith("/jobs")]
    job = run.handle().job

    with pytest.raises(RunStopped, match="enough") as stopped:
        run.follow(run.gang(*LONG), run.spec, lambda: request_stop(run.folder, "enough"))

    assert stopped.value.reason == "requested"
    assert run.checkpoint() >= 3, "it was stopped in order"
    assert [event["job"] for event in run.events("job.found")] == [job]
    assert made == [request for request in cluster.requests if request.startswith("POST") and request.endswith("/jobs")]
    assert run.records() == ["stopped"] and run.survivors() == []


def test_a_run_goes_on_at_once_under_the_name_of_the_job_that_is_just_ending(run: DetachedRun) -> None:
    trouble = json.dumps({"kind": "stop", "step": 3})
    with pytest.raises(RunStopped, match="the window closes"):
        run.follow(run.gang(*LONG, "--in-step", "--trouble", trouble), run.spec)
    first = run.handle()
    run.follow(run.gang("--steps", "6", "--in-step"), run.spec)
    second = run.handle()
    assert run.records() == ["stopped", "done"]
    assert first.key == second.key and first.job != second.job


@pytest.mark.parametrize(
    "runtime", [None, pytest.param("headway", marks=pytest.mark.soak)], ids=["indexed-job", "train-job"]
)
@pytest.mark.parametrize("index", [0, 1], ids=["supervisor's pod", "other pod"])
def test_notice_to_a_pod_costs_no_attempt_and_no_step(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path, index: int, runtime: str | None
) -> None:
    spec = kubernetes_spec(tmp_path, pods={"training_runtime": runtime}, max_attempts=1)
    flow = run.start_flow(spec, "--until", str(run.folder / "enough"))
    run.wait_for_step()
    evicted = _there(cluster, index)
    cluster.evict(evicted)
    run.wait_for_step(attempt=2)
    kept = run.checkpoint()
    assert kept >= 3 and evicted.exit_code == 143
    assert run.first_step(2) == kept + 1, "it goes on where it was stopped"
    (run.folder / "enough").touch()
    assert flow.wait(DEADLINE_S) == 0, run.logs()
    assert run.records() == ["stopped", "done"]
    assert [event["restarts"] for event in run.events("job.begin")] == ([0, 1] if index == 0 else [0])
    assert len(run.events("job.submitted")) == 1


def test_a_run_shrinks_to_the_pods_that_are_left_and_one_that_returns_joins_the_next_attempt(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path
) -> None:
    spec = kubernetes_spec(tmp_path, pods={"gather_s": 1.0}, min_nodes=1, max_attempts=9)
    flow = run.start_flow(spec, "--until", str(run.folder / "enough"))
    run.wait_for_step()
    cluster.has_room = False
    try:
        _there(cluster, 1).kill()
        run.wait_for_step(attempt=2)
        assert set(run.attempt(2).read_markers()) == {0}
    finally:
        cluster.has_room = True
    wait_until(lambda: _there(cluster, 1).name in run.places(), what="the pod that returns")
    os.kill(run.attempt(2).read_markers()[0].pid, signal.SIGKILL)
    run.wait_for_step(attempt=3)
    wait_until(lambda: set(run.attempt(3).read_markers()) == {0, 1}, what="both ranks")
    (run.folder / "enough").touch()
    assert flow.wait(DEADLINE_S) == 0, run.logs()
    assert run.records() == ["failed", "failed", "done"]


def test_whoever_of_supervisor_guard_agent_rank_and_pod_is_killed_the_run_goes_on(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path
) -> None:
    spec = kubernetes_spec(tmp_path, max_attempts=9, max_cycles_without_progress=9)
    flow = run.start_flow(spec, "--children", "--until", str(run.folder / "enough"))
    for number, victim in enumerate(("rank", "agent", "guard", "pod", "supervisor"), start=1):
        run.wait_for_step(attempt=number)
        wait_until(lambda: 1 in run.attempt(number).read_markers(), what="rank 1")  # noqa: B023
        status, marker = run.attempt(number).read_status(1), run.attempt(number).read_markers()[1]
        left = Handle.load(run.folder)
        assert status is not None and left is not None
        pids = {"rank": marker.pid, "agent": status.agent_pid, "guard": status.guard_pid, "supervisor": left.owner_pid}
        if victim == "pod":
            _there(cluster, 1).kill()
        else:
            os.kill(pids[victim], signal.SIGKILL)
    run.wait_for_step(attempt=6)
    (run.folder / "enough").touch()
    assert flow.wait(DEADLINE_S) == 0, run.logs()
    assert run.records() == ["failed"] * 5 + ["done"]
    message = [str(event["what"]) for event in run.events("attempt")]
    assert "rank 1" in message[0] and "agent of node 1" in message[1]
    assert "guard of node 1" in message[2] and "guard of node 1" in message[3]
    assert all(each.failure.host.endswith(" on gpu-node-1") for each in AttemptRecords(run.folder).all()[:4])
    assert [event["restarts"] for event in run.events("job.begin")] == [0, 1], "the supervisor's pod was made anew"
    assert len(run.events("job.submitted")) == 1


def test_a_slow_pods_machine_is_named_and_left_out_also_after_the_pod_was_replaced_and_by_the_next_job(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path
) -> None:
    slow = ("--in-step", "--step-s", "0.02", "--slow-on", "gpu-node-1", "--slow-by-s", "5")
    until = ("--steps", "1", "--until", str(run.folder / "enough"))
    spec = kubernetes_spec(tmp_path, stragglers="exclude", min_nodes=1, max_attempts=9)
    flow = run.start_flow(spec, *slow, *until)
    run.wait_for_step(attempt=2)
    slow_pod = _there(cluster, 1)
    where = f"pod {slow_pod.name} on gpu-node-1"
    (excluded,) = wait_until(lambda: run.events("host.excluded"), what="the flow to hear of it")
    (started,), (told,) = run.events("job.begin"), run.events("rank.slow")
    assert f"pod {_there(cluster, 0).name} on gpu-node-0" in started["message"]
    assert (told["rank"], told["host"], excluded["host"]) == (1, where, where)
    assert excluded["what"].startswith(f"rank 1 on {where} is slow: ")
    assert excluded["what"].endswith("The run continues without gpu-node-1.")

    slow_pod.kill()
    wait_until(lambda: _there(cluster, 1).name in run.places(), what="the pod that comes in its place")
    assert _there(cluster, 1).name != slow_pod.name and _there(cluster, 1).spec["nodeName"] == "gpu-node-1"
    os.kill(run.attempt(2).read_markers()[0].pid, signal.SIGKILL)
    run.wait_for_step(attempt=3)
    assert set(run.attempt(2).read_markers()) == set(run.attempt(3).read_markers()) == {0}, "the machine is left out"
    assert len(run.events("job.submitted")) == 1, "no job ends for it"

    request_stop(run.folder, "as at the end of a window")
    assert flow.wait(DEADLINE_S) != 0
    (run.folder / "enough").touch()
    run.follow(run.gang(*slow, *until), spec)
    assert [(each.state, each.excluded) for each in AttemptRecords(run.folder).all()] == [
        *(("stopped", "gpu-node-1"), ("failed", ""), ("stopped", ""), ("done", ""))
    ]
    assert set(run.attempt(4).read_markers()) == {0, 1}, "all pods take part where none stands on it"
    assert {pod.spec["nodeName"] for pod in cluster.pods} == {"gpu-node-0", "gpu-node-2"}


def test_within_10_s_of_a_cancellation_nothing_is_left_and_the_flow_says_who(
    run: DetachedRun, cluster: KubernetesRecorder
) -> None:
    def cancel() -> None:
        if run.newest_step(1) >= 3 and run.state() is JobState.RUNNING:
            run.scheduler.cancel(run.handle())
            wait_until(lambda: not cluster.living(), within_s=10, what="the end of all pods")

    with pytest.raises(RunStopped, match=r"job headway-\S+ was cancelled in kubernetes") as stopped:
        run.follow(run.gang(*LONG, "--children"), run.spec, cancel)

    assert "continues it" in str(stopped.value)
    assert run.checkpoint() >= 3, "pods that are deleted have notice"
    assert cluster.objects == {}, "the service went with its job"


def test_an_interrupted_flow_keeps_a_checkpoint_and_ends_the_job(run: DetachedRun, cluster: KubernetesRecorder) -> None:
    def interrupt() -> None:
        if run.newest_step(1) >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.follow(run.gang(*LONG), run.spec, interrupt)
    assert run.checkpoint() >= 3 and run.survivors() == []
    wait_until(lambda: run.state().has_ended, what="the job's end")


def test_a_run_that_nobody_watches_keeps_a_checkpoint_and_stops_and_is_taken_up_again(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path
) -> None:
    spec = kubernetes_spec(tmp_path, detached=DetachedSpec(lease_s=5.0))
    run.go_unwatched(spec, living=cluster.living)
    run.be_taken_up_again(spec)


def test_a_server_that_is_silent_for_a_while_costs_nothing(run: DetachedRun, cluster: KubernetesRecorder) -> None:
    enough = run.folder / "enough"

    def be_silent() -> None:
        is_told = any("unable to handle" in event["message"] for event in run.events("job.state"))
        cluster.is_silent = run.newest_step(1) >= 3 and not is_told
        if is_told:
            enough.touch()

    try:
        run.follow(run.gang("--until", str(enough)), run.spec, be_silent)
    finally:
        cluster.is_silent = False
    assert run.records() == ["done"]


def test_what_kubernetes_refuses_is_told_in_its_own_words_and_leaves_nothing(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path
) -> None:
    run.scheduler.dry_run(run.spec, run.gang())
    for pods, words in (
        ({"namespace": "nowhere"}, 'namespaces "nowhere" not found'),
        ({"training_runtime": "nobody"}, "ClusterTrainingRuntime nobody not found"),
    ):
        refused = DetachedRun(run.folder, kubernetes_spec(tmp_path, pods=pods))
        with pytest.raises(EnvironmentProblem, match=words):
            refused.scheduler.dry_run(refused.spec, run.gang())
        with pytest.raises(EnvironmentProblem, match=words):
            run.follow(run.gang(*LONG), refused.spec)
    cluster.denied = {"list pods", "get pods/log"}
    try:
        with pytest.raises(EnvironmentProblem, match="not allowed in namespace default: list pods, get pods/log"):
            run.scheduler.dry_run(run.spec, run.gang())
    finally:
        cluster.denied = set()
    assert cluster.objects == {} and cluster.pods == []


def test_a_pod_that_never_comes_up_ends_the_run_with_its_own_words(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path
) -> None:
    bare = {"python": str(Path(sys.base_prefix) / "bin" / "python3"), "environment": {}}
    spec = kubernetes_spec(tmp_path, pods=bare, max_attempts=1)
    with pytest.raises(EnvironmentProblem, match=r"(?s)FailedIndexes.*No module named 'headway'") as told:
        run.follow(run.gang(*LONG), spec)
    assert "Its last lines:" in str(told.value)


def test_real_workers_in_two_pods_come_to_the_bits_of_a_run_without_kubernetes_also_over_an_eviction(
    run: DetachedRun, cluster: KubernetesRecorder, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "workspace")
    # Long enough to be evicted from; what is written meanwhile is for others to test.
    training = TINY.model_copy(update={"max_steps": 300, "checkpoints": CheckpointSpec(every_steps=100)})
    spec = project.publish_run(training)
    assert project.train(spec, tmp_path / "without", world_size=2) == [0, 0]
    arguments = ("--workspace", project.workspace.uri, "--run-spec", spec.sha256, "--run-dir", str(run.folder))
    evicted: list[str] = []

    def evict() -> None:
        if run.newest_step(1) >= 2 and not evicted:
            pod = _there(cluster, 1)
            evicted.append(pod.name)
            cluster.evict(pod)

    real = kubernetes_spec(tmp_path, toys=False)
    run.follow(
        run.gang(module="headway.training.programs.worker", arguments=arguments, import_path=(str(REPOSITORY),)),
        real,
        evict,
    )

    assert run.records() == ["stopped", "done"]
    bits = [json.loads((folder / "result.json").read_bytes()) for folder in (run.folder, tmp_path / "without")]
    assert bits[0]["tensors_sha256"] == bits[1]["tensors_sha256"]


def _there(cluster: KubernetesRecorder, index: int) -> Pod:
    return wait_until(lambda: cluster.running(index), what=f"the pod of index {index}")
