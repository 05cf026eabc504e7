from __future__ import annotations

import http.server
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from data_contracts.digests import sha256_bytes
from data_contracts.documents import StoredFile
from data_contracts.errors import EnvironmentProblem, IntegrityError
from data_contracts.publication import Workspace
from training.data import remote_read
from training.data.remote_read import Patience, read_verified

DATA = random.Random(0).randbytes(2500)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_read, "PIECE_BYTES", 1000)


def stored(data: bytes = DATA) -> StoredFile:
    return StoredFile(path="shards/a", size_bytes=len(data), sha256=sha256_bytes(data))


def fetch(
    workspace: Workspace, folder: Path, file: StoredFile | None = None, **patience: Any
) -> tuple[bytes, int, list]:
    """What was read, in how many pieces, and the waits in between."""
    waits: list[float] = []
    pieces: list[int] = []
    target = folder / "target"
    target.write_bytes(b"\0" * (file or stored()).size_bytes)
    held = Patience(sleep=waits.append, **patience)
    read_verified(workspace, file or stored(), target, held, lambda: pieces.append(1))
    return target.read_bytes(), len(pieces), waits


@pytest.fixture
def remote(store: Any, tmp_path: Path) -> Workspace:
    (tmp_path / "remote/shards").mkdir(parents=True)
    (tmp_path / "remote/shards/a").write_bytes(DATA)
    return Workspace(f"faulty://{tmp_path}/remote")


def test_a_file_comes_piece_by_piece(remote: Workspace, tmp_path: Path) -> None:
    assert fetch(remote, tmp_path) == (DATA, 3, [])


def test_any_file_system_of_fsspec_will_do(tmp_path: Path) -> None:
    workspace = Workspace("memory://cache-test")
    workspace.fs.pipe_file(workspace.path("shards/a"), DATA)
    assert fetch(workspace, tmp_path) == (DATA, 3, [])


def test_a_storage_that_fails_is_asked_again_after_longer_waits(remote: Workspace, tmp_path: Path, store: Any) -> None:
    store.FaultyFileSystem.faults.extend(
        [store.raising(OSError("500")), store.raising(TimeoutError()), store.shortened]
    )
    assert fetch(remote, tmp_path) == (DATA, 3, [0.5, 1.0, 2.0])


def test_a_storage_that_keeps_failing_is_named_with_its_last_words(
    remote: Workspace, tmp_path: Path, store: Any
) -> None:
    store.FaultyFileSystem.faults.extend([store.raising(OSError("503 slow down"))] * 99)
    with pytest.raises(
        EnvironmentProblem, match=r"faulty://.*/shards/a: the storage failed 3 times; the last time: OSError: 503 slow"
    ):
        fetch(remote, tmp_path, num_tries=3)
    assert store.FaultyFileSystem.num_reads == 3


def test_other_bytes_are_read_again_and_never_let_through(remote: Workspace, tmp_path: Path, store: Any) -> None:
    store.FaultyFileSystem.faults.extend([store.flipped])
    assert fetch(remote, tmp_path)[0] == DATA
    store.FaultyFileSystem.faults.extend([store.flipped] * 99)
    with pytest.raises(IntegrityError, match=r"shards/a: the storage gave other bytes than its manifest says, 2 times"):
        fetch(remote, tmp_path, num_tries=2)


def test_a_file_that_is_gone_is_not_asked_for_again(remote: Workspace, tmp_path: Path, store: Any) -> None:
    (tmp_path / "remote/shards/a").unlink()
    with pytest.raises(IntegrityError, match="shards/a: the shard is gone"):
        fetch(remote, tmp_path)
    assert store.FaultyFileSystem.num_reads == 1


def test_a_refusal_is_not_argued_with(remote: Workspace, tmp_path: Path, store: Any) -> None:
    store.FaultyFileSystem.faults.extend([store.raising(PermissionError("403"))])
    with pytest.raises(EnvironmentProblem, match=r"reading is refused \(403\).*credentials"):
        fetch(remote, tmp_path)
    assert store.FaultyFileSystem.num_reads == 1


class _Handler(http.server.BaseHTTPRequestHandler):
    answers: ClassVar[list[int | str]] = []
    """Statuses for the next requests; `hang` never answers."""
    released: ClassVar[threading.Event]

    def do_GET(self) -> None:
        answer = self.answers.pop(0) if self.answers else 206
        if answer == "hang":
            self.released.wait(60)
            return
        start, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
        body = DATA[int(start) : int(end) + 1] if answer == 206 else b""
        self.send_response(int(answer))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    _Handler.answers.clear()
    _Handler.released = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as held:
        held.daemon_threads = True
        thread = threading.Thread(target=held.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{held.server_address[1]}/workspace"
        _Handler.released.set()
        held.shutdown()
        thread.join(10)


def test_a_server_with_errors_of_its_own_is_asked_again(server: str, tmp_path: Path) -> None:
    _Handler.answers.extend([500, 503])
    assert fetch(Workspace(server), tmp_path) == (DATA, 3, [0.5, 1.0])


def test_a_server_that_never_answers_is_given_up(server: str, tmp_path: Path) -> None:
    _Handler.answers.extend(["hang"])
    assert fetch(Workspace(server), tmp_path, read_s=0.3) == (DATA, 3, [0.5])
    _Handler.answers.extend(["hang"] * 9)
    with pytest.raises(EnvironmentProblem, match=r"the storage failed 2 times; the last time: \w*Timeout"):
        fetch(Workspace(server), tmp_path, read_s=0.2, num_tries=2)


def test_a_server_without_the_file_says_so_at_once(server: str, tmp_path: Path) -> None:
    _Handler.answers.extend([404])
    with pytest.raises(IntegrityError, match="the shard is gone"):
        fetch(Workspace(server), tmp_path)
