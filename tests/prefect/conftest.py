"""A real Prefect server and a process worker, in folders of their own; nothing of them outlives the tests."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.flows.prefect_api.server_password import new_password
from headway.training.launch.base.ports import free_port
from headway.training.launch.base.process_tree import die_with_parent, processes_with, sweep
from tests.prefect_tables import new_prefect_home
from tests.waiting import wait_until
from tests.warm_programs import Program, run_program

REPOSITORY = Path(__file__).resolve().parents[2]
PREFECT = str(Path(sys.executable).with_name("prefect"))
"""Not `python -m prefect`, which would import from the current folder first."""
TOKEN = "PIPELINE_TEST_TOKEN"
"""Set for the server and its worker, and inherited by all they start: nobody can hide from the tests."""
QUEUE = "asked-for"
"""Of the work pool: a schedule whose hour comes while tests run starts nothing between them."""
POLL_EVERY_S = 0.5
"""Between two questions to a server: asked without a pause, it would spend a third of a core on its answers."""

CONTRACT = """
name: snippets
version: 1.0.0
rows: {min: MIN_ROWS}
columns:
  path: {type: string, unique: true}
  sha256: {type: string}
  size_bytes: {type: int64}
  is_utf8: {type: bool}
  has_nul: {type: bool}
  num_lines: {type: int64}
  num_chars: {type: int64, nullable: true}
  max_line_chars: {type: int64, nullable: true}
  text: {type: string, nullable: true}
"""
PIPELINE = """
pipeline: NAME
source: {format: text-files, uri: ../sources, include: ["*.py"]}
contract: CONTRACT
shards:
  encoder: {kind: byte-pair, vocab_size: 300, sequence_tokens: 32}
  num_groups: 2
  heldout_fraction: 0.2
training:
  recipe: {name: language-model, model: {width: 32, depth: 1, heads: 2}}
  max_steps: STEPS
  global_batch_sequences: 4
  micro_batch_sequences: 2
  checkpoints:
    every_steps: 10
  schedule: {warmup_steps: 2}
evaluation: {bootstrap_resamples: 100}
registry: {model: NAME}
"""


@dataclass(frozen=True)
class Service:
    """A Prefect server that asks for a password, and how to talk to it."""

    url: str
    password: str
    environment: dict[str, str]
    token: str
    folder: Path

    @contextlib.contextmanager
    def configured(self) -> Iterator[None]:
        """While the body runs, it is this process's server."""
        from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: self.url, PREFECT_API_AUTH_STRING: self.password}):
            yield

    def prefect(self, *arguments: str, cwd: Path, within_s: float = 300) -> subprocess.CompletedProcess[str]:
        # A shell keeps PWD; so must we.
        environment = self.environment | {"PWD": str(cwd)}
        return run_program(
            [sys.executable, PREFECT, "--no-prompt", *arguments], cwd=cwd, env=environment, timeout=within_s
        )

    def api(self, path: str, body: dict[str, Any] | None = None, *, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        known = {"Authorization": f"Basic {base64.b64encode(self.password.encode()).decode()}"}

        def ask() -> tuple[Any] | None:
            try:
                headers = known | {"Content-Type": "application/json", **self._against_forgery(known)}
                request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=method)
                with urllib.request.urlopen(request, timeout=300) as answer:
                    text = answer.read()
                    return (json.loads(text) if text else None,)
            except urllib.error.HTTPError as error:
                # While its database is locked a server says 503, as to Prefect's own client; while it restarts, 500.
                if error.code not in (500, 503):
                    raise
                return None

        (answer,) = wait_until(ask, 180, f"an answer to {path}")
        return answer

    def _against_forgery(self, known: dict[str, str]) -> dict[str, str]:
        # A client of its own each: a token that another thread asks for takes the place of the last one.
        client = uuid.uuid4().hex
        request = urllib.request.Request(f"{self.url}/csrf-token?client={client}", headers=known)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return {"Prefect-Csrf-Token": json.load(answer)["token"], "Prefect-Csrf-Client": client}

    def start(self, *arguments: str, cwd: Path, log: Path, is_fresh: bool = True) -> subprocess.Popen[Any]:
        """Unless `is_fresh`, it is a fork that imports nothing, and so are the flow runs that a worker starts."""
        start = subprocess.Popen if is_fresh else Program
        with log.open("wb") as stream:
            return start(
                [sys.executable, PREFECT, *arguments],
                cwd=cwd,
                env=self.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def run(self, pipeline: str) -> str:
        """Create a flow run of a deployment for another project's pipeline; returns its id."""
        return self.run_in(self.folder / "project", "retrain/stdlib-lm", {"pipeline": pipeline})

    def run_in(self, project: Path, deployment: str, request: dict[str, Any]) -> str:
        """Create a flow run of a deployment that finds its files in `project`; returns its id."""
        found = self.api(f"deployments/name/{deployment}")
        environment = found["job_variables"]["env"] | {"HEADWAY_PROJECT": str(project)}
        body = {"parameters": {"request": request}, "job_variables": {"env": environment}, "work_queue_name": QUEUE}
        made = self.api(f"deployments/{found['id']}/create_flow_run", body)
        return str(made["id"])

    def state(self, flow_run: str) -> dict[str, Any]:
        state: dict[str, Any] = self.api(f"flow_runs/{flow_run}")["state"]
        return state

    def wait_for_end(self, flow_run: str, within_s: float) -> dict[str, Any]:
        ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

        def ended() -> dict[str, Any] | None:
            state = self.state(flow_run)
            return state if state["type"] in ends else None

        return wait_until(ended, within_s, f"the end of {flow_run}", every_s=POLL_EVERY_S) or {}

    def processes(self) -> set[int]:
        return set(processes_with(TOKEN, self.token))

    def flow_processes(self) -> set[int]:
        """Those that workers started, each for a flow run."""
        found = set()
        for pid in self.processes():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if b"prefect.engine" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.add(pid)
        return found


def end(process: subprocess.Popen[bytes], within_s: float = 30) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
            return


def new_service(folder: Path, **given: str) -> Service:
    """A server to be, with a home of its own in `folder`.

    Args:
        given: variables for the server, its workers and all they start.
    """
    token, password = uuid.uuid4().hex, new_password()
    url = f"http://127.0.0.1:{free_port()}/api"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HEADWAY_"))}
    environment |= {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": url,
        "PREFECT_API_AUTH_STRING": password,
        "PREFECT_SERVER_API_AUTH_STRING": password,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": url.removesuffix("/api"),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "HEADWAY_WORKSPACE": str(folder / "workspace"),
        TOKEN: token,
        **given,
    }
    return Service(url, password, environment, token, folder)


def serve(service: Service, *, is_fresh: bool = True) -> subprocess.Popen[bytes]:
    """Its server, when it answers; where it was before."""
    port = str(urllib.parse.urlsplit(service.url).port)
    command = ("server", "start", "--host", "127.0.0.1", "--port", port)
    log = service.folder / f"server-{uuid.uuid4().hex[:4]}.log"
    server = service.start(*command, cwd=service.folder, log=log, is_fresh=is_fresh)
    wait_until(lambda: _answers(f"{service.url}/health", server), 300, "the Prefect server")
    return server


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = new_service(tmp_path_factory.mktemp("prefect"))
    new_prefect_home(made.folder / "home")
    try:
        server = serve(made, is_fresh=False)
        assert made.prefect("work-pool", "create", "headway", "--type", "process", cwd=made.folder).returncode == 0
        yield made
        end(server)
    finally:
        left = sweep(TOKEN, made.token)
    assert not left, "a process outlived the server and the workers"


def _answers(url: str, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "the server ended while starting"
    with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2):
        return True
    return False


@pytest.fixture(scope="session")
def project(service: Service) -> Path:
    """A user's project: three pipelines over sixty small files, and a folder `training/` of its own."""
    return write_project(service.folder / "project")


def write_project(folder: Path) -> Path:
    (folder / "deployments").mkdir(parents=True)
    (folder / "sources").mkdir()
    (folder / "training").mkdir()
    (folder / "training" / "__init__.py").write_text("raise SystemExit('the wrong training')\n")
    for number in range(60):
        lines = (f"def f{number}_{line}(x):\n    return x + {line * number}\n" for line in range(20))
        (folder / "sources" / f"m{number:02d}.py").write_text("\n".join(lines))
    for name, min_rows, num_steps in (("tiny", 10, 20), ("endless", 10, 1_000_000), ("refused", 1000, 20)):
        (folder / f"{name}-contract.yaml").write_text(CONTRACT.replace("MIN_ROWS", str(min_rows)))
        text = PIPELINE.replace("CONTRACT", f"../{name}-contract.yaml").replace("NAME", name)
        (folder / "deployments" / f"{name}.yaml").write_text(text.replace("STEPS", str(num_steps)))
    return folder


@pytest.fixture(scope="session")
def deployed(service: Service, project: Path) -> Service:
    """The repository's own file, deployed as its comment says; and the user's project beside it."""
    return deploy_shipped(service)


def deploy_shipped(service: Service) -> Service:
    done = service.prefect("deploy", "--all", "--prefect-file", "deployments/prefect.yaml", cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    return service


@contextlib.contextmanager
def working(service: Service, *, is_fresh: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A process worker that stands in an unrelated folder."""
    cwd = service.folder / f"worker-{uuid.uuid4().hex[:8]}"
    cwd.mkdir()
    options = ("--pool", "headway", "--work-queue", QUEUE, "--name", cwd.name)
    process = service.start("worker", "start", *options, cwd=cwd, log=cwd / "log", is_fresh=is_fresh)
    try:
        yield process
    finally:
        end(process)


@pytest.fixture(scope="module")
def worker(deployed: Service) -> Iterator[subprocess.Popen[bytes]]:
    with working(deployed, is_fresh=False) as process:
        yield process


@pytest.fixture
def training_run(deployed: Service, worker: subprocess.Popen[bytes]) -> Iterator[str]:
    """A flow run in the middle of a training that would go on for hours."""
    workspace = deployed.folder / "workspace"
    before = steps_in(workspace)
    flow_run = deployed.run("endless")

    def steps_or_end() -> bool:
        state = deployed.state(flow_run)
        assert state["type"] in ("SCHEDULED", "PENDING", "RUNNING"), state
        return steps_in(workspace) > before

    wait_until(steps_or_end, 600, "the first training steps", every_s=POLL_EVERY_S)
    yield flow_run
    # One whose worker a test killed would keep the only place of its deployment, and with it the next test's run.
    deployed.api(f"flow_runs/{flow_run}/set_state", {"state": {"type": "CRASHED"}, "force": True})


@contextlib.contextmanager
def halted_ranks(workspace: Path) -> Iterator[list[int]]:
    """Those of the newest attempt stand still: a training without end would take all of the processor meanwhile."""
    attempt = max(workspace.glob("runs/*/attempts/*/rank-0.json"), key=lambda path: path.stat().st_mtime).parent
    pids = [json.loads(path.read_bytes())["pid"] for path in attempt.glob("rank-?.json")]
    send(pids, signal.SIGSTOP)
    try:
        yield pids
    finally:
        send(pids, signal.SIGCONT)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """To those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def guard_states(workspace: Path) -> set[str]:
    return {json.loads(path.read_bytes())["state"] for path in workspace.glob("runs/*/attempts/*/node-?.json")}


def steps_in(workspace: Path) -> int:
    """How many steps its runs wrote down."""
    spools = workspace.glob("runs/*/attempts/*/ledger/rank-0.jsonl")
    return sum(spool.read_text().count('"event":"step"') for spool in spools)
