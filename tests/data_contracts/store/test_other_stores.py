"""Any store that fsspec knows is read as patiently as S3 is, and believed as little."""

from __future__ import annotations

import http.server
import io
import random
import threading
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from headway.data_contracts.store import object_store, published_files
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import StoredFile
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError
from headway.data_contracts.store.object_store import Patience
from headway.data_contracts.store.publication import Workspace
from tests.waiting import DEADLINE_S

DATA = random.Random(0).randbytes(2500)
FILE = StoredFile(path="shards/a", size_bytes=len(DATA), sha256=sha256_bytes(DATA))
PATIENCE = Patience(deadline_s=1.0, attempt_s=0.3, first_wait_s=0.01, longest_wait_s=0.02)


class _Handler(http.server.BaseHTTPRequestHandler):
    answers: ClassVar[list[int | str]] = []
    """For the next requests, one each: a status, or `hang`, `flip`, `cut`; then all is well."""
    num_requests: ClassVar[int] = 0
    released: ClassVar[threading.Event]

    def do_GET(self) -> None:
        _Handler.num_requests += 1
        answer = self.answers.pop(0) if self.answers else 200
        if answer == "hang":
            self.released.wait(DEADLINE_S)
            return
        body, status = DATA, 200
        if asked := self.headers.get("Range"):
            start, _, end = asked.removeprefix("bytes=").partition("-")
            body, status = DATA[int(start) : int(end) + 1], 206
        if answer == "flip":
            body = bytes([body[0] ^ 1]) + body[1:]
        elif answer == "cut":
            body = body[:-1]
        elif answer != 200:
            body, status = b"", int(answer)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    # A workspace of the web's is refused. What a real server answers badly is tried out on one all the same.
    monkeypatch.setattr(published_files, "NOT_WRITTEN", ())
    _Handler.answers.clear()
    _Handler.num_requests, _Handler.released = 0, threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as held:
        held.daemon_threads = True
        thread = threading.Thread(target=held.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield Workspace(f"http://127.0.0.1:{held.server_address[1]}/workspace", PATIENCE)
        _Handler.released.set()
        held.shutdown()
        thread.join(DEADLINE_S)


def read(workspace: Workspace) -> bytes:
    target = io.BytesIO()
    workspace.read_into(FILE, target)
    return target.getvalue()


def test_any_file_system_of_fsspec_will_do() -> None:
    workspace = Workspace(f"memory://{uuid.uuid4().hex}")
    workspace.fs.pipe_file(workspace.path(FILE.path), DATA)
    assert read(workspace) == DATA


def test_a_large_file_comes_part_by_part(server: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 1000)
    moved: list[int] = []
    target = io.BytesIO()
    server.read_into(FILE, target, lambda: moved.append(target.tell()))
    assert (target.getvalue(), moved) == (DATA, [1000, 2000, 2500])


@pytest.mark.parametrize("fault", [500, 503, 429, "hang", "flip", "cut"])
def test_what_fails_for_a_while_is_tried_again(server: Workspace, fault: int | str) -> None:
    _Handler.answers.extend([fault, fault])
    assert read(server) == DATA
    assert _Handler.num_requests == 3


def test_a_server_that_never_answers_is_given_up_by_name(server: Workspace) -> None:
    _Handler.answers.extend(["hang"] * 99)
    with pytest.raises(EnvironmentProblem, match=r"shards/a: reading failed . times in .* s \(last: \w*Timeout"):
        read(server)


@pytest.mark.parametrize(("fault", "message"), [("flip", "shards/a: sha256 is"), ("cut", "shards/a: has 2,499 bytes")])
def test_other_bytes_are_never_let_through(server: Workspace, fault: str, message: str) -> None:
    _Handler.answers.extend([fault] * 99)
    with pytest.raises(IntegrityError, match=message):
        read(server)
    assert _Handler.num_requests == 3


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (404, IntegrityError, "the file is gone"),
        (403, EnvironmentProblem, "these credentials may not do it"),
        (401, EnvironmentProblem, "credentials are missing, wrong or expired"),
    ],
)
def test_an_answer_is_not_argued_with(server: Workspace, status: int, error: type[Exception], message: str) -> None:
    _Handler.answers.extend([status] * 99)
    with pytest.raises(error, match=message):
        read(server)
    assert _Handler.num_requests == 1
