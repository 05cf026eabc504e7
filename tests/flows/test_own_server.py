"""A Prefect server that is configured but not there is refused in one sentence, before anything waits for it."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from data_contracts.errors import EnvironmentProblem
from flows import own_server

Serve = Callable[[int, bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that gives every request the same answer; returns its URL."""
    servers: list[http.server.HTTPServer] = []

    def serve(status: int, body: bytes) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if self.path == "/api/health" else b"<title>not here</title>")

            def log_message(self, *_arguments: object) -> None:
                pass

        servers.append(http.server.HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/api"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def refused(url: str) -> str:
    with pytest.raises(EnvironmentProblem) as problem:
        own_server.require_answer(url)
    assert problem.value.where == url and "PREFECT_API_URL" in problem.value.advice
    return problem.value.what


@pytest.mark.parametrize(("status", "body"), [(200, b"true"), (401, b"who are you?"), (403, b"not you")])
def test_a_server_that_is_there_is_taken(serve: Serve, status: int, body: bytes) -> None:
    own_server.require_answer(serve(status, body))
    own_server.require_answer(serve(status, body) + "/")


@pytest.mark.slow
@pytest.mark.parametrize(("password", "told"), [(None, "asks for a password"), ("me:wrong", "asks for another")])
def test_a_server_whose_password_we_do_not_have_is_refused_in_one_sentence(
    prefect_here: None, password: str | None, told: str
) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    own_server.require_answer(PREFECT_API_URL.value())  # with the right one
    with temporary_settings({PREFECT_API_AUTH_STRING: password}), pytest.raises(EnvironmentProblem) as problem:
        own_server.require_answer(PREFECT_API_URL.value())
    assert told in problem.value.what and "PREFECT_API_AUTH_STRING" in problem.value.advice


def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert "does not answer" in refused(f"http://127.0.0.1:{taken.getsockname()[1]}/api")


@pytest.mark.parametrize("url", ["127.0.0.1:4200/api", "no-such-scheme://x/api", "http://", "http://[::1/api", "api"])
def test_what_is_no_url(url: str) -> None:
    assert "does not answer" in refused(url)


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (404, b""), (500, b"true")])
def test_another_service_on_that_port(serve: Serve, status: int, body: bytes) -> None:
    assert "not Prefect's API" in refused(serve(status, body))


def test_a_url_that_forgets_the_api(serve: Serve) -> None:
    assert "not Prefect's API" in refused(serve(200, b"true").removesuffix("/api"))


def test_a_server_that_takes_the_call_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_server, "ANSWER_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "timed out" in refused(f"http://127.0.0.1:{silent.getsockname()[1]}/api")


def test_something_that_does_not_speak_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def greet() -> None:
            caller, _ = stranger.accept()
            with caller:
                caller.recv(1024)
                caller.sendall(b"SSH-2.0-stranger\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        assert "does not answer" in refused(f"http://127.0.0.1:{stranger.getsockname()[1]}/api")
        thread.join()
