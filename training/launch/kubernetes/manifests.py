"""What Kubernetes is told of a run: a TrainJob, or an Indexed Job with a headless Service; and who may reach its pods.

Pure. Pods keep to the Pod Security Standard *restricted*.

Every pod runs `headway.training.launch.kubernetes.pod`; the one of index 0 has the supervisor beside it. A pod is never
started anew in its place: a job makes another, also for one that was evicted, and the retry budget is the run's own.
Sources: batch/v1 Job, trainer.kubeflow.org/v1alpha1 TrainJob 2.3, Kubernetes 1.31 to 1.37.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.launcher_specs import KubernetesSpec
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.protocol import JOB, MACHINE, POD, POD_ADDRESS

Manifest = dict[str, Any]

KEY_LABEL, ORDER_LABEL = "headway/key", "headway/order"
CONTAINER = "node"
"""Kubeflow Trainer's name for it, too."""
MANAGER = "headway/launcher"
POD_SECURITY: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
EXIT_LEAVING = 143
"""Of a pod that was told to end: no failure of its."""
KEPT_S = 86_400
"""How long Kubernetes keeps a job that is over."""
NOTICE_MARGIN_S = 30.0
"""Beyond the ranks' grace: for the supervisor to hear of the notice, and for agents to end."""
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A subdomain of RFC 1123."""


def manifests(
    spec: LaunchSpec, gang: Gang, key: str, order: str, now_unix_s: float, without: Collection[str] = ()
) -> list[Manifest]:
    """The job first; what else there is belongs to it.

    Args:
        order: of which this is the job; its beginning is part of the job's name among our files.
        without: machines on which no pod is to stand if others will do.

    Raises:
        ConfigError: the run's folder lies on none of the volumes.
    """
    request = _ManifestRequest(spec, spec_of(spec), gang, key, order, now_unix_s, without)
    _require_mounted(request.kubernetes, gang.run_dir)
    policy = _network_policy(request)
    if request.kubernetes.training_runtime:
        return [_train_job(request), policy]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request),
        # Names, forward and reverse, for process groups, which ask for their own.
        # Addresses are published before pods are ready: ranks look each other up while they start.
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {KEY_LABEL: key}},
    }
    return [_indexed_job(request), service, policy]


@dataclass(frozen=True, slots=True)
class _ManifestRequest:
    """What decides a job's manifests; see `manifests`."""

    spec: LaunchSpec
    kubernetes: KubernetesSpec
    gang: Gang
    key: str
    order: str
    now_unix_s: float
    without: Collection[str]


def spec_of(spec: LaunchSpec) -> KubernetesSpec:
    assert spec.kubernetes is not None, "the launcher is `kubernetes`, which needs its branch"
    return spec.kubernetes


def grace_s(spec: LaunchSpec) -> int:
    """How long a pod may take to end once it was told to."""
    return math.ceil(spec.stop_grace_s + NOTICE_MARGIN_S)


def job_name(key: str, order: str) -> str:
    """By which our files know a job: Kubernetes gives each job of a run the same name, one after another."""
    return f"{key}-{order[:8]}"


def _indexed_job(request: _ManifestRequest) -> Manifest:
    kubernetes, nodes = request.kubernetes, request.gang.nodes
    template = {
        "metadata": _labelled(request),
        "spec": {
            **_placement(request),
            # Started again in place, it would have no place in the gang; the job makes a new pod.
            "restartPolicy": "Never",
            "subdomain": request.key,
            # Otherwise each service of the namespace adds variables to every pod.
            "enableServiceLinks": False,
            # Pods ask nothing of Kubernetes.
            **({} if kubernetes.service_account else {"automountServiceAccountToken": False}),
            **({"priorityClassName": kubernetes.priority_class} if kubernetes.priority_class else {}),
            "containers": [
                {
                    "name": CONTAINER,
                    "image": kubernetes.image,
                    "command": _command(request),
                    "env": _environment(request),
                    **_unless_empty(
                        envFrom=[{"secretRef": {"name": name}} for name in kubernetes.secret_environments],
                        resources=_resources(kubernetes),
                    ),
                    "securityContext": CONTAINER_SECURITY,
                    "volumeMounts": _mounts(kubernetes),
                }
            ],
        },
    }
    job_spec = {
        "completionMode": "Indexed",
        # All at once: a gang waits for its last pod.
        "completions": nodes,
        "parallelism": nodes,
        **job_policies(request.spec.max_attempts),
        **_deadline(request),
        "ttlSecondsAfterFinished": KEPT_S,
        "template": template,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request),
        "spec": job_spec,
    }


def _network_policy(request: _ManifestRequest) -> Manifest:
    """Only the run's own pods reach each other's ports; the flow needs none."""
    # A policy that selects the run's pods and admits them alone; egress stays open for storage and name service.
    pods = {"podSelector": {"matchLabels": {KEY_LABEL: request.key}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(request),
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
    }


def job_policies(max_attempts: int) -> Manifest:
    """What ends a job: no eviction, no pod that was told to go, and otherwise nothing before the run's own budget."""
    exit_codes = {"containerName": CONTAINER, "operator": "In", "values": [EXIT_LEAVING]}
    return {
        # Per index, so that the loss of one host does not count against the others.
        "backoffLimitPerIndex": max_attempts,
        "maxFailedIndexes": 0,
        # Replaced only once the old pod has ended: two pods of one index would both claim its place.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                # An eviction or a drained node is nobody's failure, and must not spend the job's own limit.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                # The status by which our pod says that it was asked to go.
                {"action": "Ignore", "onExitCodes": exit_codes},
            ]
        },
    }


def _train_job(request: _ManifestRequest) -> Manifest:
    kubernetes = request.kubernetes
    pods = {
        "metadata": _labelled(request),
        "spec": {
            **_placement(request),
            "containers": [
                {"name": CONTAINER, "securityContext": CONTAINER_SECURITY, "volumeMounts": _mounts(kubernetes)}
            ],
        },
    }
    jobs = [{"name": CONTAINER, "template": {"spec": {"template": pods}}}]
    trainer = {
        "image": kubernetes.image,
        "command": _command(request),
        "env": _environment(request),
        "numNodes": request.gang.nodes,
        **_unless_empty(resourcesPerNode=_resources(kubernetes)),
    }
    patch = {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    runtime = {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "ClusterTrainingRuntime",
        "name": kubernetes.training_runtime,
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(request),
        "spec": {
            "runtimeRef": runtime,
            **_deadline(request),
            "trainer": trainer,
            "runtimePatches": [patch],
        },
    }


def _placement(request: _ManifestRequest) -> Manifest:
    """Of a pod's spec, what a TrainJob may patch too."""
    kubernetes = request.kubernetes
    security = {**POD_SECURITY, "runAsUser": kubernetes.run_as_user, "fsGroup": kubernetes.fs_group}
    return {
        # Kubernetes kills after it, so it has to hold the ranks' whole grace and what the guards add.
        "terminationGracePeriodSeconds": grace_s(request.spec),
        **_unless_empty(
            serviceAccountName=kubernetes.service_account,
            nodeSelector=dict(kubernetes.node_selector),
            tolerations=[
                _unless_empty(
                    key=each.key,
                    operator=each.operator,
                    value=each.value,
                    effect=each.effect,
                    tolerationSeconds=each.seconds,
                )
                for each in kubernetes.tolerations
            ],
            affinity=_affinity(request.without),
            imagePullSecrets=[{"name": name} for name in kubernetes.image_pull_secrets],
            securityContext={name: value for name, value in security.items() if value is not None},
        ),
        "volumes": _volumes(kubernetes),
    }


def _affinity(without: Collection[str]) -> Manifest:
    """A wish, no condition: a slow machine is better than a job that waits.

    By the names of nodes, of which a requirement takes one: the label `kubernetes.io/hostname` may say another.
    """
    # What was left out under another launcher may be no name of Kubernetes', which would refuse the job.
    nodes = [name for name in sorted(without) if _NODE_NAME.fullmatch(name)]
    # One term each: `matchFields` takes a single name, and terms of a preference are all counted.
    apart = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]
    wish = {"weight": 100, "preference": {"matchFields": apart}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}} if apart else {}


def _volumes(kubernetes: KubernetesSpec) -> list[Manifest]:
    # A claim may be mounted at several paths, but a pod names it once.
    claims = dict.fromkeys(volume.claim for volume in kubernetes.volumes)
    found: list[Manifest] = [
        {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(claims)
    ]
    if kubernetes.shared_memory:
        memory = {"medium": "Memory", "sizeLimit": kubernetes.shared_memory}
        found.append({"name": "shared-memory", "emptyDir": memory})
    return found


def _mounts(kubernetes: KubernetesSpec) -> list[Manifest]:
    numbers = {claim: n for n, claim in enumerate(dict.fromkeys(volume.claim for volume in kubernetes.volumes))}
    found: list[Manifest] = [
        {
            "name": f"volume-{numbers[volume.claim]}",
            "mountPath": volume.mount_path,
            **_unless_empty(subPath=volume.sub_path, readOnly=volume.read_only),
        }
        for volume in kubernetes.volumes
    ]
    if kubernetes.shared_memory:
        # The runtime's own is 64 MB, and NCCL, among others, keeps its buffers there.
        found.append({"name": "shared-memory", "mountPath": "/dev/shm"})
    return found


def _environment(request: _ManifestRequest) -> list[Manifest]:
    kubernetes, job = request.kubernetes, job_name(request.key, request.order)
    given = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", **kubernetes.environment, JOB: job}
    # Known to the pod alone, and only once it is scheduled, so the kubelet fills them in.
    fields = {POD: "metadata.name", POD_ADDRESS: "status.podIP", MACHINE: "spec.nodeName"}
    return [
        *({"name": name, "value": value} for name, value in given.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": where.secret, "key": where.key}}}
            for name, where in kubernetes.secrets.items()
        ),
    ]


def _command(request: _ManifestRequest) -> list[str]:
    # A dollar in brackets is Kubernetes' own, unless there are two.
    run_dir = str(request.gang.run_dir).replace("$(", "$$(")
    return [request.kubernetes.python, "-m", "headway.training.launch.kubernetes.pod", run_dir]


def _resources(kubernetes: KubernetesSpec) -> Manifest:
    given = dict(kubernetes.resources)
    # Equal requests and limits: the pod is of class Guaranteed where these are processors and memory, and evicted last.
    return {"requests": given, "limits": dict(given)} if given else {}


def _deadline(request: _ManifestRequest) -> Manifest:
    """The run's absolute end, and time for the notice after it: the supervisor keeps the bound, this is its net."""
    left_s = request.gang.stop.at_unix_s - request.now_unix_s
    if math.isinf(left_s):
        return {}
    # A job that waits in the queue past the run's end has no time left but its grace, in which it ends in order.
    return {"activeDeadlineSeconds": math.ceil(max(left_s, 0.0)) + grace_s(request.spec)}


def _metadata(request: _ManifestRequest) -> Manifest:
    return {"name": request.key, "namespace": request.kubernetes.namespace, **_labelled(request)}


def _labelled(request: _ManifestRequest) -> Manifest:
    kubernetes = request.kubernetes
    ours = {"app.kubernetes.io/name": "headway", KEY_LABEL: request.key, ORDER_LABEL: request.order[:8]}
    return {"labels": {**kubernetes.labels, **ours}, **_unless_empty(annotations=dict(kubernetes.annotations))}


def _unless_empty(**fields: Any) -> Manifest:
    return {name: value for name, value in fields.items() if value is not False and value not in (None, "", {}, [])}


def _require_mounted(kubernetes: KubernetesSpec, run_dir: Path) -> None:
    # Pods write their place there, and the flow reads it: without a shared volume neither finds the other.
    writable = [Path(volume.mount_path) for volume in kubernetes.volumes if not volume.read_only]
    if not any(run_dir.is_relative_to(path) for path in writable):
        raise ConfigError(
            "the run's folder is on no volume that the pods can write.",
            where="launch.kubernetes.volumes",
            advice=f"{run_dir} must lie below a mount_path; there are: {', '.join(map(str, writable)) or 'none'}.",
        )


def as_list(items: list[Manifest]) -> Mapping[str, Any]:
    """For `kubectl apply`."""
    return {"apiVersion": "v1", "kind": "List", "items": items}
