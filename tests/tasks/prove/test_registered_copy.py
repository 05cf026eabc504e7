"""MLflow's copy of a version on servers: proved, or named as altered, or one line within a bounded time."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from headway.data_contracts.store.errors import RegistryError
from headway.tasks.prove import registered_copy
from headway.tasks.registry import mlflow_store
from headway.tasks.registry.mlflow_aliases import sync_mlflow_aliases
from headway.tasks.registry.model_versions import ModelVersions
from headway.training.launch.base.ports import free_port
from tests.e2e.project import let_go_of_databases
from tests.tasks.conftest import MODEL, make_context
from tests.tasks.forge import VERSIONS, Forge, Verify, broken
from tests.waiting import wait_until

pytestmark = pytest.mark.process
SLOWLY_S = 90
"""A child's imports on a busy machine are the most of it."""
PATIENCE_S = 30.0
"""A child's imports on a busy machine, and then a server that never answers."""


@dataclass
class Server:
    """A tracking server that hands its artifacts over itself."""

    url: str
    files: Path
    process: subprocess.Popen[bytes]

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


@contextmanager
def serving(folder: Path, tables: Path) -> Iterator[Server]:
    port, files = free_port(), folder / "files"
    files.mkdir(parents=True)
    shutil.copy(tables, folder / "server.db")
    command = (
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", files.as_uri()),
    )
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True)
    server = Server(f"http://127.0.0.1:{port}", files, process)

    def is_up() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(is_up, every_s=0.2)
        yield server
    finally:
        server.signal(signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), mlflow_tables) as made:
        mlflow_store.connect(made.url).create_experiment(
            MODEL
        )  # as training does, which leaves its place to the server
        yield made


@pytest.fixture
def registered(forge: Forge, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The champion is on the server too, was registered there last, and who verifies names it; its files there."""
    context = make_context(forge.workspace, tmp_path / "flow")
    versions = ModelVersions(context, lambda: mlflow_store.connect(server.url), MODEL, server.url)
    versions.ensure(forge.last.link)
    sync_mlflow_aliases(versions, take_over=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    copy = next(server.files.rglob("MLmodel")).parent
    before = tmp_path / "before"
    shutil.copytree(copy, before)
    yield copy
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(before, copy)


def no_child_is_left() -> bool:
    alive = (each for each in psutil.Process().children(True) if each.status() != psutil.STATUS_ZOMBIE)
    return not any("headway.tasks.prove.registered_copy" in " ".join(each.cmdline()) for each in alive)


def refused(verify: Verify) -> str:
    """The one line in which verify ends where a server does not answer; exit code 9."""
    with pytest.raises(RegistryError) as caught:
        verify(within_s=SLOWLY_S)
    line = str(caught.value)
    assert "\n" not in line and "Verify again when it answers" in line and len(line) < 900, line
    assert no_child_is_left()
    return line


@pytest.mark.long
def test_a_copy_on_a_server_is_proved(registered: Path, verify: Verify) -> None:
    code, message = verify(within_s=SLOWLY_S)
    (link,) = [link for link in message["links"] if link["what"].startswith("MLflow")]
    assert (code, link["status"], link["detail"]) == (0, "proved", "3 files as registered")
    assert no_child_is_left()


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


ALTERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "all its files gone": (shutil.rmtree, "is gone"),
    "a file gone": (lambda copy: (copy / "input_example.json").unlink(), "copy of input_example.json is gone"),
    "a bit": (lambda copy: flip(copy / "artifacts" / "model.pt2"), "copy of artifacts/model.pt2 is altered"),
    "a file longer": (lambda copy: (copy / "MLmodel").open("ab").write(b"#"), "copy of MLmodel is gone or altered"),
    "a file more": (lambda copy: (copy / "artifacts" / "more.py").touch(), "holds artifacts/more.py"),
    "a folder more": (lambda copy: shutil.copytree(copy / "artifacts", copy / "code"), "holds code"),
}


AT_LENGTH = {"a file gone", "a file more"}
"""Found where the folder more and the file of another length are."""


@pytest.mark.parametrize(
    "change", [pytest.param(each, marks=pytest.mark.soak) if each in AT_LENGTH else each for each in ALTERED]
)
def test_what_was_altered_on_a_server_is_named(registered: Path, verify: Verify, change: str) -> None:
    apply, named = ALTERED[change]
    apply(registered)
    assert named in broken(verify, within_s=SLOWLY_S)


def test_a_server_that_accepts_and_never_answers_ends_in_a_line_at_the_deadline(
    registered: Path, server: Server, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_copy, "ANSWERS_WITHIN_S", 5.0)
    server.signal(signal.SIGSTOP)
    try:
        assert "no answer within 5 s" in refused(verify)
    finally:
        server.signal(signal.SIGCONT)


def test_a_server_that_has_stopped_ends_in_a_line(
    registered: Path, forge: Forge, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    forge.detail(VERSIONS, 4, tracking_uri=gone)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", gone)
    line = refused(verify)
    assert line.startswith(f"{gone}: MLflow does not hand over version 1 of 'tiny': MLflow refuses")


class Silent(http.server.BaseHTTPRequestHandler):
    """A store of files that lists them, and gives of each what a subclass gives."""

    listing: tuple[dict[str, object], ...] = ()

    def do_GET(self) -> None:
        if "?path=" not in self.path:
            self.give()
            return
        folder = self.path.rpartition("?path=x")[2].removeprefix("%2Fmodel").removeprefix("%2F")
        files = [each for each in self.listing if str(each["path"]).count("/") == 0] if not folder else []
        data = json.dumps({"files": files}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def give(self) -> None:
        self.server.ended.wait()  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass


class Endless(Silent):
    """Its files have no end."""

    def give(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.sent_bytes = 0
        while True:
            self.wfile.write(b"x" * 100_000)


@pytest.fixture
def elsewhere(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[type[Silent]], None]]:
    """The champion in a database of the team's, whose files lie on a server of this kind."""
    servers = []

    def made(kind: type[Silent]) -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
        server.ended = threading.Event()  # type: ignore[attr-defined]
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"sqlite:///{tmp_path}/team.db"
        let_go_of_databases()
        place = f"http://127.0.0.1:{server.server_port}/api/2.0/mlflow-artifacts/artifacts/x"
        forge.sql(f"UPDATE runs SET artifact_uri = '{place}'")
        shutil.copy(forge.root / "mlflow.db", tmp_path / "team.db")
        forge.detail(VERSIONS, 3, tracking_uri=uri)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    yield made
    for server in servers:
        server.ended.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()


def listing(forge: Forge) -> tuple[dict[str, object], ...]:
    """As a store says it that knows no sizes."""
    names = ("/".join(file.path.split("/")[3:]) for file in forge.last.artifacts)
    return tuple({"path": name, "is_dir": False} for name in names)


def test_a_store_of_files_that_never_answers_is_named_at_the_deadline(
    forge: Forge, elsewhere: Callable[[type[Silent]], None], verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_copy, "ANSWERS_WITHIN_S", PATIENCE_S)

    class Mute(Silent):
        def do_GET(self) -> None:
            self.give()

    elsewhere(Mute)
    line = refused(verify)
    assert "MLflow's store of files, http://127.0.0.1" in line and "no answer within 30 s" in line


def test_a_file_without_end_is_altered_and_fills_no_disk(
    forge: Forge, elsewhere: Callable[[type[Silent]], None], verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endless, "listing", listing(forge))
    elsewhere(Endless)
    assert "its copy of" in broken(verify, within_s=SLOWLY_S)


def test_a_server_that_no_pipeline_names_hears_nothing_of_verify(forge: Forge, verify: Verify) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        forge.detail(VERSIONS, 3, tracking_uri=f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert "is not asked" in broken(verify)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_a_store_that_a_pipeline_of_the_project_names_is_asked(
    forge: Forge, verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/gone.db"
    folder = tmp_path / "deployments"
    folder.mkdir()
    forge.detail(VERSIONS, 3, tracking_uri=uri)
    monkeypatch.setenv("HEADWAY_PROJECT", str(tmp_path))
    assert "is not asked" in broken(verify)
    root = Path(__file__).parents[3]
    source = (
        (root / "deployments" / "stdlib-lm.yaml").read_text().replace("../data_contracts", f"{root}/data_contracts")
    )
    (folder / "tiny.yaml").write_text(source.replace("model: stdlib-lm", f"model: {MODEL}\n  tracking_uri: {uri}"))
    assert "database is gone" in broken(verify)
