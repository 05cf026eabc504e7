"""A password goes to our own server alone: not to who took its port first, and to no proxy."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.flows.console.environment import prepare
from headway.flows.prefect_api.ephemeral_server import require_answer
from headway.flows.prefect_api.listeners import require_own_listener, users_listening
from headway.flows.prefect_api.serve import mlflow_server, wait_until_ready
from headway.flows.prefect_api.server_password import kept_password, password_file
from headway.training.launch.base.ports import free_port

NOBODY = 65534


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another user listens on."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    with socket.socket() as listener:
        os.fchown(listener.fileno(), NOBODY, -1)  # as if that user had made it
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_who_listens_is_known_by_the_port(taken: int) -> None:
    assert users_listening(taken) == {NOBODY}
    assert users_listening(free_port()) == set()


@pytest.mark.process
def test_a_server_whose_port_another_user_took_is_given_no_password(taken: int, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        try:
            with pytest.raises(EnvironmentProblem, match=r"another user .* has taken MLflow's port"):
                wait_until_ready(
                    mlflow_server(Workspace.create(str(tmp_path)), taken, "headway:drawn"), server, tmp_path
                )
        finally:
            server.kill()


def test_the_password_of_headway_ui_is_given_to_no_port_of_another_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when our server has ended, and a shell still has its password."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    drawn, heard = kept_password(password_file()), []

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true")

        def log_message(self, *_: object) -> None:
            pass

    stranger = http.server.HTTPServer(("127.0.0.1", 0), Stranger, bind_and_activate=False)
    os.fchown(stranger.fileno(), NOBODY, -1)
    stranger.server_bind()
    stranger.server_activate()
    threading.Thread(target=stranger.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{stranger.server_port}/api"
    try:
        with (
            temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: drawn}),
            pytest.raises(EnvironmentProblem, match=r"another user .* has taken Prefect's port"),
        ):
            require_answer(url)
        assert heard == [None]
        with (
            temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: "team:of-another-account"}),
            pytest.raises(EnvironmentProblem, match="is not Prefect's API"),
        ):
            require_answer(url)
        assert heard[-1] is not None, "that one may be meant for it"
    finally:
        stranger.shutdown()
        stranger.server_close()


@pytest.mark.parametrize("host", ["203.0.113.7", "stranger.example", "0.0.0.0", "127.0.0.1.stranger.example", "[::2]"])
def test_the_password_of_headway_ui_is_given_to_no_other_machine(host: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"this machine's own Prefect, and .* may be anybody's"):
        require_own_listener(f"http://{host}:4200/api", "Prefect")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.2"])
def test_it_is_given_to_this_machines_own(host: str) -> None:
    require_own_listener(f"http://{host}:{free_port()}/api", "Prefect")


def test_what_is_asked_on_this_machine_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "intern.example")
    monkeypatch.setenv("NO_PROXY", "")
    prepare()
    for name in ("no_proxy", "NO_PROXY"):
        assert os.environ[name].split(",") == ["intern.example", "127.0.0.1", "localhost", "::1"]
