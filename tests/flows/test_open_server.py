"""A Prefect server that lets strangers in is known by asking as one; one that does not is not slandered."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from flows.open_server import FOREIGN, is_known, openness

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers as Prefect's does; returns its API's URL."""
    servers: list[http.server.HTTPServer] = []

    def serve(*, asks_for_password: bool, allows: str) -> str:
        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path == "/api/health" or "Authorization" in self.headers
                self.send_response(200 if is_known or not asks_for_password else 401)
                if allows and (allows == "*" or self.headers.get("Origin") == allows):
                    self.send_header("Access-Control-Allow-Origin", allows)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        servers.append(http.server.HTTPServer(("127.0.0.1", 0), Answers))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/api"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("asks_for_password", "allows", "told"),
    [
        (False, "*", ("password", "web page")),
        (False, "", ("password",)),
        (True, "*", ("web page",)),
        (True, FOREIGN, ("web page",)),
    ],
)
def test_what_is_open_is_said_with_how_to_close_it(
    serve: Serve, asks_for_password: bool, allows: str, told: tuple[str, ...]
) -> None:
    url = serve(asks_for_password=asks_for_password, allows=allows)
    what, _, advice = openness(url + "/").partition(" Start it ")
    assert what.startswith(f"the Prefect server {url} is open: ")
    assert [word for word in ("password", "web page") if word in what] == list(told)
    assert "PREFECT_SERVER_API_AUTH_STRING" in advice and "PREFECT_API_AUTH_STRING" in advice


def test_a_closed_one_and_one_that_is_not_there_are_not_called_open(serve: Serve) -> None:
    assert openness(serve(asks_for_password=True, allows="http://127.0.0.1:4200")) == ""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert openness(f"http://127.0.0.1:{taken.getsockname()[1]}/api") == ""
    assert openness("no url") == ""


def test_a_server_that_sends_elsewhere_takes_no_password_there() -> None:
    heard: list[str | None] = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Sends(Elsewhere):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{elsewhere.server_port}/")
            self.end_headers()

    with (
        http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere,
        http.server.HTTPServer(("127.0.0.1", 0), Sends) as sends,
    ):
        for server in (elsewhere, sends):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert is_known(f"http://127.0.0.1:{sends.server_port}/api", "headway:drawn")
        for server in (elsewhere, sends):
            server.shutdown()
    assert heard == []
