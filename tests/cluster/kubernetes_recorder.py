"""Kubernetes, EMULATED: enough of its HTTP API and of its Job controller, kubelet and Kubeflow Trainer for one machine.

What is real: the protocol, as the official client speaks it; every object's validation at the door; the pods' commands,
as local processes with the environment that a kubelet would give them. What is not: scheduling, images, volumes (a
container's file system is this machine's), name service, and addresses, which are loopback for every pod, as with
hostNetwork. A failed pod is followed by another after `BACKOFF_S`; a real controller waits 10 s, and then twice that.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.kubernetes_objects import problem
from training.launch.process_tree import processes_with, sweep
from training.launch.reaper import reaped

Json = dict[str, Any]
TOKEN, POD_TOKEN = "TEST_KUBERNETES_CLUSTER", "TEST_KUBERNETES_POD"
BACKOFF_S, TICK_S = 0.2, 0.05
RUNTIME = Path(__file__).parents[2] / "deployments" / "kubernetes" / "training-runtime.yaml"
INDEX = "batch.kubernetes.io/job-completion-index"
ROUTE = re.compile(
    r"/apis?/(?P<version>[\w./]+?)/namespaces/(?P<space>[^/]+)/(?P<plural>\w+)(/(?P<name>[^/]+))?(/(?P<sub>\w+))?"
)


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.reason, self.message = code, reason, message


class Pod:
    """One container as a local process, and all that it starts."""

    def __init__(self, cluster: KubernetesRecorder, job: Json, index: int) -> None:
        template = job["spec"]["template"]
        self.name = f"{job['metadata']['name']}-{index}-{secrets.token_hex(3)[:5]}"
        self.job, self.index, self.evicted, self.kill_at_s = job, index, False, 0.0
        self.spec, self.value = template["spec"], f"{cluster.folder}/{self.name}"
        self.log = cluster.folder / f"{self.name}.log"
        labels = {**template["metadata"]["labels"], INDEX: str(index)}
        self.meta: Json = {"name": self.name, "namespace": job["metadata"]["namespace"], "labels": labels}
        self.meta["creationTimestamp"] = f"{time.time():.6f}"
        container = self.spec["containers"][0]
        image = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": self.name, TOKEN: str(cluster.folder)}
        given = {**image, POD_TOKEN: self.value, "JOB_COMPLETION_INDEX": str(index)}
        for source in container.get("envFrom", ()):
            given |= cluster.secrets[source["secretRef"]["name"]]
        for variable in container.get("env", ()):
            given[variable["name"]] = self._resolve(variable, cluster)
        command = [self._expand(word, given) for word in container["command"]]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=given, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _resolve(self, variable: Json, cluster: KubernetesRecorder) -> str:
        if "value" in variable:
            return str(variable["value"])
        if "secretKeyRef" in (source := variable["valueFrom"]):
            return cluster.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        return {"metadata.name": self.name, "status.podIP": "127.0.0.1"}[source["fieldRef"]["fieldPath"]]

    def _expand(self, word: str, known: dict[str, str]) -> str:
        found = re.compile(r"\$\$|\$\((\w+)\)")
        return found.sub(lambda match: "$" if match[1] is None else known.get(match[1], match[0]), word)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def terminate(self) -> None:
        """As a kubelet does: SIGTERM to the main process, and its grace."""
        if "deletionTimestamp" not in self.meta:
            self.meta["deletionTimestamp"] = f"{time.time():.6f}"
            self.kill_at_s = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """With all that it holds."""
        self.process.kill()
        self.process.wait()
        sweep(POD_TOKEN, self.value)

    def tick(self) -> None:
        if self.has_ended or (self.kill_at_s and time.monotonic() > self.kill_at_s):
            self.kill()

    @property
    def exit_code(self) -> int:
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def shown(self) -> Json:
        phase = "Running" if not self.has_ended else "Failed" if self.process.returncode else "Succeeded"
        state = {"terminated": {"exitCode": self.exit_code, "reason": "Error"}} if self.has_ended else {"running": {}}
        target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        status = {"phase": phase, "podIP": "127.0.0.1", "conditions": [target] if self.evicted else []}
        return {"metadata": self.meta, "spec": self.spec, "status": {**status, "containerStatuses": [{"state": state}]}}


class KubernetesRecorder:
    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.RLock()
        self.objects: dict[tuple[str, str], Json] = {}
        """By plural and name; all of namespace `default`."""
        self.pods: list[Pod] = []
        self.secrets: dict[str, dict[str, str]] = {}
        self.runtimes = {item["metadata"]["name"]: item for item in yaml.safe_load_all(RUNTIME.read_text())}
        self.requests: list[str] = []
        self.denied: set[str] = set()
        """What is not allowed, such as `list pods`."""
        self.has_room = True
        self.is_silent, self._is_over = False, threading.Event()
        self._failures: dict[tuple[str, int], list[float]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": self}))

    def serve(self) -> None:
        for work in (self.server.serve_forever, self._control):
            threading.Thread(target=work, daemon=True).start()
        where = {"server": f"http://127.0.0.1:{self.server.server_port}"}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [context]}
        config |= {"clusters": [{"name": "c", "cluster": where}], "users": [{"name": "u", "user": {}}]}
        (self.folder / "kubeconfig").write_text(json.dumps(config))

    def stop(self) -> None:
        self._is_over.set()
        self.server.shutdown()
        sweep(TOKEN, str(self.folder), patience_s=30)

    def living(self) -> list[int]:
        return processes_with(TOKEN, str(self.folder))

    def running(self, index: int) -> Pod | None:
        """The pod of that index; None while there is none."""
        with self.lock:
            return next((pod for pod in reversed(self.pods) if pod.index == index and not pod.has_ended), None)

    @contextlib.contextmanager
    def holding_pods_back(self) -> Iterator[None]:
        """No pod finds a place."""
        self.has_room = False
        try:
            yield
        finally:
            self.has_room = True

    # The API's side.

    def answer(self, method: str, path: str, query: Json, body: Json | None) -> Any:
        self.requests.append(f"{method} {path}")
        if self.is_silent:
            raise Refused(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        if path.endswith("selfsubjectaccessreviews") and body:
            asked = body["spec"]["resourceAttributes"]
            what = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return {**body, "status": {"allowed": f"{asked['verb']} {what}" not in self.denied}}
        match = ROUTE.fullmatch(path)
        if match is None or match["plural"] not in ("jobs", "trainjobs", "services", "pods"):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        plural, name, sub = match["plural"], match["name"] or "", match["sub"]
        if plural == "pods":
            return self._answer_of_pods(method, name, sub, query)
        if method == "POST":
            return self._create(match["space"], plural, body or {}, is_kept="dryRun" not in query)
        found = self.objects.get((plural, name))
        if found is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        if method == "DELETE":
            found["metadata"].setdefault("deletionTimestamp", f"{time.time():.6f}")
        return found

    def _create(self, space: str, plural: str, item: Json, *, is_kept: bool) -> Json:
        name = item["metadata"]["name"]
        if f"create {plural}" in self.denied:
            raise Refused(403, "Forbidden", f'{plural} is forbidden: User "u" cannot create resource "{plural}"')
        if space != "default":
            raise Refused(404, "NotFound", f'namespaces "{space}" not found')
        if words := problem(item):
            raise Refused(422, "Invalid", f'{item["kind"]} "{name}" is invalid: {words}')
        if plural == "trainjobs" and item["spec"]["runtimeRef"]["name"] not in self.runtimes:
            raise Refused(403, "Forbidden", f"ClusterTrainingRuntime {item['spec']['runtimeRef']['name']} not found")
        if (plural, name) in self.objects:
            raise Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
        made = copy.deepcopy(item)
        made["metadata"] |= {"uid": secrets.token_hex(16), "began_s": time.monotonic()}
        if is_kept:
            self.objects[plural, name] = made
        return made

    def _answer_of_pods(self, method: str, name: str, sub: str | None, query: Json) -> Any:
        if not name:
            wanted = dict(each.split("=") for each in query.get("labelSelector", [""])[0].split(",") if each)
            return {"items": [pod.shown() for pod in self.pods if wanted.items() <= pod.meta["labels"].items()]}
        pod = next((pod for pod in self.pods if pod.name == name), None)
        if pod is None:
            raise Refused(404, "NotFound", f'pods "{name}" not found')
        if sub == "log":
            return pod.log.read_bytes()
        if sub == "eviction" and method == "POST":
            self.evict(pod)
        return {"kind": "Status", "status": "Success"}

    def evict(self, pod: Pod) -> None:
        with self.lock:
            pod.evicted = True
            pod.terminate()

    # The controllers' side.

    def _control(self) -> None:
        while not self._is_over.wait(TICK_S):
            with self.lock:
                for pod in self.pods:
                    pod.tick()
                for item in [item for (plural, _), item in self.objects.items() if plural == "trainjobs"]:
                    self._control_train_job(item)
                for item in [item for (plural, _), item in self.objects.items() if plural == "jobs"]:
                    self._control_job(item)

    def _control_train_job(self, item: Json) -> None:
        name = f"{item['metadata']['name']}-node-0"
        child = self.objects.get(("jobs", name))
        if "deletionTimestamp" in item["metadata"]:
            if child is None:
                del self.objects["trainjobs", item["metadata"]["name"]]
            else:
                child["metadata"].setdefault("deletionTimestamp", "now")
        elif child is None:
            self._create("default", "jobs", self._job_of(item, name), is_kept=True)
        elif "status" in child:
            item["status"] = {"conditions": child["status"]["conditions"]}

    def _job_of(self, item: Json, name: str) -> Json:
        trainer, nodes = item["spec"]["trainer"], item["spec"]["trainer"]["numNodes"]
        runtime = self.runtimes[item["spec"]["runtimeRef"]["name"]]["spec"]["template"]["spec"]
        spec = copy.deepcopy(runtime["replicatedJobs"][0]["template"]["spec"])
        spec |= {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes}
        if "activeDeadlineSeconds" in item["spec"]:
            spec["activeDeadlineSeconds"] = item["spec"]["activeDeadlineSeconds"]
        template = spec["template"]
        template["spec"]["containers"][0] |= {key: trainer[key] for key in ("image", "command", "env")}
        for patch in item["spec"]["runtimePatches"]:
            jobs = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
            patched = jobs[0]["template"]["spec"]["template"]
            template["metadata"] = {"labels": patched["metadata"]["labels"]}
            template["spec"] |= {key: value for key, value in patched["spec"].items() if key != "containers"}
            template["spec"]["containers"][0]["volumeMounts"] = patched["spec"]["containers"][0]["volumeMounts"]
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }

    def _control_job(self, job: Json) -> None:
        spec = job["spec"]
        pods = [pod for pod in self.pods if pod.job is job]
        if "deletionTimestamp" in job["metadata"]:
            self._end(pods)
            if all(pod.has_ended for pod in pods):
                self.pods = [pod for pod in self.pods if pod.job is not job]
                for key, item in list(self.objects.items()):
                    owners = [owner["uid"] for owner in item["metadata"].get("ownerReferences", ())]
                    if item is job or job["metadata"]["uid"] in owners:
                        del self.objects[key]
            return None
        if "status" in job:
            return None
        late_s = time.monotonic() - job["metadata"]["began_s"]
        if late_s > spec.get("activeDeadlineSeconds", 1e9):
            return self._finish(job, pods, "Failed", "DeadlineExceeded")
        done = {pod.index for pod in pods if pod.has_ended and pod.exit_code == 0}
        for index in set(range(spec["completions"])) - done:
            mine = [pod for pod in pods if pod.index == index]
            counted = [pod for pod in mine if pod.has_ended and not self._is_ignored(pod)]
            if len(counted) > spec["backoffLimitPerIndex"]:
                return self._finish(job, pods, "Failed", "FailedIndexes")
            waits = self._failures.setdefault((job["metadata"]["uid"], index), [])
            waits += [time.monotonic()] * (len([pod for pod in mine if pod.has_ended]) - len(waits))
            if (
                self.has_room
                and all(pod.has_ended for pod in mine)
                and (not waits or time.monotonic() - waits[-1] > BACKOFF_S)
            ):
                self.pods.append(Pod(self, job, index))
        if len(done) == spec["completions"]:
            self._finish(job, pods, "Complete", "CompletionsReached")
        return None

    def _is_ignored(self, pod: Pod) -> bool:
        for rule in pod.job["spec"]["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes", {}).get("values", ())
            if (pod.evicted and "onPodConditions" in rule) or pod.exit_code in codes:
                return bool(rule["action"] == "Ignore")
        return False

    def _finish(self, job: Json, pods: list[Pod], kind: str, reason: str) -> None:
        job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": reason}]}
        self._end(pods)

    def _end(self, pods: list[Pod]) -> None:
        for pod in pods:
            if not pod.has_ended:
                pod.terminate()


class _Handler(BaseHTTPRequestHandler):
    cluster: KubernetesRecorder

    def _handle(self) -> None:
        url, length = urlsplit(self.path), int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        try:
            with self.cluster.lock:
                answer = self.cluster.answer(self.command, url.path, parse_qs(url.query), body)
                code = 201 if self.command == "POST" else 200
        except Refused as refused:
            said = {"reason": refused.reason, "message": refused.message, "code": refused.code}
            code, answer = refused.code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", **said}
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _handle

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def kubernetes_recorder(folder: Path) -> Iterator[KubernetesRecorder]:
    """Pods end with the body; and with this process, should it be killed."""
    cluster = KubernetesRecorder(folder)
    with reaped(TOKEN, str(folder), 0.0):
        try:
            cluster.serve()
            yield cluster
        finally:
            cluster.stop()
