"""Kubernetes, asked through its own client: objects as plain JSON, a deadline on every call, and its errors as ours.

The client is an extra, `pip install 'headway[kubernetes]'`; only the flow's side of a run needs it, and nothing else of
Headway imports it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.jobs.scheduler import SchedulerSilent
from headway.training.launch.kubernetes.manifests import Manifest

CONNECT_S, ANSWER_S = 5.0, 30.0
_TIMEOUT = (CONNECT_S, ANSWER_S)
_SILENT = (429, 500, 502, 503, 504)
"""The server is there, and cannot answer now."""
_PLURALS = {"Job": "jobs", "TrainJob": "trainjobs", "NetworkPolicy": "networkpolicies"}


class KubernetesApi:
    """Raises, whatever is asked:

    SchedulerSilent: no answer, for now.
    EnvironmentProblem: the client is not installed or configured, or the server refused, in its own words.
    """

    def __init__(self, context: str | None) -> None:
        try:
            # An extra that most machines lack; imported at the top it would break every launcher.
            from kubernetes import client, config
        except ImportError as error:
            raise EnvironmentProblem(
                "the client of Kubernetes is not installed here.",
                where="launch.launcher: kubernetes",
                advice="pip install 'headway[kubernetes]'",
            ) from error
        configuration = client.Configuration()
        try:
            given = os.environ.get("KUBECONFIG", "")
            # As `kubectl` chooses: a configuration that is named or lies at home comes before the pod's own account.
            if given or context or Path("~/.kube/config").expanduser().exists():
                config.load_kube_config(config_file=given or None, context=context, client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise EnvironmentProblem(
                f"no cluster is configured here ({' '.join(str(error).split())}).",
                where="launch.kubernetes",
                advice="Set KUBECONFIG, or run the flow in a pod of the cluster.",
            ) from error
        # The caller tries again, and says so.
        configuration.retries = False
        connected = client.ApiClient(configuration)
        self._client = client
        self._core = client.CoreV1Api(connected)
        self._objects = client.CustomObjectsApi(connected)
        """Also for Kubernetes' own kinds in a group: their objects are JSON like others."""
        self._reviews = client.AuthorizationV1Api(connected)

    def create(self, item: Manifest, *, dry_run: bool = False) -> bool:
        """Whether it was; False where an object of that name is there already."""
        # Strict: the server would otherwise drop a field that it does not know, and a misspelt limit would not hold.
        options: dict[str, Any] = {"field_validation": "Strict", "_request_timeout": _TIMEOUT}
        options |= {"dry_run": "All"} if dry_run else {}
        namespace = item["metadata"]["namespace"]
        try:
            with _asking(f"create {item['kind']} {item['metadata']['name']}"):
                # The generic API has no path for kinds without a group, such as a Service.
                if item["kind"] == "Service":
                    self._core.create_namespaced_service(namespace, item, **options)
                else:
                    path = (*_path(item["apiVersion"]), namespace, _PLURALS[item["kind"]])
                    self._objects.create_namespaced_custom_object(*path, item, **options)
        except _Refused as refused:
            # Two flows may create the same job at once; the name is the lock, and who loses finds the other's.
            if refused.reason == "AlreadyExists":
                return False
            raise
        return True

    def get(self, item: Manifest) -> Manifest | None:
        """What the server has under the name of this object."""
        try:
            with _asking(f"get {item['kind']} {item['metadata']['name']}"):
                found: Manifest = self._objects.get_namespaced_custom_object(*_place(item), _request_timeout=_TIMEOUT)
                return found
        except _Refused as refused:
            if refused.reason == "NotFound":
                return None
            raise

    def delete(self, item: Manifest) -> None:
        """With all that belongs to it: it is there until that is gone. What is not there is gone."""
        try:
            # Foreground: the object stays until its pods are gone, so no later job meets them.
            with _asking(f"delete {item['kind']} {item['metadata']['name']}"):
                self._objects.delete_namespaced_custom_object(
                    *_place(item), propagation_policy="Foreground", _request_timeout=_TIMEOUT
                )
        except _Refused as refused:
            if refused.reason != "NotFound":
                raise

    def pods(self, namespace: str, selector: str) -> list[Manifest]:
        with _asking("list pods"):
            answer = self._core.list_namespaced_pod(
                namespace, label_selector=selector, _request_timeout=_TIMEOUT, _preload_content=False
            )
            items: list[Manifest] = json.loads(answer.data)["items"]
            return items

    def log(self, namespace: str, pod: str, lines: int) -> list[str]:
        with _asking(f"read the log of {pod}"):
            message = self._core.read_namespaced_pod_log(
                pod, namespace, tail_lines=lines, _request_timeout=_TIMEOUT, _preload_content=False
            )
            return [line for line in message.data.decode(errors="replace").splitlines() if line.strip()]

    def may(self, namespace: str, verb: str, group: str, resource: str) -> bool:
        # The API wants the subresource in a field of its own.
        name, _, below = resource.partition("/")
        asked = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": below}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
        }
        with _asking("ask what is allowed"):
            answer = self._reviews.create_self_subject_access_review(
                review, _request_timeout=_TIMEOUT, _preload_content=False
            )
            return bool(json.loads(answer.data)["status"]["allowed"])


class _Refused(EnvironmentProblem):
    reason = ""
    """In one word of Kubernetes'."""


@contextlib.contextmanager
def _asking(what: str) -> Iterator[None]:
    import urllib3
    from kubernetes.client import ApiException

    try:
        yield
    except ApiException as error:
        reason, words = _message(error.status, error.body)
        if error.status in _SILENT:
            raise SchedulerSilent(f"Kubernetes cannot {what} now: {words}", where="Kubernetes") from error
        refused = _Refused(f"Kubernetes refused to {what}: {words}", where="Kubernetes", advice=_advice(error.status))
        refused.reason = reason
        raise refused from error
    # Lost on the way, so it may have been carried out all the same; the caller looks before it tries again.
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise SchedulerSilent(f"Kubernetes cannot be reached to {what}: {error}", where="Kubernetes") from error


def _message(status: int, body: Any) -> tuple[str, str]:
    """The reason, and the words, of a refusal; a gateway's page, or what knows no such path, has none."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    # A proxy answers with a page of HTML, which must not end the flow with an error of the JSON parser.
    with contextlib.suppress(ValueError, AttributeError):
        answer = json.loads(text)
        return str(answer.get("reason", "")), str(answer.get("message", ""))[:500]
    return "NotServed" if status == 404 else "", f"status {status}: {' '.join(text.split())[:300]}"


def _advice(status: int) -> str:
    return {
        401: "Log in to the cluster again.",
        403: "Ask for the rights in deployments/kubernetes/access.yaml.",
        404: "Is the namespace there, and for a TrainJob Kubeflow Trainer 2.3?",
    }.get(status, "")


def _path(api_version: str) -> tuple[str, str]:
    group, _, version = api_version.partition("/")
    return group, version


def _place(item: Manifest) -> tuple[str, str, str, str, str]:
    where = item["metadata"]
    return *_path(item["apiVersion"]), where["namespace"], _PLURALS[item["kind"]], where["name"]
