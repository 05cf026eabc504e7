"""A Prefect server that is configured but not there is refused in one sentence, before anything waits for it."""

from __future__ import annotations

import socket
import sys
import threading
import types
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.prefect_api import ephemeral_server
from headway.flows.prefect_api.serve import ServerProcess
from headway.flows.show.doctor import prefect_finding
from headway.training.launch.base.ports import free_port

Serve = Callable[[int, bytes], str]
ANSWERS = {"/api/admin/version": b'"3.8.8"', "/api/csrf-token": b'{"token": "t"}'}
PAGE = b"<title>not here</title>"


@pytest.fixture
def serve(served: Callable[[Callable[[BaseHTTPRequestHandler], None]], str]) -> Serve:
    """Starts a server that gives every request the same answer; returns its API's URL."""

    def serve(status: int, body: bytes) -> str:
        def answer(requested: BaseHTTPRequestHandler) -> None:
            requested.send_response(status)
            requested.end_headers()
            requested.wfile.write(
                body if requested.path == "/api/health" else ANSWERS.get(requested.path.partition("?")[0], PAGE)
            )

        return f"{served(answer)}/api"

    return serve


def refused(url: str) -> str:
    with pytest.raises(EnvironmentProblem) as problem:
        ephemeral_server.require_answer(url)
    assert problem.value.where == url and "PREFECT_API_URL" in problem.value.advice
    return problem.value.what


@pytest.mark.parametrize(("status", "body"), [(200, b"true"), (401, b"who are you?"), (403, b"not you")])
def test_a_server_that_is_there_is_taken(serve: Serve, status: int, body: bytes) -> None:
    ephemeral_server.require_answer(serve(status, body))
    ephemeral_server.require_answer(serve(status, body) + "/")


def test_an_address_that_holds_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(EnvironmentProblem) as problem:
        ephemeral_server.require_answer("http://u:PLANTpw@127.0.0.1:9/api")
    assert "PLANTpw" not in str(problem.value) and "PREFECT_API_AUTH_STRING" in problem.value.advice


@pytest.mark.process
@pytest.mark.parametrize(("password", "told"), [(None, "asks for a password"), ("me:wrong", "asks for another")])
def test_a_server_whose_password_we_do_not_have_is_refused_in_one_sentence(
    prefect_here: None, password: str | None, told: str
) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    ephemeral_server.require_answer(PREFECT_API_URL.value())  # with the right one
    with temporary_settings({PREFECT_API_AUTH_STRING: password}), pytest.raises(EnvironmentProblem) as problem:
        ephemeral_server.require_answer(PREFECT_API_URL.value())
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


@pytest.mark.parametrize("path", ["/api/admin/version", "/api/csrf-token"])
@pytest.mark.parametrize("body", [b"{}", b"[" * 40_000, b"\xff", PAGE])
def test_what_is_healthy_as_prefect_is_and_says_nothing_else_as_it_does(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: bytes
) -> None:
    monkeypatch.setitem(ANSWERS, path, body)
    assert "not Prefect's API" in refused(serve(200, b"true"))


def test_a_url_that_forgets_the_api(serve: Serve) -> None:
    assert "not Prefect's API" in refused(serve(200, b"true").removesuffix("/api"))


def test_a_server_that_takes_the_call_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ephemeral_server, "ANSWER_WITHIN_S", 0.2)
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


def test_a_home_of_prefects_that_cannot_be_written_is_named_before_a_server_is_started(tmp_path: Path) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    at_home: Any = {"updates": {PREFECT_HOME: home}, "restore_defaults": [PREFECT_API_URL]}
    refused = pytest.raises(EnvironmentProblem, match="PREFECT_HOME cannot be written")
    with temporary_settings(**at_home), refused as problem, ephemeral_server.prefect_api(is_ephemeral=True):
        pass
    assert (problem.value.where, problem.value.exit_code) == (str(home), 8)
    with temporary_settings(**at_home):
        found = prefect_finding()
    assert found.state == "FAULT" and "PREFECT_HOME" in found.message


LIES = {
    "nothing": b"",
    "null": b"null",
    "no object": b"[]",
    "an object of nothing": b"{}",
    "words": b'"x"',
    "a list of words": b'["x"]',
    "a page": PAGE,
    "deep JSON": b"[" * 100_000,
    "a number of 5,000 digits": b"9" * 5_000,
}


def serve_lies(served: Callable[[Callable[[BaseHTTPRequestHandler], None]], str], lie: bytes, status: int) -> str:
    """A server that is healthy as Prefect's is, and answers all else so; returns its API's URL."""

    def answer(requested: BaseHTTPRequestHandler) -> None:
        path = requested.path.partition("?")[0]
        body = b"true" if path == "/api/health" else ANSWERS.get(path, lie)
        requested.send_response(200 if body is not lie else status)
        requested.end_headers()
        requested.wfile.write(body)

    return f"{served(answer)}/api"


@pytest.mark.process
@pytest.mark.parametrize(("lie", "status"), [("an object of nothing", 200), ("a page", 200), ("no object", 409)])
def test_a_flow_whose_server_lies_ends_with_a_problem_of_the_environment(
    served: Callable[[Callable[[BaseHTTPRequestHandler], None]], str], lie: str, status: int
) -> None:
    from prefect import flow
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    url = serve_lies(served, LIES[lie], status)
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: None}),
        pytest.raises(EnvironmentProblem) as problem,
        ephemeral_server.prefect_api(),
    ):
        flow(lambda: None, name="lied to")()
    assert problem.value.where == url and "PREFECT_API_URL" in problem.value.advice


@pytest.mark.parametrize("lie", LIES)
def test_whatever_a_server_answers_to_a_deployment_or_a_trigger_is_its_problem(
    served: Callable[[Callable[[BaseHTTPRequestHandler], None]], str], lie: str
) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from headway.flows.deploy.actual import actual
    from headway.flows.prefect_api.client import PrefectClient, connected
    from headway.flows.triggers import run_requests

    asked: tuple[Callable[[PrefectClient], object], ...] = (
        lambda server: actual(server, "mark"),
        lambda server: run_requests.deployment_id(server, "a/b"),
        lambda server: run_requests.newest_event(server, "x", 0.0),
        lambda server: run_requests.active_runs(server, "0"),
        lambda server: run_requests.request_run(server, "0", "key", {}),
        lambda server: server.notification_block("slack/me"),
    )
    url = serve_lies(served, LIES[lie], 200)
    with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: None}), connected() as server:
        for ask in asked:
            # A list of nothing is an answer: nothing is there.
            try:
                ask(server)
            except EnvironmentProblem as problem:
                assert problem.where == url
            else:
                assert lie in ("no object", "nothing", "an object of nothing", "null")


def test_a_block_that_is_not_there_is_refused_with_what_to_do_instead(
    served: Callable[[Callable[[BaseHTTPRequestHandler], None]], str],
) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from headway.flows.prefect_api.client import connected

    url = serve_lies(served, LIES["an object of nothing"], 404)
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: None}),
        connected() as server,
        pytest.raises(ConfigError, match="has no block 'slack-webhook/ops'") as refused,
    ):
        server.notification_block("slack-webhook/ops")
    assert "`notify: none`" in refused.value.advice


def test_a_server_whose_list_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.flows.prefect_api import client

    monkeypatch.setattr(client, "MAX_FOUND", 2_000)
    server = client.PrefectClient(Endless(), "here")  # type: ignore[arg-type]
    with pytest.raises(EnvironmentProblem, match="more than 2,000"):
        server.all("/flows/filter")


class Endless:
    def request(self, *_: object, **__: object) -> Any:
        return types.SimpleNamespace(content=b"x", json=lambda: [{"id": 1}] * 200)


@pytest.mark.process
def test_a_server_of_ones_own_that_ends_names_no_log_that_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_port: int, _password: str, *, is_alone: bool) -> ServerProcess:
        command = (sys.executable, "-c", "raise SystemExit('the last word')")
        return ServerProcess(name="Prefect", port=free_port(), option="", health="/", command=command, environment={})

    monkeypatch.setattr(ephemeral_server, "prefect_server", ends)
    with (
        pytest.raises(EnvironmentProblem, match="the last word") as problem,
        ephemeral_server.prefect_api(is_ephemeral=True),
    ):
        pass
    assert "prefect.log" not in str(problem.value) and problem.value.advice
