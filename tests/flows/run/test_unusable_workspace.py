"""A workspace that is not there, or that the system refuses: one clear error of exit 8, and nothing is made or lost.

Commands run in forks of this process, for root, who may read everything, has to become somebody else first, and as
somebody else no interpreter could be started where root's Python lies.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import itertools
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from s3fs import S3FileSystem

from headway.data_contracts.store import object_store
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.folder_store import FolderStore
from headway.data_contracts.store.publication import Workspace
from headway.flows.cli.command_line import run
from headway.flows.config.request import RetrainRequest
from headway.flows.run.session import session
from headway.training.launch.base.ports import free_port
from headway.training.launch.base.run_lock import owning

pytestmark = pytest.mark.process

NOBODY = 65534
RUN = "0123456789abcdef"
LOOKS: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "status --json": ("status", "--json"),
    "logs": ("logs",),
    "history": ("history", "tiny"),
    "verify": ("verify", "models:/tiny@champion"),
    "clean": ("clean",),
    "clean --apply": ("clean", "--apply"),
    "stop": ("stop", RUN),
    "profile": ("profile", RUN),
    "shards": ("shards", "tiny.yaml"),
    "resume": ("resume", RUN, "--pipeline", "tiny.yaml"),
    "promote": ("promote", "tiny", "1", "--why", "asked"),
    "refuse": ("refuse", "tiny", "1", "--why", "asked"),
    "retire": ("retire", "tiny", "1", "--why", "asked"),
    "rollback": ("rollback", "tiny", "--why", "asked"),
    "release": ("release", "tiny.yaml", "--why", "asked"),
    "reproduce": ("reproduce", "models:/tiny@champion"),
    "export": ("export", "models:/tiny@champion", "--out", "out"),
    "predict": ("predict", "models:/tiny@champion", "rows.csv", "--out", "out.csv"),
}
"""What needs a workspace that is there."""
MAKES: dict[str, tuple[str, ...]] = {
    "plan": ("plan", "tiny.yaml"),
    "retrain": ("retrain", "tiny.yaml"),
    "hold": ("hold", "tiny.yaml", "--why", "asked"),
    "ui": ("ui",),
    "rehearse": ("rehearse", "tiny.yaml"),
}
"""What makes one where none is."""
READS = (
    "status",
    "status --json",
    "history",
    "shards",
    "logs",
    "stop",
    "release",
    "rollback",
    "verify",
    "export",
    "predict",
)
"""What says of an unwritable workspace what it would of any: here that there is no model, no run and no hold."""


class Said(NamedTuple):
    code: int
    text: str


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """All that the commands import late, which another user could not read."""
    import webbrowser  # noqa: F401

    import headway.flows.act.champion_moves
    import headway.flows.act.clean
    import headway.flows.act.export
    import headway.flows.act.reproduce
    import headway.flows.config.preflight
    import headway.flows.prefect_api.serve
    import headway.flows.rehearse.rehearsing
    import headway.flows.show.champion_history
    import headway.flows.show.logs
    import headway.flows.show.plan
    import headway.flows.show.shards
    import headway.flows.show.verify
    import headway.flows.windows.admission  # noqa: F401
    from headway.tasks.registry import mlflow_store

    mlflow_store.quiet_mlflow()
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    for name in ("utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252", "cp1250", "cp1251", "shift_jis", "gb18030"):
        codecs.lookup(name)


@pytest.fixture
def project(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace in which a hold and a run are, that stands open for everybody."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith(("pytest", "popen-gw", "test_")):
            folder.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    workspace = Workspace.create(str(tmp_path / "workspace"))
    workspace.publish("documents/run/one.json", b"{}")
    workspace.publish("refs/models/other/note", b"{}")
    return project


def in_a_fork(arguments: tuple[str, ...], become: Callable[[], object], message: Path) -> Said:
    message.touch()
    if (pid := os.fork()) == 0:
        _be_the_command(arguments, become, message)
    _, status = os.waitpid(pid, 0)
    return Said(os.waitstatus_to_exitcode(status), message.read_text())


def _be_the_command(arguments: tuple[str, ...], become: Callable[[], object], message: Path) -> NoReturn:
    code = 99
    try:
        stream = message.open("w", buffering=1)
        sys.stdout = sys.stderr = stream
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        become()
        sys.argv = ["headway", *arguments]
        code = run()
        stream.flush()
    finally:
        os._exit(code)


def somebody_else() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def mounted_read_only(place: Path) -> Callable[[], None]:
    """For this process alone, in a namespace of its own."""

    def mount() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        new_mounts, private, recursive, bind, remount, read_only = 0x20000, 1 << 18, 1 << 14, 1 << 12, 1 << 5, 1
        where = os.fsencode(place)
        for done in (
            libc.unshare(new_mounts),
            libc.mount(b"none", b"/", None, recursive | private, None),
            libc.mount(where, where, None, bind, None),
            libc.mount(b"none", where, None, bind | remount | read_only, None),
        ):
            assert done == 0, os.strerror(ctypes.get_errno())

    return mount


def nothing() -> None:
    pass


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user, or mount")


def spoiled(workspace: Path, how: str) -> Callable[[], object]:
    """Brings the workspace into a state, and returns what the command's process does first."""
    if how in ("of somebody else", "in a closed folder", "read-only"):
        needs_root()
    if how == "of somebody else":
        workspace.chmod(0o700)
        return somebody_else
    if how == "in a closed folder":
        closed = workspace.parent / "closed"
        closed.mkdir(mode=0o700)
        workspace.rename(closed / "workspace")
        workspace.symlink_to(closed / "workspace")
        return somebody_else
    if how == "read-only":
        return mounted_read_only(workspace)
    workspace.rename(workspace.with_name("moved"))
    if how == "an empty mount point":
        workspace.mkdir()
    elif how == "a file":
        workspace.write_bytes(b"")
    elif how == "a circle of links":
        workspace.symlink_to(workspace)
    return nothing


def names(folder: Path) -> list[tuple[str, int]]:
    """All below a folder, and when each was changed."""
    return sorted((str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*") if path.name != "message")


GONE = "there is no workspace here. Bring it back if it was moved or unmounted"
REFUSED = {
    "of somebody else": "it cannot be used (Permission denied). Run as who owns it (root)",
    "in a closed folder": "it cannot be used (Permission denied). Run as who owns it",
    "a file": "it cannot be used (Not a directory). Put right what lies at that path",
    "a circle of links": "it cannot be used (Too many levels of symbolic links). Put right what lies at that path",
}


def some_pairs(commands: Iterable[str], hows: Sequence[str]) -> Iterator[object]:
    """Every command with one of the ways, and every way with some of the commands; the others are for `make soak`.

    One place tells of the ways, and each command asks it.
    """
    for (number, command), (other, how) in itertools.product(enumerate(commands), enumerate(hows)):
        marks = () if (number + other) % len(hows) == 0 else (pytest.mark.soak,)
        yield pytest.param(command, how, marks=marks)


LOOKED = some_pairs(LOOKS, (*REFUSED, "missing", "an empty mount point"))
MADE = some_pairs(MAKES, REFUSED)


@pytest.mark.parametrize(("command", "how"), [*LOOKED, *MADE])
def test_a_workspace_that_is_gone_or_refused_is_said_to_be_and_nothing_is_made_in_its_place(
    project: Path, command: str, how: str
) -> None:
    become = spoiled(project / "workspace", how)
    before = names(project)
    done = in_a_fork((LOOKS | MAKES)[command], become, project / "message")
    assert done.code == EnvironmentProblem.exit_code, done.text
    (line,) = done.text.splitlines()
    assert REFUSED.get(how, GONE) in line and "workspace: " in line
    assert names(project) == before


def test_what_makes_a_workspace_makes_one_where_none_is(project: Path) -> None:
    become = spoiled(project / "workspace", "missing")
    assert in_a_fork(MAKES["hold"], become, project / "message").code == 0
    assert in_a_fork(("status",), become, project / "message").code == 0


@pytest.mark.parametrize("command", [*LOOKS, *MAKES])
def test_a_read_only_workspace_can_be_read_and_what_would_write_says_in_a_line_that_it_cannot(
    project: Path, command: str
) -> None:
    become = spoiled(project / "workspace", "read-only")
    arguments = (LOOKS | MAKES)[command]
    plain = in_a_fork(arguments, nothing, project / "message") if command in READS else None
    before = names(project)
    done = in_a_fork(arguments, become, project / "message")
    assert names(project) == before
    assert "defect" not in done.text
    if plain is not None:
        assert done == plain
    if command in MAKES:
        assert done.code == EnvironmentProblem.exit_code and "Read-only file system" in done.text
        assert len(done.text.splitlines()) == 1


PARTS = ("refs", "documents", "runs", "refs/models")
CHECKPOINTS, ATTEMPTS = f"runs/{RUN}/checkpoints", f"runs/{RUN}/attempts"
DEEPER = (
    ("status", CHECKPOINTS),
    ("status", ATTEMPTS),
    ("status", "ledger"),
    ("logs", ATTEMPTS),
    ("clean", CHECKPOINTS),
)


@pytest.mark.parametrize(
    ("command", "part"),
    [*((command, part) for command in ("status", "logs", "clean", "clean --apply") for part in PARTS), *DEEPER],
)
def test_a_part_that_may_not_be_read_is_named_and_never_taken_for_empty(project: Path, command: str, part: str) -> None:
    needs_root()
    workspace = project / "workspace"
    for folder in ("ledger", CHECKPOINTS, ATTEMPTS):
        (workspace / folder).mkdir(parents=True)
    for path in (workspace, *workspace.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (workspace / part).chmod(0)
    before = names(project)
    done = in_a_fork(LOOKS[command], somebody_else, project / "message")
    if (command, part) in (("status", "documents"), ("logs", "documents")):
        assert "defect" not in done.text  # what is below is asked for by name alone
        return
    assert done.code == EnvironmentProblem.exit_code, done.text
    (line,) = done.text.splitlines()
    assert "Permission denied" in line and part in line
    assert names(project) == before


def test_a_folder_that_cannot_be_listed_is_no_empty_one(project: Path) -> None:
    needs_root()
    (project / "workspace" / "documents" / "run").chmod(0)
    os.chown(project / "workspace" / "documents" / "run", NOBODY, NOBODY)
    store = FolderStore(project / "workspace")
    if (pid := os.fork()) == 0:
        code = 1
        try:
            (project / "workspace").chmod(0o755)
            somebody_else()
            list(store.files("documents"))
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(store.files("no/such/folder")) == []


def test_another_usual_workspace_that_is_refused_hinders_no_command(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "file").write_bytes(b"")
    monkeypatch.setenv("HEADWAY_WORKSPACE", str(project / "file"))
    done = in_a_fork(("hold", "tiny.yaml", "--why", "x", "--workspace", "workspace"), nothing, project / "message")
    assert done.code == 0 and "--workspace workspace" in done.text


def test_a_stop_of_a_run_whose_folder_may_not_be_written_is_refused_in_a_line(project: Path) -> None:
    needs_root()
    folder = project / "workspace" / "runs" / RUN
    folder.mkdir(parents=True)
    (project / "workspace").chmod(0o755)
    for path in (project / "workspace").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with owning(folder):
        (folder / "owner.lock").chmod(0o666)
        done = in_a_fork(("stop", RUN, "--why", "asked"), somebody_else, project / "message")
    assert done.code == EnvironmentProblem.exit_code, done.text
    (line,) = done.text.splitlines()
    assert "Permission denied" in line and "defect" not in line


@pytest.mark.parametrize("how", ["read-only", "part"])
def test_a_retrain_whose_workspace_is_refused_meanwhile_fails_for_that_and_keeps_its_card(
    project: Path, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    needs_root()
    workspace = project / "workspace"
    request = RetrainRequest(pipeline=str(project / "tiny.yaml"), workspace=str(workspace))

    def lose(run: Any) -> None:
        if how == "read-only":
            mounted_read_only(workspace)()
            run.workspace.require_there()
            return
        for path in (project, workspace, *workspace.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        (workspace / "documents").chmod(0)
        somebody_else()
        run.workspace.names("documents/run")

    if (pid := os.fork()) == 0:
        code = 99
        try:
            with session(request) as (context, _):
                lose(context)
        except EnvironmentProblem as told:
            named = "Read-only file system" if how == "read-only" else "Permission denied"
            code = 8 if named in str(told) else 98
            with contextlib.suppress(OSError):
                print(*getattr(told, "__notes__", ()), file=sys.stderr)
                sys.stdout.flush(), sys.stderr.flush()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 8
    message = capfd.readouterr().err
    if how == "read-only":
        assert "it is " in message, message
        card = Path(message.rpartition("it is ")[2].splitlines()[0].strip())
        page = card.read_text()
        card.unlink()
        assert "Read-only file system" in page
    else:
        assert [*workspace.glob("ledger/*/failure.md")], message
        (card,) = workspace.glob("ledger/*/failure.md")
        assert "Permission denied" in card.read_text()


def test_a_store_that_does_not_answer_is_told_in_one_line_within_half_a_minute(
    project: Path, headway: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert object_store.FIRST_ANSWER_WITHIN_S <= 30
    monkeypatch.setattr(object_store, "answers", object_store._Answers())
    monkeypatch.setattr(object_store, "FIRST_ANSWER_WITHIN_S", 2.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    for look in (("status",), ("shards", "tiny.yaml"), ("retrain", "tiny.yaml")):
        S3FileSystem.clear_instance_cache()
        started_s = time.monotonic()
        code, message = headway(*look, "-w", f"s3://bucket/{uuid.uuid4().hex}")
        assert code == 8 and message.count("\n") == 1 and "does not answer" in message, (look, message)
        assert time.monotonic() - started_s < 30, look
