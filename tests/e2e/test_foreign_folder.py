"""A whole retrain, and the servers of `headway ui`, started in a folder that others write: none of its code runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headway.training.launch.base.ports import free_port
from tests import wheels
from tests.e2e.project import MAX_STEPS, Project
from tests.prefect_tables import new_prefect_home
from tests.waiting import DEADLINE_S

MODULES = (
    *("torch", "prefect", "mlflow", "yaml", "numpy", "duckdb", "pyarrow", "headway", "sitecustomize", "usercustomize"),
    *("site", "json", "random", "gunicorn_conf", "uvicorn", "alembic", "conftest", "great_expectations"),
)
FOLDERS = ("headway", "gx", ".gx", "great_expectations", "mlruns", "migrations", ".prefect", ".ssh", ".matplotlib")
MARKS = "import os, pathlib\npathlib.Path({mark!r}).open('a').write(__file__ + ' ' + str(os.getpid()) + chr(10))\n"
ASK = """
import headway, torch, training
model = headway.load_table_model("models:/demo@champion")
encoded = model.encode([dict.fromkeys(model.fitted_types, 1.0)])
print(len(model.graph(torch.from_numpy(encoded["numeric"]))))
"""
OF_A_TEAM = {"PREFECT_API_AUTH_STRING": "team:secret", "HEADWAY_PREFECT_RECORDS": "1"}
LOGGING = """
version: 1
formatters: {x: {"()": subprocess.getoutput, cmd: "touch MARK"}}
handlers: {h: {class: logging.StreamHandler, formatter: x}}
loggers: {prefect: {handlers: [h], level: INFO}}
"""


@pytest.fixture
def stranger() -> Iterator[tuple[str, list[str]]]:
    """A server that a foreign folder names, and what it was asked."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true")

        do_POST = do_PUT = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    server.server_close()


@pytest.fixture
def hostile(tmp_path: Path, stranger: tuple[str, list[str]]) -> Path:
    """A folder of modules that leave `MARK` there, and of files that name such code and the stranger's server."""
    folder, (url, _) = tmp_path / "foreign", stranger
    folder.mkdir()
    mark = str(folder / "MARK")
    for name in MODULES:
        (folder / f"{name}.py").write_text(MARKS.format(mark=mark))
    for name in FOLDERS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(MARKS.format(mark=mark))
    (folder / "evil.yml").write_text(LOGGING.replace("MARK", mark))
    settings = {"PREFECT_API_URL": f"{url}/api", "PREFECT_LOGGING_SETTINGS_PATH": str(folder / "evil.yml")}
    others = {"MLFLOW_TRACKING_URI": url, "AWS_ENDPOINT_URL": url, "HEADWAY_WORKSPACE": str(folder / "stolen")}
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in (settings | others).items()))
    (folder / "prefect.toml").write_text(f'[api]\nurl = "{url}/api"\n[logging]\nconfig_path = "evil.yml"\n')
    tool = f'[tool.prefect.api]\nurl = "{url}/api"\n[tool.prefect.logging]\nconfig_path = "evil.yml"\n'
    (folder / "pyproject.toml").write_text(tool)
    (folder / "matplotlibrc").write_text("backend: module://torch\n")
    (folder / ".netrc").write_text("machine 127.0.0.1 login evil password evil\n")
    (folder / ".duckdbrc").write_text(f".shell touch {mark}\n")
    (folder / "alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
    (folder / "logging_config.ini").write_text(f"[loggers]\nkeys=open({mark!r},'w')\n")
    (folder / "gunicorn.conf.py").write_text(MARKS.format(mark=mark))
    (folder / ".pdbrc").write_text(MARKS.format(mark=mark))
    (folder / ".numba_config.yaml").write_text("disable_jit: 1\n")
    git = folder / ".git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "objects").mkdir()
    (git / "refs").mkdir()
    evil = f"!touch {mark}"
    (git / "config").write_text(
        f'[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "touch {mark}; false"\n\tpager = "touch {mark}"\n'
        f'\tsshCommand = "touch {mark}"\n[alias]\n\trev-parse = "{evil}"\n[credential]\n\thelper = "{evil}"\n'
    )
    return folder


@pytest.mark.long
def test_the_wheel_retrains_a_new_project_on_its_own_recipe_and_runs_no_code_of_the_foreign_folder_it_starts_in(
    hostile: Path, stranger: tuple[str, list[str]], tmp_path: Path
) -> None:
    """One retrain of fresh processes answers for both: for what was installed, and for what lies around it."""
    installed = wheels.install(tmp_path / "installed")
    new_prefect_home(tmp_path / "prefect")
    written = wheels.run(installed, "-m", "headway", "init", "demo", cwd=wheels.with_folders_of_its_own(tmp_path))
    assert written.returncode == 0, written.stderr
    project = tmp_path / "demo"
    pipeline = project / "deployments" / "demo.pipeline.yaml"
    own = re.sub(r"recipe: \{.*\}", "recipe: {name: recipes.network:Network}", pipeline.read_text())
    pipeline.write_text(own)
    # As a shell starts it: `-m` would ask the folder for it.
    command = (str(installed / "bin" / "headway"), "retrain", str(pipeline), "-w", str(project / "workspace"), "--json")
    done = wheels.run(installed, *command, cwd=hostile, **OF_A_TEAM)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["event"] == "summary" and summary["is_champion"], summary["reason"]
    assert stranger[1] == []
    assert not (hostile / "MARK").exists(), (hostile / "MARK").read_text()
    assert not (hostile / "stolen").exists()
    (tmp_path / "ask.py").write_text(ASK)
    asked = wheels.run(installed, "../ask.py", cwd=project)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip() == "1"


@pytest.mark.soak
def test_a_retrain_of_texts_in_a_foreign_folder_runs_none_of_its_code_and_asks_none_of_its_servers(
    new_project: Project, hostile: Path, stranger: tuple[str, list[str]]
) -> None:
    new_project.edit("tiny.yaml", f"max_steps: {MAX_STEPS}", "max_steps: 20")
    done = subprocess.run(
        (Path(sys.executable).with_name("headway"), "retrain", new_project.pipeline, "-w", new_project.workspace),
        cwd=hostile,
        env=new_project.environment | OF_A_TEAM,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 7), done.stdout + done.stderr
    assert list(new_project.workspace.glob("refs/models/*/versions/*.json")), "it came to its end"
    assert stranger[1] == []
    assert not (hostile / "MARK").exists(), (hostile / "MARK").read_text()
    assert not (hostile / "stolen").exists()


@pytest.mark.long
def test_the_servers_of_ui_in_a_foreign_folder_run_none_of_its_code_and_ask_none_of_its_servers(
    new_project: Project, hostile: Path, stranger: tuple[str, list[str]]
) -> None:
    ports = ("--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
    with subprocess.Popen(
        (Path(sys.executable).with_name("headway"), "ui", *ports, "-w", new_project.workspace),
        cwd=hostile,
        env=new_project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as ui:
        assert ui.stdout is not None
        message = ""
        while "Ctrl-C" not in message and (line := ui.stdout.readline()):
            message += line
        ui.send_signal(signal.SIGINT)
        assert ui.wait(DEADLINE_S) == 0, message
    assert stranger[1] == []
    assert not (hostile / "MARK").exists(), (hostile / "MARK").read_text()
