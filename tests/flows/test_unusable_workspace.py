"""A workspace that is not there, or that the system refuses: one clear error of exit 8, and nothing is made or lost.

Commands run in forks of this process, for root, who may read everything, has to become somebody else first, and as
somebody else no interpreter could be started where root's Python lies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from data_contracts.errors import EnvironmentProblem
from data_contracts.folder_store import FolderStore
from data_contracts.publication import Workspace
from flows.command_line import run
from flows.request import RetrainRequest
from flows.session import session
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE
from training.launch.run_lock import owning

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
READS = ("status", "status --json", "history", "shards", "logs", "stop", "release", "rollback", "verify", "export")
"""What says of an unwritable workspace what it would of any: here that there is no model, no run and no hold."""


class Said(NamedTuple):
    code: int
    text: str


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """All that the commands import late, which another user could not read."""
    import webbrowser  # noqa: F401

    import flows.champion_history
    import flows.champion_moves
    import flows.clean
    import flows.export
    import flows.logs
    import flows.plan
    import flows.preflight
    import flows.rehearse.rehearsing
    import flows.reproduce
    import flows.serve
    import flows.shards
    import flows.verify
    import flows.windows.admission  # noqa: F401
    from tasks import mlflow_store

    mlflow_store.load()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline, and a workspace in which a hold and a run are, that stands open for everybody."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith(("pytest", "popen-gw", "test_")):
            folder.chmod(0o755)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("one\n")
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    monkeypatch.setenv("HEADWAY_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("HOME", str(tmp_path))
    workspace = Workspace.create(str(tmp_path / "workspace"))
    workspace.publish("documents/run/one.json", b"{}")
    workspace.publish("refs/models/other/note", b"{}")
    return tmp_path


def in_a_fork(arguments: tuple[str, ...], become: Callable[[], object], said: Path) -> Said:
    said.touch()
    if (pid := os.fork()) == 0:
        _be_the_command(arguments, become, said)
    _, status = os.waitpid(pid, 0)
    return Said(os.waitstatus_to_exitcode(status), said.read_text())


def _be_the_command(arguments: tuple[str, ...], become: Callable[[], object], said: Path) -> NoReturn:
    code = 99
    try:
        stream = said.open("w", buffering=1)
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
    return sorted((str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*") if path.name != "said")


GONE = "there is no workspace here. Bring it back if it was moved or unmounted"
REFUSED = {
    "of somebody else": "it cannot be used (Permission denied). Run as who owns it (root)",
    "in a closed folder": "it cannot be used (Permission denied). Run as who owns it",
    "a file": "it cannot be used (Not a directory). Put right what lies at that path",
    "a circle of links": "it cannot be used (Too many levels of symbolic links). Put right what lies at that path",
}


@pytest.mark.parametrize("how", [*REFUSED, "missing", "an empty mount point"])
@pytest.mark.parametrize("command", LOOKS)
def test_what_looks_into_a_workspace_that_is_gone_or_refused_says_so_and_makes_nothing(
    project: Path, command: str, how: str
) -> None:
    become = spoiled(project / "workspace", how)
    before = names(project)
    done = in_a_fork(LOOKS[command], become, project / "said")
    assert done.code == EnvironmentProblem.exit_code, done.text
    (line,) = done.text.splitlines()
    assert REFUSED.get(how, GONE) in line and "workspace: " in line
    assert names(project) == before


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize("command", MAKES)
def test_what_would_make_a_workspace_does_not_in_the_place_of_one_that_is_refused(
    project: Path, command: str, how: str
) -> None:
    become = spoiled(project / "workspace", how)
    before = names(project)
    done = in_a_fork(MAKES[command], become, project / "said")
    assert done.code == EnvironmentProblem.exit_code, done.text
    (line,) = done.text.splitlines()
    assert REFUSED[how] in line
    assert names(project) == before


def test_what_makes_a_workspace_makes_one_where_none_is(project: Path) -> None:
    become = spoiled(project / "workspace", "missing")
    assert in_a_fork(MAKES["hold"], become, project / "said").code == 0
    assert in_a_fork(("status",), become, project / "said").code == 0


@pytest.mark.parametrize("command", [*LOOKS, *MAKES])
def test_a_read_only_workspace_can_be_read_and_what_would_write_says_in_a_line_that_it_cannot(
    project: Path, command: str
) -> None:
    become = spoiled(project / "workspace", "read-only")
    arguments = (LOOKS | MAKES)[command]
    plain = in_a_fork(arguments, nothing, project / "said") if command in READS else None
    before = names(project)
    done = in_a_fork(arguments, become, project / "said")
    assert names(project) == before
    assert "defect" not in done.text
    if plain is not None:
        assert done == plain
    if command in MAKES:
        assert done.code == EnvironmentProblem.exit_code and "Read-only file system" in done.text
        assert len(done.text.splitlines()) == 1


@pytest.mark.parametrize("part", ["refs", "documents", "runs", "refs/models"])
@pytest.mark.parametrize("command", ["status", "logs", "clean", "clean --apply"])
def test_a_part_that_may_not_be_read_is_named_and_never_taken_for_empty(project: Path, command: str, part: str) -> None:
    needs_root()
    workspace = project / "workspace"
    (workspace / "runs").mkdir()
    for path in (workspace, *workspace.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (workspace / part).chmod(0)
    before = names(project)
    done = in_a_fork(LOOKS[command], somebody_else, project / "said")
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
    done = in_a_fork(("hold", "tiny.yaml", "--why", "x", "--workspace", "workspace"), nothing, project / "said")
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
        done = in_a_fork(("stop", RUN, "--why", "asked"), somebody_else, project / "said")
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
    said = capfd.readouterr().err
    if how == "read-only":
        assert "it is " in said, said
        card = Path(said.rpartition("it is ")[2].splitlines()[0].strip())
        page = card.read_text()
        card.unlink()
        assert "Read-only file system" in page
    else:
        assert [*workspace.glob("ledger/*/failure.md")], said
        (card,) = workspace.glob("ledger/*/failure.md")
        assert "Permission denied" in card.read_text()
