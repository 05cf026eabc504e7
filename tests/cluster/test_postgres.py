"""Prefect's server and MLflow on PostgreSQL, a worker and real runs, and what breaks in the middle of them.

One cluster, one server of each, started as the compose file says, and one project for the whole file; the tests go on
from one another, in their order.
"""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from rich.console import Console
from safetensors.torch import load_file

from headway.data_contracts.store.digests import sha256_bytes
from headway.flows.deploy.deploying import deploy
from headway.flows.show.champion_history import read_history
from headway.training.launch.base.ports import free_port
from headway.training.launch.base.process_tree import sweep
from tests.cluster.postgres import Postgres, running_postgres
from tests.prefect.conftest import (
    CONTRACT,
    PIPELINE,
    POLL_EVERY_S,
    TOKEN,
    Service,
    end,
    new_service,
    serve,
    steps_in,
    working,
)
from tests.waiting import wait_until

DOCKER = Path(__file__).resolve().parents[2] / "deployments" / "docker"
PATIENT_S = 900.0
MAX_STEPS = 600
PROFILES = "project: pg\nprofiles: {production: {pool: {name: headway}, heartbeat_s: 30}}\n"


@dataclasses.dataclass
class Platform:
    service: Service
    postgres: Postgres
    server: subprocess.Popen[bytes]
    mlflow_url: str
    mlflow: subprocess.Popen[bytes]

    @property
    def project(self) -> Path:
        return self.service.folder / "project"

    @property
    def workspace(self) -> Path:
        return self.service.folder / "workspace"

    def deploy(self) -> list[str]:
        with self.service.configured():
            return [str(change) for change in deploy(self.project, "production", console=Console(quiet=True)).changes]

    def retrain(self, pipeline: str) -> str:
        return self.service.run_in(self.project, f"retrain/{pipeline}", {"pipeline": pipeline})

    def completes(self, flow_run: str) -> None:
        state = self.service.wait_for_end(flow_run, PATIENT_S)
        assert state["type"] == "COMPLETED", state["message"]

    def trains(self, flow_run: str) -> None:
        """Wait until it is some steps on, and past a checkpoint."""
        before = steps_in(self.workspace)

        def steps_or_end() -> bool:
            state = self.service.state(flow_run)
            assert state["type"] in ("SCHEDULED", "PENDING", "RUNNING"), state
            return steps_in(self.workspace) > before + 20

        wait_until(steps_or_end, PATIENT_S, "the first steps", every_s=0.1)

    def kill(self, server: subprocess.Popen[bytes]) -> None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(PATIENT_S)

    def ask_mlflow(self, path: str, **query: str) -> dict[str, Any]:
        url = f"{self.mlflow_url}/api/2.0/mlflow/{path}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(url, headers=known(self.service))
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def versions(self) -> list[str]:
        found = self.ask_mlflow("model-versions/search", filter="name='steady'")
        return sorted(each["version"] for each in found.get("model_versions", []))

    def champion(self) -> str:
        found = self.ask_mlflow("registered-models/alias", name="steady", alias="champion")
        return str(found["model_version"]["version"])


def in_compose(service: str, places: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a service of the compose file, each place of its replaced by one here."""

    def here(text: str) -> str:
        for theirs, ours in places.items():
            assert theirs in str(found), theirs
            text = text.replace(theirs, ours)
        return text

    found = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"][service]
    return [here(each) for each in found["command"]], {name: here(each) for name, each in found["environment"].items()}


def password_file(service: Service) -> Path:
    file = service.folder / "headway-password"
    file.write_text(service.password.partition(":")[2])
    return file


def known(service: Service) -> dict[str, str]:
    """What tells both servers who asks."""
    return {"Authorization": f"Basic {base64.b64encode(service.password.encode()).decode()}"}


def serve_mlflow(service: Service, postgres: Postgres, url: str) -> subprocess.Popen[bytes]:
    places = {
        "0.0.0.0": "127.0.0.1",
        "5000": str(urllib.parse.urlsplit(url).port),
        "--workers=2": "--workers=1",
        "@postgres/mlflow": f"@/mlflow?host={postgres.folder}",
        "=/mlartifacts": f"={service.folder / 'mlartifacts'}",
        "/run/secrets/postgres_password": str(postgres.password_file),
        "/run/secrets/headway_password": str(password_file(service)),
    }
    (name, *arguments), environment = in_compose("mlflow", places)
    with (service.folder / "mlflow.log").open("ab") as log:
        process = subprocess.Popen(
            (str(DOCKER / "with-secrets"), str(Path(sys.executable).with_name(name)), *arguments),
            cwd=service.folder,
            env=service.environment | environment | {"MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def answers() -> bool:
        assert process.poll() is None, (service.folder / "mlflow.log").read_text()
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return True
        except OSError:
            return False

    wait_until(answers, PATIENT_S, "MLflow")
    return process


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with running_postgres() as postgres:
        folder, mlflow_url = tmp_path_factory.mktemp("platform"), f"http://127.0.0.1:{free_port()}"
        _, environment = in_compose("prefect", {"@postgres/prefect": f"@/prefect?host={postgres.folder}"})
        database = {name: environment[name] for name in environment if "DATABASE" in name}
        service = new_service(folder, **database, **postgres.environment)
        user, _, password = service.password.partition(":")
        service.environment.update({"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password})
        _write_project(folder / "project", mlflow_url)
        made = None
        try:
            mlflow = serve_mlflow(service, postgres, mlflow_url)
            made = Platform(service, postgres, serve(service, is_fresh=False), mlflow_url, mlflow)
            yield made
        finally:
            for process in () if made is None else (made.server, made.mlflow):
                end(process)
            sweep(TOKEN, service.token)


def _write_project(folder: Path, mlflow_url: str) -> None:
    """Two pipelines that differ in their name alone: the same bits, twice, as two versions of one model."""
    (folder / "deployments").mkdir(parents=True)
    (folder / "sources").mkdir()
    for number in range(60):
        lines = (f"def f{number}_{line}(x):\n    return x + {line * number}\n" for line in range(20))
        (folder / "sources" / f"m{number:02d}.py").write_text("\n".join(lines))
    (folder / "contract.yaml").write_text(CONTRACT.replace("MIN_ROWS", "10"))
    text = PIPELINE.replace("CONTRACT", "../contract.yaml").replace("STEPS", str(MAX_STEPS))
    server = f"registry: {{model: steady, tracking_uri: '{mlflow_url}'}}"
    text = text.replace("registry: {model: NAME}", server)
    for name in ("steady", "lost"):
        (folder / "deployments" / f"{name}.yaml").write_text(text.replace("NAME", name))
    (folder / "deployments" / "profiles.yaml").write_text(PROFILES)


@pytest.fixture(scope="module")
def deployed(platform: Platform) -> list[str]:
    return platform.deploy()


class Lost(NamedTuple):
    flow_run: str
    folder: Path
    """Of the run that it trained."""


@pytest.fixture(scope="module")
def lost(platform: Platform, deployed: list[str]) -> Lost:
    """A flow run whose worker was killed in the middle of training."""
    servers = platform.service.processes()
    with working(platform.service, is_fresh=False) as worker:
        flow_run = platform.retrain("lost")
        platform.trains(flow_run)
        os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: platform.service.processes() <= servers, PATIENT_S, "the end of all that it started")
    (folder,) = (platform.workspace / "runs").iterdir()
    return Lost(flow_run, folder)


@pytest.fixture(scope="module")
def worker(platform: Platform, lost: Lost) -> Iterator[subprocess.Popen[bytes]]:
    with working(platform.service, is_fresh=False) as process:
        yield process


def bits(run: Path) -> dict[str, str]:
    """The last checkpoint's tensors by name."""
    files = sorted(max((run / "checkpoints").iterdir()).glob("tensors-*.safetensors"))
    tensors = {name: value for path in files for name, value in load_file(path).items()}
    assert tensors
    return {name: sha256_bytes(value.contiguous().numpy().tobytes()) for name, value in tensors.items()}


def first_steps(run: Path) -> list[int]:
    """Of each attempt, in their order."""
    spools = sorted(run.glob("attempts/*/ledger/rank-0.jsonl"), key=lambda path: path.stat().st_mtime)
    events = [[json.loads(line) for line in spool.read_text().splitlines()] for spool in spools]
    steps = [[each for each in attempt if each["event"] == "step"] for attempt in events]
    return [attempt[0]["step"] for attempt in steps if attempt]


def test_headway_deploy_on_postgres_changes_nothing_the_second_time(platform: Platform, deployed: list[str]) -> None:
    assert {"create work pool headway", "create deployment retrain/steady"} <= set(deployed)
    assert platform.deploy() == []


def test_mlflow_answers_by_the_name_that_containers_know_it_by_and_by_no_other(platform: Platform) -> None:
    port = urllib.parse.urlsplit(platform.mlflow_url).port

    def status(host: str, headers: dict[str, str]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": host, **headers})
        return connection.getresponse().status

    hosts, ours = [f"{name}:{port}" for name in ("mlflow", "localhost", "evil.example")], known(platform.service)
    assert [status(host, ours) for host in hosts] == [200, 200, 403]
    assert [status(host, {}) for host in hosts] == [401, 401, 401], "and nobody without the password"


def test_a_run_outlives_an_outage_of_the_server_and_registers_in_a_database_that_crashed_meanwhile(
    platform: Platform, lost: Lost, worker: subprocess.Popen[bytes]
) -> None:
    before = steps_in(platform.workspace)
    flow_run = platform.retrain("steady")
    platform.trains(flow_run)
    platform.kill(platform.server)
    assert steps_in(platform.workspace) < before + MAX_STEPS, "it was over before the server was"
    platform.postgres.restart()
    # The server comes back only when training is over: whatever the run says meanwhile, nobody hears.
    trained = before + MAX_STEPS
    wait_until(lambda: steps_in(platform.workspace) == trained, PATIENT_S, "the last step without a server")
    platform.server = serve(platform.service, is_fresh=False)
    platform.completes(flow_run)
    (folder,) = set((platform.workspace / "runs").iterdir()) - {lost.folder}
    assert first_steps(folder) == [1], "training itself was not disturbed"
    assert platform.versions() == ["1"] and platform.champion() == "1"


@pytest.fixture(scope="module")
def continued(platform: Platform, lost: Lost, worker: subprocess.Popen[bytes]) -> str:
    """The run after the lost one, over a crash of the database, to an MLflow that is down."""
    # Nobody was left to say so; the server misses its signs of life, and so frees the deployment for the next run.
    assert platform.service.wait_for_end(lost.flow_run, PATIENT_S)["type"] == "CRASHED"
    flow_run = platform.retrain("lost")
    platform.trains(flow_run)
    platform.kill(platform.mlflow)
    platform.postgres.restart()
    platform.service.wait_for_end(flow_run, PATIENT_S)
    return flow_run


def test_after_a_lost_worker_the_next_run_goes_on_from_the_checkpoint_over_a_crash_of_the_database_to_the_same_bits(
    platform: Platform, lost: Lost, continued: str
) -> None:
    start, again = first_steps(lost.folder)
    assert start == 1 < again
    (steady,) = set((platform.workspace / "runs").iterdir()) - {lost.folder}
    assert bits(lost.folder) == bits(steady)


def test_while_mlflow_is_down_a_run_tries_three_times_and_the_next_one_registers_the_same_model_once(
    platform: Platform, continued: str, worker: subprocess.Popen[bytes]
) -> None:
    state = platform.service.state(continued)
    assert (state["type"], state["name"]) == ("FAILED", "Infrastructure") and "MLflow" in state["message"], state
    assert runs_of(platform, continued, "register") == 3
    num_steps = steps_in(platform.workspace)

    platform.mlflow = serve_mlflow(platform.service, platform.postgres, platform.mlflow_url)
    platform.completes(platform.retrain("lost"))
    assert steps_in(platform.workspace) == num_steps, "what was trained is found"
    assert platform.versions() == ["1", "2"] and platform.champion() == "1"


def runs_of(platform: Platform, flow_run: str, task: str) -> int:
    """How often a task was tried; what the server knows of tasks, it learns a little later."""

    def told() -> int:
        found = platform.service.api("task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
        ended = [each for each in found if each["name"].startswith(task) and each["state"]["type"] == "FAILED"]
        return int(ended[0]["run_count"]) if ended else 0

    return int(wait_until(told, PATIENT_S, f"the end of {task}", every_s=POLL_EVERY_S))


def test_promotions_and_rollbacks_by_the_deployment_move_the_alias_and_the_history_has_them_all(
    platform: Platform, continued: str, worker: subprocess.Popen[bytes]
) -> None:
    def champion_after(**move: str) -> str:
        request = {"model": "steady", **move}
        platform.completes(platform.service.run_in(platform.project, "move-champion/champion", request))
        return platform.champion()

    promoted = {"move": "promote", "version": "2", "override": "it does not matter which"}
    assert champion_after(why="to see it in use", **promoted) == "2"
    assert champion_after(why="it was no better", move="rollback") == "1"
    history = read_history(str(platform.workspace), "steady")
    assert [(each.event, each.to_version) for each in history.entries] == [
        *(("promoted", "1"), ("challenger", "2"), ("promoted", "2"), ("rolled back", "1"))
    ]
