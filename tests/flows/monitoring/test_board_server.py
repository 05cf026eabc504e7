"""The board is served to who has the password, made once for many, and never from before the workspace went away."""

from __future__ import annotations

import base64
import http.client
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.cli.command_line import app
from headway.flows.config.profiles import PricesSpec
from headway.flows.monitoring import board_server
from headway.flows.monitoring.board_server import BoardServer, serve_board
from headway.flows.show.board import read_board
from headway.flows.show.board_page import render_html
from tests.flows.accounts.lives import Life

PASSWORD = "headway:secret"
Ask = Callable[..., tuple[int, str, http.client.HTTPMessage]]


@pytest.fixture
def life(tmp_path: Path) -> Life:
    life = Life(tmp_path)
    life.flow("one", time.time() - 60, time.time() - 50, has_run=False)
    return life


@pytest.fixture
def made() -> list[float]:
    """When a page was made."""
    return []


@pytest.fixture
def ask(life: Life, made: list[float]) -> Iterator[Ask]:
    def make() -> str:
        made.append(time.monotonic())
        return render_html(read_board(life.workspace.uri, 90, PricesSpec()))

    with BoardServer(("127.0.0.1", 0), make, PASSWORD) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()

        def asked(path: str = "/", password: str = PASSWORD) -> tuple[int, str, http.client.HTTPMessage]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
            try:
                key = base64.b64encode(password.encode()).decode()
                connection.request("GET", path, headers={"Authorization": f"Basic {key}"} if password else {})
                answer = connection.getresponse()
                return answer.status, answer.read().decode(), answer.headers
            finally:
                connection.close()

        yield asked
        server.shutdown()
        serving.join()


def test_the_page_is_the_one_that_is_written_and_loads_and_runs_nothing(ask: Ask) -> None:
    status, page, headers = ask()
    assert status == 200 and "Headway: board" in page and "no pipeline is failing" in page
    assert headers["Content-Type"] == "text/html; charset=utf-8" and headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "<script" not in page and ask("/other")[0] == 404


@pytest.mark.parametrize("password", ["", "headway:", "headway:secreT", "other:secret"])
def test_who_lacks_the_password_is_told_nothing_and_no_page_is_made(ask: Ask, made: list[float], password: str) -> None:
    status, text, headers = ask(password=password)
    assert status == 401 and "board" not in text and headers["WWW-Authenticate"] and made == []


def test_many_who_look_at_once_are_served_one_page(
    ask: Ask, made: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ask(), range(8)))
    assert {status for status, *_ in found} == {200} and len({page for _, page, _ in found}) == 1 and len(made) == 1
    monkeypatch.setattr(board_server, "FRESH_S", 0.0)
    assert ask()[0] == 200 and len(made) == 2


def test_a_workspace_that_went_away_is_told_and_no_page_of_before_is_served(
    ask: Ask, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask()[0] == 200
    monkeypatch.setattr(board_server, "FRESH_S", 0.0)
    shutil.rmtree(life.workspace.local_root)
    status, text, _ = ask()
    assert status == 503 and "there is no workspace here" in text


def test_what_cannot_be_served_is_refused_before_anybody_looks(life: Life, tmp_path: Path) -> None:
    uri, prices = life.workspace.uri, PricesSpec()
    for text in ("0.0.0.0:8765", ":8765", "127.0.0.1", "127.0.0.1:x"):
        with pytest.raises(ConfigError):
            serve_board(uri, 90, prices, text, None)
    with pytest.raises(EnvironmentProblem, match="there is no workspace here"):
        serve_board(str(tmp_path / "none"), 90, prices, "127.0.0.1:0", None)
    with pytest.raises(EnvironmentProblem, match="the password cannot be read"):
        serve_board(uri, 90, prices, "127.0.0.1:0", tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "why"),
    [(("--listen", "127.0.0.1:0", "--out", "x.html"), "choose one"), (("--password-file", "f"), "goes with --listen")],
)
def test_ways_that_exclude_each_other_are_refused(options: tuple[str, ...], why: str) -> None:
    done = CliRunner().invoke(app, ["board", *options])
    assert done.exit_code != 0 and why in " ".join(done.output.replace("│", " ").split())
