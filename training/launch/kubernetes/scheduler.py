"""Launcher `kubernetes`: a run is one job of several pods; the supervisor is in the first, a guard in each.

A run's job always has one name, made of the run's key, so that Kubernetes itself lets no two be there at once; one that
is over makes room for the next. What pods write lies on the volume that the flow shares with them.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.diagnosis.logs import last_lines
from headway.training.launch.jobs.job_request import DetachedFiles, JobHandle, JobRequest
from headway.training.launch.jobs.scheduler import JobReport, JobState, SchedulerSilent, run_key
from headway.training.launch.kubernetes.api import KubernetesApi
from headway.training.launch.kubernetes.manifests import (
    KEY_LABEL,
    ORDER_LABEL,
    Manifest,
    as_list,
    grace_s,
    job_name,
    manifests,
    spec_of,
)

SUBMIT_S = 60.0
"""How long a server that cannot be reached is asked again before a job is not created."""
SETTLE_MARGIN_S = 130.0
"""Beyond their grace: how long a job that was deleted may take to be gone, with its pods."""
TRY_AGAIN_S = 1.0
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
NEEDED = (("list", "", "pods"), ("get", "", "pods/log"), ("create", "networking.k8s.io", "networkpolicies"))
"""Rights beyond those on the job itself; see deployments/kubernetes/access.yaml."""
NEEDED_FOR_SERVICE = (("create", "", "services"),)


class Kubernetes:
    name = "kubernetes"

    def __init__(self, spec: LaunchSpec) -> None:
        """Raises `EnvironmentProblem`: the client is not installed, or no cluster is configured."""
        self._spec = spec_of(spec)
        self._settle_s = grace_s(spec) + SETTLE_MARGIN_S
        self._api = KubernetesApi(self._spec.context)

    def key(self, run_dir: Path) -> str:
        # Names in Kubernetes are labels of DNS: lower-case letters, digits and dashes.
        return re.sub(r"[^a-z0-9]+", "-", run_key(run_dir).lower())

    def render(self, order: JobRequest, now_unix_s: float) -> str:
        return json.dumps(as_list(self._manifests(order, now_unix_s)), indent=2)

    def _manifests(self, order: JobRequest, now_unix_s: float) -> list[Manifest]:
        gang = order.to_gang()
        return manifests(order.spec, gang, self.key(gang.run_dir), order.order, now_unix_s, order.without)

    def find(self, key: str) -> str | None:
        """Raises:
        SchedulerSilent: Kubernetes cannot be asked now.
        EnvironmentProblem: nor later.
        """
        deadline_s = time.monotonic() + self._settle_s
        while (job := self._api.get(self._job(key))) is not None and not self._is_over(job):
            # One that is being deleted still has the name; only when it is gone can another be created.
            if "deletionTimestamp" not in job["metadata"]:
                return _name(job)
            self._settle(key, deadline_s)
        return None

    def _is_over(self, job: Manifest) -> bool:
        """Or will be in a moment: other pods follow the first."""
        if _end(job) is not None:
            return True
        # The Job counts as complete only when all pods have ended, seconds after the supervisor's.
        return any(pod["status"].get("phase") == "Succeeded" for pod in self._pods(job) if _index(pod) == 0)

    def submit(self, order: JobRequest) -> JobHandle:
        """Raises `EnvironmentProblem`: Kubernetes refused, in its own words, or cannot be asked."""
        run_dir = Path(order.gang["run_dir"])
        key, started_s = self.key(run_dir), time.monotonic()
        while True:
            try:
                first, *others = self._manifests(order, time.time())
                # Before each try: one that got no answer may have been heard all the same.
                name = self.find(key) or (self._api.create(first) and job_name(key, order.order))
                if name:
                    for item in others:
                        self._api.create(self._owned(item, key))
                    log = str(DetachedFiles(run_dir).log(name))
                    return JobHandle(launcher=self.name, job=name, key=key, order=order.order, log=log)
                # One that is over still has the name.
                self._api.delete(first)
                self._settle(key, started_s + self._settle_s)
            except SchedulerSilent:
                if time.monotonic() > started_s + SUBMIT_S:
                    raise
                time.sleep(TRY_AGAIN_S)

    def _owned(self, item: Manifest, key: str) -> Manifest:
        """Goes when the job goes."""
        job = self._api.get(self._job(key))
        if job is None:
            return item
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": key, "uid": job["metadata"]["uid"]}
        # Else the next job could find this one's service under its name, which is gone a moment later.
        owns = {**owner, "blockOwnerDeletion": True}
        return {**item, "metadata": {**item["metadata"], "ownerReferences": [owns]}}

    def dry_run(self, spec: LaunchSpec, gang: Gang) -> None:
        """Have Kubernetes look at the run's objects without keeping them.

        Raises:
            EnvironmentProblem: it would refuse one, in its own words, or something that a run needs is not allowed.
        """
        # A fixed order, for nothing is created: names and owners do not matter.
        for item in manifests(spec, gang, self.key(gang.run_dir), "dry-run", time.time()):
            self._api.create(item, dry_run=True)
        is_train_job = bool(self._spec.training_runtime)
        job = ("trainer.kubeflow.org", "trainjobs") if is_train_job else ("batch", "jobs")
        # The last: what else there is belongs to the job, which is not gone before it.
        of_job = (("get", *job), ("delete", *job), ("update", job[0], f"{job[1]}/finalizers"))
        wanted = [*of_job, *NEEDED, *(() if is_train_job else NEEDED_FOR_SERVICE)]
        denied = [
            f"{verb} {resource}"
            for verb, group, resource in wanted
            if not self._api.may(self._spec.namespace, verb, group, resource)
        ]
        if denied:
            raise EnvironmentProblem(
                f"not allowed in namespace {self._spec.namespace}: {', '.join(denied)}.",
                where="Kubernetes",
                advice="Ask for the rights in deployments/kubernetes/access.yaml.",
            )

    def poll(self, handle: JobHandle, *, since_s: float = 0.0) -> JobReport:
        try:
            job = self._api.get(self._job(handle.key))
            # One name for all jobs of a run: another order under it means that ours was deleted and replaced.
            if job is None or _name(job) != handle.job:
                return JobReport(state=JobState.CANCELLED, reason="it was deleted")
            return read_job(job, self._pods(job))
        # No answer says nothing of the job; the caller decides how long it is patient.
        except EnvironmentProblem as problem:
            return JobReport(state=JobState.UNKNOWN, reason=str(problem))

    def log_tail(self, handle: JobHandle, lines: int) -> list[str]:
        """Of the supervisor; where it came to none, of a pod, or of Kubernetes about it."""
        # On the shared volume, so it is there also when the pod is gone.
        if words := last_lines(Path(handle.log), lines):
            return words
        try:
            pods = _newest(self._api.pods(self._spec.namespace, f"{KEY_LABEL}={handle.key}"))
            for pod in sorted(pods, key=_how_little_it_knows):
                if words := self._log_of(pod, lines):
                    return [f"{pod['metadata']['name']}: {line}" for line in words]
        except EnvironmentProblem as problem:
            return [str(problem)]
        return []

    def _log_of(self, pod: Manifest, lines: int) -> list[str]:
        # A container that never came up has no log.
        with contextlib.suppress(EnvironmentProblem):
            if words := self._api.log(self._spec.namespace, pod["metadata"]["name"], lines):
                return [*filter(None, [_disruption(pod)]), *words]
        return [why] if (why := _why(pod)) else []

    def cancel(self, handle: JobHandle) -> None:
        self._api.delete(self._job(handle.key))

    def _pods(self, job: Manifest) -> list[Manifest]:
        where = job["metadata"]
        # A pod of an earlier job of the run has the same key, and may not have gone yet.
        order = where.get("labels", {}).get(ORDER_LABEL, "")
        return self._api.pods(where["namespace"], f"{KEY_LABEL}={where['name']},{ORDER_LABEL}={order}")

    def _job(self, key: str) -> Manifest:
        kind = ("trainer.kubeflow.org/v1alpha1", "TrainJob") if self._spec.training_runtime else ("batch/v1", "Job")
        where = {"name": key, "namespace": self._spec.namespace}
        return {"apiVersion": kind[0], "kind": kind[1], "metadata": where}

    def _settle(self, key: str, deadline_s: float) -> None:
        if time.monotonic() > deadline_s:
            raise EnvironmentProblem(
                f"the job was deleted, and has not gone in {self._settle_s:g} s.",
                where=f"job {key}",
                advice="Ask who looks after the cluster: a node may not answer. Then retrain.",
            )
        time.sleep(TRY_AGAIN_S)


def read_job(job: Manifest, pods: list[Manifest]) -> JobReport:
    """What a job's object and its pods' say of it."""
    if (end := _end(job)) is not None:
        return end
    restarts = int(job.get("status", {}).get("failed") or 0)
    if "deletionTimestamp" in job["metadata"]:
        return JobReport(state=JobState.RUNNING, reason="it is being deleted", restarts=restarts)
    # Kueue admits jobs by this field; until then no pod is created.
    if job["spec"].get("suspend"):
        return JobReport(state=JobState.PENDING, reason="it is suspended", restarts=restarts)
    newest = _newest(pods)
    phases = {_index(pod): pod["status"].get("phase", "") for pod in newest}
    reasons = [f"{pod['metadata']['name']}: {why}" for pod in newest if (why := _why(pod))]
    reason = "; ".join((f"pods that run: {list(phases.values()).count('Running')}", *reasons[:1]))
    # Whoever waits for the first waits for the supervisor.
    is_up = phases.get(0) in ("Running", "Succeeded")
    return JobReport(state=JobState.RUNNING if is_up else JobState.PENDING, reason=reason, restarts=restarts)


def _newest(pods: list[Manifest]) -> list[Manifest]:
    """Of each index, in their order: what failed stays to be looked at."""
    found: dict[int, Manifest] = {}
    # Sorted by creation, so the newest pod of an index replaces the others in the dictionary.
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        found[_index(pod)] = pod
    return [found[index] for index in sorted(found)]


def _end(job: Manifest) -> JobReport | None:
    """Of a Job's conditions, which a TrainJob has too."""
    for condition in job.get("status", {}).get("conditions", ()):
        if condition.get("status") != "True":
            continue
        words = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
        if condition["type"] == "Complete":
            return JobReport(state=JobState.SUCCEEDED, reason=words or "Complete")
        if condition["type"] == "Failed":
            # The deadline is the run's own end and some; the run may go on in another window.
            is_late = condition.get("reason") == "DeadlineExceeded"
            return JobReport(state=JobState.PREEMPTED if is_late else JobState.FAILED, reason=words or "Failed")
    return None


def _why(pod: Manifest) -> str:
    """A pod does not run, or had to go; empty where all is well."""
    status: dict[str, Any] = pod["status"]
    if disruption := _disruption(pod):
        return disruption
    for container in status.get("containerStatuses", ()):
        for state in ("waiting", "terminated"):
            # A container that waits or ended tells more than the pod's phase: the image's name, the exit status.
            if (found := container.get("state", {}).get(state)) and found.get("exitCode") != 0:
                code = f"exit status {found['exitCode']}" if "exitCode" in found else ""
                return ": ".join(filter(None, (found.get("reason"), found.get("message"), code)))
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "it has no place yet")
    return str(status.get("message") or status.get("reason") or "")


def _disruption(pod: Manifest) -> str:
    """Empty where nothing takes the pod away."""
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return f"it must go ({condition.get('reason', '')})"
    return ""


def _name(job: Manifest) -> str:
    return job_name(job["metadata"]["name"], job["metadata"].get("labels", {}).get(ORDER_LABEL, ""))


def _index(pod: Manifest) -> int:
    return int(pod["metadata"].get("labels", {}).get(INDEX_LABEL, 0))


def _how_little_it_knows(pod: Manifest) -> int:
    """Of why the job failed: one that failed or had to go by itself most; one that was ended for another's failure
    least."""
    if _disruption(pod):
        return 0
    if "deletionTimestamp" in pod["metadata"]:
        return 2
    return 0 if pod["status"].get("phase") == "Failed" else 1
