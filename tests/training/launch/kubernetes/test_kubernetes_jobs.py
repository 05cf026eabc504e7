"""What Kubernetes' answers mean, and what is said where it cannot be asked; `tests/cluster` has its protocol."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.config.launcher_specs import KubernetesSpec, Volume
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.jobs.job_request import JobHandle
from headway.training.launch.jobs.scheduler import JobState, SchedulerSilent
from headway.training.launch.kubernetes import scheduler
from headway.training.launch.kubernetes.manifests import Manifest
from headway.training.launch.kubernetes.scheduler import (
    INDEX_LABEL,
    NEEDED,
    NEEDED_FOR_SERVICE,
    Kubernetes,
    read_job,
)

DEPLOYMENTS = Path(__file__).parents[4] / "deployments" / "kubernetes"
SPEC = LaunchSpec(
    launcher="kubernetes",
    kubernetes=KubernetesSpec(image="i", volumes=(Volume(claim="c", mount_path="/w"),)),
)
HANDLE = JobHandle(launcher="kubernetes", job="k-8badf00d", key="k", order="8badf00d", log="/nowhere")


def job(*conditions: dict[str, str], **changes: Any) -> dict[str, Any]:
    where = {"name": "k", "labels": {"headway/order": "8badf00d"}, **changes.pop("metadata", {})}
    return {"metadata": where, "spec": changes, "status": {"conditions": list(conditions), "failed": 2}}


def pod(index: int, phase: str, made: str = "1", **status: Any) -> dict[str, Any]:
    labels = {INDEX_LABEL: str(index)}
    return {
        "metadata": {"name": f"k-{index}-{made}", "labels": labels, "creationTimestamp": made},
        "status": {"phase": phase, **status},
    }


UNSCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}
PULLING = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]}
KILLED = {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}


@pytest.mark.parametrize(
    ("shown", "pods", "state", "reason"),
    [
        (job({"type": "Complete", "status": "True", "reason": "Done"}), [], JobState.SUCCEEDED, "Done"),
        (
            job({"type": "Failed", "status": "True", "reason": "FailedIndexes", "message": "index 1"}),
            [],
            JobState.FAILED,
            "FailedIndexes: index 1",
        ),
        (job({"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}), [], JobState.PREEMPTED, "Deadline"),
        (job({"type": "Failed", "status": "False"}), [pod(0, "Running")], JobState.RUNNING, "pods that run: 1"),
        (job(), [], JobState.PENDING, "pods that run: 0"),
        (job(suspend=True), [], JobState.PENDING, "it is suspended"),
        (job(metadata={"deletionTimestamp": "now"}), [], JobState.RUNNING, "it is being deleted"),
        (job(), [pod(0, "Pending", **UNSCHEDULED)], JobState.PENDING, "pods that run: 0; k-0-1: 0/3 nodes"),
        (
            job(),
            [pod(0, "Running"), pod(1, "Pending", **PULLING)],
            JobState.RUNNING,
            "pods that run: 1; k-1-1: ImagePullBackOff: no such image",
        ),
        (
            job(),
            [pod(0, "Failed", **KILLED), pod(1, "Running")],
            JobState.PENDING,
            "pods that run: 1; k-0-1: OOMKilled: exit status 137",
        ),
        (job(), [pod(0, "Running", "2"), pod(0, "Failed", "1", **KILLED)], JobState.RUNNING, "pods that run: 1"),
        (job(), [pod(0, "Succeeded"), pod(1, "Running")], JobState.RUNNING, "pods that run: 1"),
    ],
)
def test_what_kubernetes_shows_of_a_job(shown: Any, pods: Any, state: JobState, reason: str) -> None:
    report = read_job(shown, pods)
    assert report.state is state and report.reason.startswith(reason)
    assert report.restarts == (0 if state.has_ended else 2)


def test_without_its_client_a_person_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'headway\[kubernetes\]'"):
        Kubernetes(SPEC)


def test_without_a_cluster_a_person_is_told_where_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"no cluster is configured here.*Set KUBECONFIG"):
        Kubernetes(SPEC)


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    """A cluster that does not answer."""
    config = tmp_path / "config"
    config.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: c, user: {}}],"
        " contexts: [{name: c, context: {cluster: c, user: c}}], current-context: c}"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    return Kubernetes(SPEC)


def test_a_server_that_gives_no_answer_says_nothing_about_the_job(nobody: Kubernetes) -> None:
    with pytest.raises(SchedulerSilent, match="cannot be reached to get Job k"):
        nobody.find("k")
    report = nobody.poll(HANDLE)
    assert report.state is JobState.UNKNOWN and "cannot be reached" in report.reason
    assert "cannot be reached" in nobody.log_tail(HANDLE, 5)[0]


def test_the_last_words_are_those_of_the_pod_that_failed_by_itself(
    nobody: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure ended the others, and they say no more than that."""
    sent_away, failed = pod(0, "Failed", **KILLED), pod(1, "Failed")
    sent_away["metadata"]["deletionTimestamp"] = "now"
    logs = {"k-0-1": ["waiting for the other"], "k-1-1": ["ImportError: no CUDA"]}
    server = SimpleNamespace(pods=lambda *_: [sent_away, failed], log=lambda _namespace, name, _lines: logs[name])
    monkeypatch.setattr(nobody, "_api", server)
    assert nobody.log_tail(HANDLE, 5) == ["k-1-1: ImportError: no CUDA"]
    logs["k-1-1"] = []
    assert nobody.log_tail(HANDLE, 5) == ["k-0-1: waiting for the other"]
    sent_away["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "Preemption"}]
    failed["status"]["phase"] = "Running"
    message = ["k-0-1: it must go (Preemption)", "k-0-1: waiting for the other"]
    assert nobody.log_tail(HANDLE, 5) == message, "here it is the one that began it"


class Deleted:
    """A server on which a job that was deleted is still there; a second for each time that somebody looks."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def get(self, _item: Manifest) -> Manifest:
        self.now_s += 1
        where = {"namespace": "default", "deletionTimestamp": "now", "uid": "u-1"}
        return job(metadata=where) | {"apiVersion": "batch/v1", "kind": "Job"}

    def pods(self, _namespace: str, _selector: str) -> list[Manifest]:
        return []


@pytest.mark.parametrize(("stop_grace_s", "settle_s"), [(20.0, 180), (1800.0, 1960)])
def test_a_job_that_was_deleted_is_waited_for_as_long_as_its_pods_may_take_to_end(
    nobody: Kubernetes, monkeypatch: pytest.MonkeyPatch, stop_grace_s: float, settle_s: int
) -> None:
    server = Deleted()
    patient = Kubernetes(SPEC.model_copy(update={"stop_grace_s": stop_grace_s}))
    monkeypatch.setattr(patient, "_api", server)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: server.now_s, sleep=lambda _s: None))
    with pytest.raises(EnvironmentProblem, match=f"was deleted, and has not gone in {settle_s} s"):
        patient.find("k")
    assert settle_s <= server.now_s - 1000 <= settle_s + 2


def test_a_runs_service_is_gone_before_its_job_is(nobody: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a next job of the same name takes it for its own."""
    monkeypatch.setattr(nobody, "_api", Deleted())
    owned = nobody._owned({"metadata": {"name": "k"}}, "k")
    assert owned["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "k", "uid": "u-1", "blockOwnerDeletion": True}
    ]


def test_a_flow_may_do_all_that_a_run_needs() -> None:
    """By the role that is shipped; a dry run asks for the same."""
    items = yaml.safe_load_all((DEPLOYMENTS / "access.yaml").read_text())
    (role,) = (item for item in items if item["kind"] == "Role")
    given = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb, group, resource in itertools.product(rule["verbs"], rule["apiGroups"], rule["resources"])
    }
    kinds = (("batch", "jobs"), ("trainer.kubeflow.org", "trainjobs"))
    of_jobs = {(verb, *kind) for kind in kinds for verb in ("create", "get", "delete")}
    of_jobs |= {("update", group, f"{plural}/finalizers") for group, plural in kinds}
    assert given == of_jobs | {*NEEDED, *NEEDED_FOR_SERVICE}


@pytest.mark.parametrize("name", ["0123456789abcdef", "Nightly_Run.7", "x" * 80])
def test_a_runs_key_is_a_name_that_kubernetes_takes(nobody: Kubernetes, tmp_path: Path, name: str) -> None:
    keys = {nobody.key(tmp_path / place / name) for place in "ab"}
    assert len(keys) == 2
    # With an index behind it, a pod's host name.
    assert all(len(key) < 50 and key.replace("-", "").isalnum() and key.islower() for key in keys)
