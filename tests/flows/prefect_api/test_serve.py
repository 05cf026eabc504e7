"""What `headway ui` does when a server of its ends: it says which and how, and the other goes on."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.flows.prefect_api import serve, server_process
from headway.flows.prefect_api.server_auth import answer_to
from headway.training.launch.base.ports import free_port
from tests.prefect_tables import new_prefect_home
from tests.waiting import wait_until

SERVER = """
import http.server, os, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/end":
            print("the last word\\nof this server", flush=True)
            os._exit(3)
        if self.path == "/kill":
            os.kill(os.getpid(), 9)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[int, int]:
    """Of a `headway ui` whose servers are small ones, that end when they are asked to."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))

    def small(made: serve.ServerProcess) -> serve.ServerProcess:
        command = (sys.executable, "-c", SERVER, str(made.port))
        if made.listener is not None:
            made.listener.close()
        return dataclasses.replace(made, command=command, health="/", listener=None)

    prefect, mlflow = serve.prefect_server, serve.mlflow_server
    monkeypatch.setattr(serve, "prefect_server", lambda *given: small(prefect(*given)))
    monkeypatch.setattr(serve, "mlflow_server", lambda *given: small(mlflow(*given)))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return free_port(), free_port()


def ask(port: int, path: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return int(answer.status)


@pytest.mark.process
def test_each_end_is_told_by_name_code_and_last_lines_while_the_other_goes_on(
    ports: tuple[int, int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message: list[str] = []

    def heard(what: str) -> bool:
        message.append(capfd.readouterr().err)
        return what in "".join(message)

    def end_one_after_the_other() -> None:
        wait_until(lambda: "Ctrl-C ends both" in capfd.readouterr().out, what="both servers")
        with pytest.raises(OSError):
            ask(ports[0], "/end")
        wait_until(lambda: heard("Prefect ended by itself"), what="the first end")
        assert ask(ports[1], "/") == 200, "the other goes on"
        with pytest.raises(OSError):
            ask(ports[1], "/kill")

    ender = threading.Thread(target=end_one_after_the_other)
    ender.start()
    with pytest.raises(EnvironmentProblem, match="2 of the two servers ended by themselves"):
        serve.serve(str(tmp_path / "workspace"), *ports)
    ender.join()
    message.append(capfd.readouterr().err)
    first, second = "".join(message).splitlines()
    assert "Prefect ended by itself (exit code 3); it wrote last: the last word | of this server." in first
    assert "prefect.log" in first and first.endswith("MLflow keeps running.") and "mlflow.log" not in first
    assert "MLflow ended by itself (SIGKILL)." in second and "keeps running" not in second


@pytest.mark.process
def test_ctrl_c_after_one_has_ended_is_no_success(
    ports: tuple[int, int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        wait_until(lambda: "Ctrl-C ends both" in capfd.readouterr().out, what="both servers")
        with pytest.raises(OSError):
            ask(ports[1], "/end")
        wait_until(lambda: "MLflow ended by itself" in capfd.readouterr().err, what="the end")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(EnvironmentProblem, match="1 of the two servers ended by itself"):
        serve.serve(str(tmp_path / "workspace"), *ports)


def test_the_password_is_no_part_of_what_is_shown_of_a_server(tmp_path: Path) -> None:
    server = serve.prefect_server(0, "headway:secret")
    assert server.listener is not None
    server.listener.close()
    assert "secret" not in repr(server) and "secret" not in str(server.command)


@pytest.mark.process
def test_a_link_in_the_place_of_a_servers_log_leads_nowhere(tmp_path: Path) -> None:
    server = serve.mlflow_server(Workspace(str(tmp_path)), 0, "headway:secret")
    (tmp_path / "precious").write_text("of the user who starts the server")
    serve.log_of(server, tmp_path).symlink_to("precious")
    with pytest.raises(OSError, match="symbolic links"), serve.running(server, tmp_path):
        pytest.fail("it was started")
    assert (tmp_path / "precious").read_text().startswith("of the user")


SILENT = """
import os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
held = [socket.socket() for _ in range(int(sys.argv[2]))]
for each in held:
    each.settimeout(60)
    each.connect(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
input()
"""


@pytest.mark.long
@pytest.mark.process
def test_another_users_silent_connections_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the server may open files: it could take no further connection until they went."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    monkeypatch.setenv("PREFECT_HOME", str(new_prefect_home(tmp_path / "home")))
    password = "headway:drawn"
    server = serve.prefect_server(0, password, is_alone=True)
    with serve.running(server, tmp_path) as process:
        serve.wait_until_ready(server, process, tmp_path)
        # What it keeps of connections, what it may accept before it looks at them, and its own of files and databases.
        files = server_process.MAX_CONNECTIONS + server_process.BACKLOG + 100
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
        command = (sys.executable, "-I", "-c", SILENT, str(server.port), str(files + 100))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
            assert stranger.stdout is not None and stranger.stdout.readline() == b"connected\n"
            try:
                assert answer_to(f"{server.url}/api/health").status == 200
            finally:
                stranger.kill()
