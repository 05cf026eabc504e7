"""The smallest project that flows read, in a folder of its own that the test stands in."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.flows.cli.command_line import run
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE
from tests.warm_programs import forked_helpers


@pytest.fixture(autouse=True)
def helpers_are_forks() -> Iterator[None]:
    """Of Headway's helpers these tests ask what they answer; how they start is asked in their own rooms."""
    with forked_helpers():
        yield


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`tiny.yaml`, its contract and one text; the workspace is to be `workspace` beside them."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("one\n")
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    monkeypatch.setenv("HEADWAY_WORKSPACE", str(tmp_path / "workspace"))
    return tmp_path


@pytest.fixture
def headway(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The command in this process: its exit code, and what it said."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["headway", *arguments])
        capsys.readouterr()
        code = run()
        message = capsys.readouterr()
        return code, message.out + message.err

    return call


Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@pytest.fixture
def served() -> Iterator[Callable[[Answer], str]]:
    """Starts a server that answers every GET and POST so; returns its URL."""
    servers: list[http.server.HTTPServer] = []

    def served(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                answer(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        servers.append(http.server.HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield served
    for server in servers:
        server.shutdown()
        server.server_close()
