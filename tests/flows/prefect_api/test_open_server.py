"""A Prefect server that lets strangers in is known by asking as one; one that does not is not slandered."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest

from headway.flows.prefect_api.server_auth import FOREIGN, is_known, openness

Serve = Callable[..., str]
Served = Callable[[Callable[[BaseHTTPRequestHandler], None]], str]


@pytest.fixture
def serve(served: Served) -> Serve:
    """Starts a server that answers as Prefect's does; returns its API's URL."""

    def serve(*, asks_for_password: bool, allows: str) -> str:
        def answer(requested: BaseHTTPRequestHandler) -> None:
            is_known = requested.path == "/api/health" or "Authorization" in requested.headers
            requested.send_response(200 if is_known or not asks_for_password else 401)
            if allows and (allows == "*" or requested.headers.get("Origin") == allows):
                requested.send_header("Access-Control-Allow-Origin", allows)
            requested.end_headers()

        return f"{served(answer)}/api"

    return serve


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


def test_a_server_that_sends_elsewhere_takes_no_password_there(served: Served) -> None:
    heard: list[str | None] = []

    def on_event(requested: BaseHTTPRequestHandler) -> None:
        heard.append(requested.headers.get("Authorization"))
        requested.send_response(200)
        requested.end_headers()

    elsewhere = served(on_event)

    def send(requested: BaseHTTPRequestHandler) -> None:
        requested.send_response(302)
        requested.send_header("Location", f"{elsewhere}/")
        requested.end_headers()

    assert is_known(f"{served(send)}/api", "headway:drawn")
    assert heard == []
