"""`headway ui`: both servers answer, it says where to click, and nothing of it outlives it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.flows.prefect_api.server_auth import openness
from headway.training.launch.base.ports import free_port
from headway.training.launch.base.process_tree import die_with_parent, processes_with, sweep
from tests.listening import listening
from tests.prefect_tables import new_prefect_home
from tests.stranger import stranger
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import Program

HEADWAY = str(Path(sys.executable).with_name("headway"))
TOKEN = "UI_TEST_TOKEN"


@dataclass
class Ui:
    process: subprocess.Popen[str]
    token: str
    ports: tuple[int, int]
    message: str

    def wait_until_gone(self) -> None:
        wait_until(lambda: not processes_with(TOKEN, self.token), what="the end of every server")


def start(folder: Path, ports: tuple[int, int], token: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HEADWAY_"))}
    environment |= {"PREFECT_HOME": str(folder / "home"), "PREFECT_API_URL": "http://127.0.0.1:9/api", TOKEN: token}
    options = (
        "--workspace",
        str(folder / "workspace"),
        "--prefect-port",
        str(ports[0]),
        "--mlflow-port",
        str(ports[1]),
    )
    return Program(
        [sys.executable, HEADWAY, "ui", *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ui")
    new_prefect_home(made / "home")
    return made


@contextlib.contextmanager
def running(folder: Path, until: str) -> Iterator[Ui]:
    """A `headway ui` that has said a word."""
    ports, token = (free_port(), free_port()), uuid.uuid4().hex
    process = start(folder, ports, token)
    assert process.stdout is not None
    message = ""
    try:
        for line in process.stdout:
            message += line
            if until in line:
                break
        yield Ui(process, token, ports, message)
    finally:
        process.kill()
        process.communicate()
        sweep(TOKEN, token)


@pytest.fixture(scope="module")
def same_ui(folder: Path) -> Iterator[Ui]:
    """One that is ready, for all who ask it alone, and at last for the test that ends it."""
    with running(folder, "Ctrl-C") as made:
        yield made


@pytest.fixture
def starting(folder: Path) -> Iterator[Ui]:
    """One whose servers have begun to start."""
    with running(folder, "Starting") as made:
        yield made


def get(url: str) -> str:
    # As a browser asks; for anything else Prefect has pages only at `/`.
    request = urllib.request.Request(url, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        text: str = answer.read().decode()
        return text


def test_another_user_and_a_web_page_are_refused_by_both_servers_and_the_password_is_nowhere_to_be_read(
    same_ui: Ui, folder: Path
) -> None:
    ui = same_ui
    password_file = folder / "home" / "headway" / "password"
    pids = [*processes_with(TOKEN, ui.token), ui.process.pid]
    databases = [*(folder / "home").glob("prefect.db*")]
    assert databases and not any(path.stat().st_mode & 0o077 for path in databases)
    files = [str(password_file), *map(str, databases), *(f"/proc/{pid}/environ" for pid in pids)]
    met = stranger(*ui.ports, files=files, pids=pids)
    assert met.let_in == {} and met.read == []
    assert {door for pid in pids for door in listening(pid)} == {("127.0.0.1", port) for port in ui.ports}

    user, _, drawn = password_file.read_text().strip().partition(":")
    assert (user, len(drawn) >= 32) == ("headway", True)
    assert stat.S_IMODE(password_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(password_file.parent.stat().st_mode) == 0o700
    logs = "".join(path.read_text() for path in (folder / "workspace" / "ui").iterdir())
    assert logs and drawn not in met.command_lines + logs + ui.message


SOCKETS = (
    *("/api/events/in", "/api/events/out", "/api/logs/out", "/api/task_runs/subscriptions/scheduled"),
    "/api/work_pools/theirs/workers/connect",
)
FORGED = {"event": "forged", "resource": {"prefect.resource.id": "theirs"}, "occurred": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("path", SOCKETS)
def test_no_web_socket_of_prefects_hears_or_tells_who_has_no_password(same_ui: Ui, path: str) -> None:
    """A browser lets every page connect to them, whatever its origin, and an event starts what waits for it."""
    from websockets.exceptions import ConnectionClosed, InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    url, own = f"ws://127.0.0.1:{same_ui.ports[0]}{path}", [Subprotocol("prefect")]
    with pytest.raises(InvalidStatus), connect(url, proxy=None):
        pass
    lies: list[object] = [{"type": "auth", "token": token} for token in ("", "headway:", ["x"])]
    for lie in (*lies, FORGED):
        with connect(url, subprotocols=own, proxy=None, additional_headers={"Origin": "http://evil.example"}) as page:
            page.send(json.dumps(lie))
            with pytest.raises(ConnectionClosed):
                page.send(json.dumps(FORGED))
                page.recv(DEADLINE_S)


def requested(port: int, method: str, path: str, password: str = "", **headers: str) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    known = {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"} if password else {}
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, "{}", known | {"Content-Type": "application/json"} | headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}


def test_no_foreign_page_may_ask_prefect_and_who_has_the_password_may(same_ui: Ui) -> None:
    ui = same_ui
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    prefect, mlflow = ui.ports
    preflight = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
    status, headers = requested(prefect, "OPTIONS", "/api/flows/", Origin="http://evil.example", **preflight)
    assert status == 400 and "access-control-allow-origin" not in headers
    status, headers = requested(prefect, "GET", "/api/health", Origin="http://evil.example")
    assert "access-control-allow-origin" not in headers
    status, headers = requested(prefect, "OPTIONS", "/api/flows/", Origin=f"http://127.0.0.1:{prefect}", **preflight)
    assert (status, headers["access-control-allow-origin"]) == (200, f"http://127.0.0.1:{prefect}")

    assert openness(f"http://127.0.0.1:{prefect}/api") == ""

    # As the page says it to a person, and a shell takes it.
    line = next(line for line in ui.message.splitlines() if "PREFECT_API_AUTH_STRING" in line)
    shell = f"{line}; printenv PREFECT_API_AUTH_STRING"
    password = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.strip()
    assert requested(prefect, "POST", "/api/flows/", password)[0] == 403, "a page that had it lacks the token"
    given = {PREFECT_API_URL: f"http://127.0.0.1:{prefect}/api", PREFECT_API_AUTH_STRING: password}
    with temporary_settings(given), get_client(sync_client=True) as client:
        assert client.create_flow_from_name("ours")
    assert requested(mlflow, "GET", "/api/2.0/mlflow/experiments/search?max_results=5", password)[0] == 200
    assert requested(mlflow, "GET", "/", password)[0] == 200
    # Of a browser that knows the password; pages on other ports of this machine are other programs'.
    search = "/ajax-api/2.0/mlflow/experiments/search?max_results=5"
    for origin in ("http://evil.example", f"http://127.0.0.1:{prefect}", f"http://localhost:{mlflow}", "null"):
        foreign = requested(mlflow, "POST", "/api/2.0/mlflow/experiments/create", password, Origin=origin)
        assert foreign[0] == 403, origin
        status, headers = requested(mlflow, "GET", search, password, Origin=origin)
        assert status == 403 and "access-control-allow-origin" not in headers, origin
    assert requested(mlflow, "GET", search, password, Origin=f"http://127.0.0.1:{mlflow}")[0] == 200
    for host in ("evil.example", "10.0.0.1", "192.168.1.1", f"127.0.0.1:{prefect}", "localhost"):
        assert requested(mlflow, "GET", search, password, Host=host)[0] == 403, host


def test_it_says_where_to_click_and_both_answer_and_ctrl_c_ends_both_even_without_their_reapers(
    same_ui: Ui,
) -> None:
    ui = same_ui
    prefect, mlflow = (f"http://127.0.0.1:{port}" for port in ui.ports)
    assert f"{prefect}/" in ui.message and f"{mlflow}/#/models" in ui.message, ui.message
    assert "<title>" in get(prefect + "/runs")
    # The page asks this server, not the one that the shell's PREFECT_API_URL names.
    assert f'"{prefect}/api"' in get(prefect + "/ui-settings")
    assert len(processes_with(TOKEN, ui.token)) >= 5
    # They are for a command that is killed.
    assert len(reapers(ui)) == 2
    for pid in reapers(ui):
        os.kill(pid, signal.SIGKILL)
    ui.process.send_signal(signal.SIGINT)
    assert ui.process.wait(DEADLINE_S) == 0
    ui.wait_until_gone()


def test_a_command_that_is_told_to_end_leaves_no_server_not_even_one_that_starts(starting: Ui) -> None:
    assert len(processes_with(TOKEN, starting.token)) >= 5
    starting.process.send_signal(signal.SIGTERM)
    assert starting.process.wait(DEADLINE_S) == 143
    starting.wait_until_gone()


def reapers(ui: Ui) -> list[int]:
    return [pid for pid in processes_with(TOKEN, ui.token) if b"headway.training.launch.node.reaper" in cmdline(pid)]


def test_servers_do_not_outlive_a_killed_command_not_even_halted_ones(starting: Ui) -> None:
    wait_until(lambda: len(reapers(starting)) == 2, what="a reaper for each server")
    servers = set(processes_with(TOKEN, starting.token)) - {*reapers(starting), starting.process.pid}
    assert len(servers) >= 2
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)
    starting.process.kill()
    starting.wait_until_gone()


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(("place", "option"), [(0, "--prefect-port"), (1, "--mlflow-port")])
def test_a_taken_port_is_one_message_that_names_the_option(folder: Path, place: int, option: str) -> None:
    ports = free_port(), free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[place]))
        taken.listen()
        process = start(folder, ports, uuid.uuid4().hex)
        out, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 8
    assert out == "" and error.count("\n") == 1
    assert f"port {ports[place]} " in error and option in error
