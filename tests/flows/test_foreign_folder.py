"""A command is run in a folder that others write: nothing there names a server, a file or code to be run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SETTINGS = {
    "PREFECT_API_URL": "api.url",
    "PREFECT_HOME": "home",
    "PREFECT_PROFILES_PATH": "profiles_path",
    "PREFECT_LOGGING_SETTINGS_PATH": "logging.config_path",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": "server.database.connection_url",
}
LOGGING = """
version: 1
formatters: {x: {"()": subprocess.getoutput, cmd: "touch MARK"}}
handlers: {h: {class: logging.StreamHandler, formatter: x}}
loggers: {prefect: {handlers: [h], level: INFO}}
"""
TORCH = "open({mark!r}, 'w').close()\n"
PROBE = """
import functools, json, os, sys
from headway.flows.console.environment import prepare
prepare()
from prefect.settings import Settings
from prefect.settings.sources import _file_cache
names, found = json.loads(sys.argv[1]), []
for folder in sys.argv[2:]:
    os.chdir(folder)
    _file_cache.clear()
    settings = Settings()
    found.append([str(functools.reduce(getattr, name.split("."), settings)) for name in names])
print(json.dumps(found))
"""


def hostile(folder: Path, file: str, values: dict[str, str]) -> Path:
    """A folder whose file says so; its logging configuration and its `torch.py` leave `MARK` there."""
    folder.mkdir()
    (folder / "evil.yml").write_text(LOGGING.replace("MARK", str(folder / "MARK")))
    (folder / "torch.py").write_text(TORCH.format(mark=str(folder / "MARK")))
    (folder / "profiles.toml").write_text(f'active = "evil"\n[profiles.evil]\n{_pairs(values)}')
    if file == ".env":
        text = "".join(f"{name}={value}\n" for name, value in values.items())
    else:
        tables: dict[str, str] = {}
        for name, value in values.items():
            table, _, key = f".{SETTINGS[name]}".rpartition(".")
            start = "tool.prefect" if file == "pyproject.toml" else ""
            tables[f"{start}{table}".strip(".")] = tables.get(f"{start}{table}".strip("."), "") + f'{key} = "{value}"\n'
        text = "".join(f"[{table}]\n{keys}" if table else keys for table, keys in sorted(tables.items()))
    (folder / file).write_text(text)
    return folder


def _pairs(values: dict[str, str]) -> str:
    return "".join(f'{name} = "{value}"\n' for name, value in values.items())


@pytest.fixture(autouse=True)
def helpers_are_forks() -> None:
    """They are started as users' are: what they import is what these tests ask."""


def environment(**given: str) -> dict[str, str]:
    ours = {n: v for n, v in os.environ.items() if not n.startswith(("PREFECT_", "HEADWAY_", "PYTHONSAFEPATH"))}
    return ours | given


def test_no_file_of_the_current_folder_sets_what_prefect_does(tmp_path: Path) -> None:
    folders = [tmp_path / "empty"]
    folders[0].mkdir()
    for file in (".env", "prefect.toml", "pyproject.toml"):
        folder = tmp_path / file.strip(".").replace(".", "-")
        values = {
            "PREFECT_API_URL": "http://stranger.invalid/api",
            "PREFECT_HOME": str(folder),
            "PREFECT_PROFILES_PATH": str(folder / "profiles.toml"),
            "PREFECT_LOGGING_SETTINGS_PATH": str(folder / "evil.yml"),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder}/evil.db",
        }
        folders.append(hostile(folder, file, values))
    command = (sys.executable, "-P", "-c", PROBE, json.dumps(list(SETTINGS.values())), *map(str, folders))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    empty, *others = json.loads(done.stdout)
    assert others == [empty] * 3


@pytest.mark.long
def test_a_command_in_a_foreign_folder_runs_none_of_its_code_and_sends_no_password_where_it_says(
    tmp_path: Path, project: Path, served: Callable[[Callable[[BaseHTTPRequestHandler], None]], str]
) -> None:
    heard: list[str | None] = []

    def listen(requested: BaseHTTPRequestHandler) -> None:
        heard.append(requested.headers.get("Authorization"))
        requested.send_response(200)
        requested.end_headers()
        requested.wfile.write(b"true")

    values = {"PREFECT_API_URL": f"{served(listen)}/api", "PREFECT_LOGGING_SETTINGS_PATH": "evil.yml"}
    folder = hostile(tmp_path / "foreign", ".env", values)
    (project / "deployments").mkdir()
    pipeline = (project / "tiny.yaml").read_text().replace("contract.yaml", "../contract.yaml")
    (project / "deployments" / "tiny.yaml").write_text(pipeline)
    (project / "deployments" / "profiles.yaml").write_text("project: x\nprofiles: {production: {pool: {name: x}}}\n")
    given = environment(
        PREFECT_API_AUTH_STRING="team:secret",
        PREFECT_HOME=str(tmp_path / "prefect"),
        HEADWAY_PROJECT=str(project),
        HEADWAY_WORKSPACE=str(tmp_path / "workspace"),
    )

    def message(*arguments: str) -> str:
        done = subprocess.run((sys.executable, *arguments), env=given, cwd=folder, capture_output=True, text=True)
        return done.stdout + done.stderr

    assert "no Prefect server is named" in message("-P", "-m", "headway", "deploy", "production")
    assert "two ranks met" in message("-P", "-m", "headway", "doctor")
    # Its application is made, with Prefect's logging, before it looks at what it is handed.
    assert "Bad file descriptor" in message("-P", "-m", "headway.flows.prefect_api.server_process", "999")
    assert heard == []
    assert not (folder / "MARK").exists()
