"""Kubernetes, EMULATED: enough of its HTTP API and of its Job controller, kubelet and Kubeflow Trainer for one machine.

What is real: the protocol, as the official client speaks it; every object's validation at the door; the pods' commands,
as local processes with the environment that a kubelet would give them. What is not: scheduling, nodes (all are this
machine), images, volumes (a container's file system is this machine's), name service, and addresses, loopback for every
pod, as with hostNetwork. A failed pod is followed by another after `BACKOFF_S`; a real controller waits 10 s, then 20.
"""

from __future__ import annotations

import copy
import json
import math
import re
import secrets
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from headway.training.launch.base.process_tree import processes_with, sweep
from tests.kubernetes_objects import problem
from tests.warm_programs import Program

Json = dict[str, Any]
TOKEN, POD_TOKEN = "TEST_KUBERNETES_CLUSTER", "TEST_KUBERNETES_POD"
BACKOFF_S, TICK_S = 0.2, 0.05
MACHINES = ("gpu-node-0", "gpu-node-1", "gpu-node-2")
RUNTIME = Path(__file__).parents[2] / "deployments" / "kubernetes" / "training-runtime.yaml"
INDEX = "batch.kubernetes.io/job-completion-index"
ROUTE = re.compile(r"/apis?/[\w./]+?/namespaces/([^/]+)/(\w+)/?([^/]*)/?\w*")


class Refused(Exception):
    """Code, reason and message of a `Status`."""


class Pod:
    """One container as a local process, and all that it starts."""

    def __init__(self, cluster: KubernetesRecorder, job: Json, index: int) -> None:
        template, name = job["spec"]["template"], f"{job['metadata']['name']}-{index}-{secrets.token_hex(3)[:5]}"
        affinity = template["spec"].get("affinity", {}).get("nodeAffinity", {})
        wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        apart = [each["values"] for wish in wishes for each in wish["preference"]["matchFields"]]
        liked = [machine for machine in MACHINES if [machine] not in apart]  # there is room on all
        self.spec = {**template["spec"], "nodeName": liked[index % len(liked)]}
        self.name, self.job, self.index = name, job, index
        self.is_evicted, self.kill_at_s, self.ended_s = False, math.inf, 0.0
        self.log, labels = cluster.folder / f"{name}.log", {**template["metadata"]["labels"], INDEX: str(index)}
        self.meta: Json = {"name": name, "labels": labels, "creationTimestamp": f"{time.time():.6f}"}
        container = self.spec["containers"][0]
        known = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": name, "JOB_COMPLETION_INDEX": str(index)}
        known |= {TOKEN: str(cluster.folder), POD_TOKEN: name, "TOY_HOST": self.spec["nodeName"]}
        known |= {each["name"]: self._resolve(each, cluster.secrets) for each in container["env"]}
        reference = re.compile(r"\$\$|\$\((\w+)\)")
        with self.log.open("wb") as out:
            self.process = Program(
                [
                    reference.sub(lambda found: "$" if found[1] is None else known.get(found[1], found[0]), word)
                    for word in container["command"]
                ],
                **{"env": known, "cwd": "/", "stdin": subprocess.DEVNULL, "stdout": out, "stderr": out},
                start_new_session=True,
            )

    def _resolve(self, variable: Json, kept: dict[str, dict[str, str]]) -> str:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            return kept[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        fields = {"metadata.name": self.name, "status.podIP": "127.0.0.1", "spec.nodeName": self.spec["nodeName"]}
        return fields[source["fieldRef"]["fieldPath"]] if source else str(variable["value"])

    @property
    def exit_code(self) -> int | None:
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None

    def terminate(self) -> None:
        """As a kubelet does: SIGTERM to the main process, and its grace."""
        if "deletionTimestamp" not in self.meta and not self.has_ended:
            self.meta["deletionTimestamp"] = f"{time.time():.6f}"
            self.kill_at_s = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
            self.process.terminate()

    def kill(self) -> None:
        """With all that it holds."""
        self.process.kill()
        self.process.wait()
        sweep(POD_TOKEN, self.name)
        self.ended_s = time.monotonic()

    def shown(self) -> Json:
        phase = "Running" if not self.has_ended else "Failed" if self.exit_code else "Succeeded"
        state = {"terminated": {"exitCode": self.exit_code, "reason": "Error"}} if self.has_ended else {"running": {}}
        target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        status = {"phase": phase, "containerStatuses": [{"state": state}], "conditions": [target][: self.is_evicted]}
        return {"metadata": self.meta, "spec": self.spec, "status": status}


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
        self.has_room, self.is_silent, self._is_over = True, False, threading.Event()
        """Whether a new pod finds a place, and whether a request finds an answer."""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": self}))

    def serve(self) -> None:
        for work in (self.server.serve_forever, self._control):
            threading.Thread(target=work, daemon=True).start()
        where = {"server": f"http://127.0.0.1:{self.server.server_port}"}
        named = {"cluster": where, "user": {}, "context": {"cluster": "c", "user": "c"}}
        config = {f"{kind}s": [{"name": "c", kind: value}] for kind, value in named.items()}
        (self.folder / "kubeconfig").write_text(json.dumps(config | {"current-context": "c"}))

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

    # The API's side.

    def answer(self, method: str, path: str, query: Json, body: Json | None) -> Any:
        self.requests.append(f"{method} {path}")
        if self.is_silent:
            raise Refused(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        if path.endswith("selfsubjectaccessreviews") and body:
            asked = body["spec"]["resourceAttributes"]
            what = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return {**body, "status": {"allowed": f"{asked['verb']} {what}" not in self.denied}}
        if (match := ROUTE.fullmatch(path)) is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        space, plural, name = match.groups()
        if plural == "pods":
            return self._answer_of_pods(name, query)
        if method == "POST":
            return self._create(space, plural, body or {}, is_kept="dryRun" not in query)
        if (found := self.objects.get((plural, name))) is None:
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
        made["metadata"] |= {"uid": secrets.token_hex(16), "started_s": time.monotonic()}
        if is_kept:
            self.objects[plural, name] = made
        return made

    def _answer_of_pods(self, name: str, query: Json) -> Any:
        """A list of them, or the log of one."""
        if not name:
            wanted = dict(each.split("=") for each in query.get("labelSelector", [""])[0].split(",") if each)
            return {"items": [pod.shown() for pod in self.pods if wanted.items() <= pod.meta["labels"].items()]}
        return next(pod for pod in self.pods if pod.name == name).log.read_bytes()

    def evict(self, pod: Pod) -> None:
        pod.is_evicted = True
        pod.terminate()

    # The controllers' side.

    def _control(self) -> None:
        while not self._is_over.wait(TICK_S):
            with self.lock:
                for pod in self.pods:
                    if not pod.ended_s and (pod.has_ended or time.monotonic() > pod.kill_at_s):
                        pod.kill()
                for (plural, _), item in list(self.objects.items()):
                    if plural in ("jobs", "trainjobs"):
                        (self._control_job if plural == "jobs" else self._control_train_job)(item)

    def _control_train_job(self, item: Json) -> None:
        child = self.objects.get(("jobs", name := f"{item['metadata']['name']}-node-0"))
        if "deletionTimestamp" in item["metadata"]:
            if child is None:
                self._collect(item)
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
        spec |= {key: value for key, value in item["spec"].items() if key == "activeDeadlineSeconds"}
        template = spec["template"]
        template["spec"]["containers"][0] |= {key: trainer[key] for key in ("image", "command", "env")}
        for patch in item["spec"]["runtimePatches"]:
            jobs = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
            patched = jobs[0]["template"]["spec"]["template"]
            template["metadata"] = {"labels": patched["metadata"]["labels"]}
            template["spec"] |= {key: value for key, value in patched["spec"].items() if key != "containers"}
            template["spec"]["containers"][0] |= patched["spec"]["containers"][0]
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}

    def _control_job(self, job: Json) -> None:
        spec = job["spec"]
        pods = [pod for pod in self.pods if pod.job is job]
        if "deletionTimestamp" in job["metadata"]:
            for pod in pods:
                pod.terminate()
            if all(pod.ended_s for pod in pods):
                self.pods = [pod for pod in self.pods if pod.job is not job]
                self._collect(job)
            return None
        if "status" in job:
            return None
        if time.monotonic() - job["metadata"]["started_s"] > spec.get("activeDeadlineSeconds", math.inf):
            return self._finish(job, pods, "Failed", "DeadlineExceeded")
        done = {pod.index for pod in pods if pod.exit_code == 0}
        for index in set(range(spec["completions"])) - done:
            mine = [pod for pod in pods if pod.index == index]
            if sum(pod.has_ended and not self._is_ignored(pod) for pod in mine) > spec["backoffLimitPerIndex"]:
                return self._finish(job, pods, "Failed", "FailedIndexes")
            if self.has_room and all(pod.ended_s and time.monotonic() - pod.ended_s > BACKOFF_S for pod in mine):
                self.pods.append(Pod(self, job, index))
        if len(done) == spec["completions"]:
            self._finish(job, pods, "Complete", "CompletionsReached")
        return None

    def _collect(self, job: Json) -> None:
        """The job is gone, and with it what belongs to it."""
        for key, item in list(self.objects.items()):
            owners = [owner["uid"] for owner in item["metadata"].get("ownerReferences", ())]
            if item is job or job["metadata"]["uid"] in owners:
                del self.objects[key]

    def _is_ignored(self, pod: Pod) -> bool:
        for rule in pod.job["spec"]["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes", {}).get("values", ())
            if (pod.is_evicted and "onPodConditions" in rule) or pod.exit_code in codes:
                return bool(rule["action"] == "Ignore")
        return False

    def _finish(self, job: Json, pods: list[Pod], kind: str, reason: str) -> None:
        job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": reason}]}
        for pod in pods:
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
            code, reason, message = refused.args
            answer = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _handle

    def log_message(self, *_: object) -> None: ...
