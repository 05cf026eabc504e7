"""What a killed process left goes with the next one that looks, and nothing that a living one uses does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store import leftovers
from headway.data_contracts.store.leftovers import at_work_in, claimed, discard_if_abandoned, scratch_folder
from headway.data_contracts.store.publication import Workspace

AT_WORK = """
import sys, time
from pathlib import Path
from headway.data_contracts.store.leftovers import at_work_in, scratch_folder
from headway.data_contracts.store.publication import Workspace
root = Path(sys.argv[1])
with at_work_in(root, root / "sessions"), scratch_folder("headway-") as scratch:
    (scratch / "rows.parquet").write_bytes(bytes(1000))
    with Workspace(str(root)).staged("deep/in/model.bin") as staging:
        staging.write_bytes(bytes(1000))
        print("writing", flush=True)
        time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that nobody else uses."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def at_work(root: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a process that writes into the workspace and has a scratch folder."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", AT_WORK, str(root)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None and started[-1].stdout.readline() == "writing\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def look_for_leftovers(root: Path) -> None:
    with at_work_in(root, root / "sessions"), scratch_folder("headway-"):
        pass


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.process
def test_what_a_killed_process_left_is_gone_when_the_next_one_comes(root: Path, temporary: Path, at_work) -> None:
    process = at_work()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(files(root)) == 2 and len(files(temporary)) == 2
    look_for_leftovers(root)
    assert files(root) == [] and list(temporary.iterdir()) == []


@pytest.mark.process
def test_a_living_process_keeps_what_it_uses_whoever_else_was_killed(root: Path, temporary: Path, at_work) -> None:
    killed, living = at_work(), at_work()
    killed.kill()
    killed.wait()
    before = len(files(root)), len(files(temporary))
    assert before == (4, 4)
    look_for_leftovers(root)
    look_for_leftovers(root)
    assert len(files(temporary)) == 2
    assert len(list(root.rglob("*.partial"))) == 1, "the living one's"
    living.kill()
    living.wait()
    look_for_leftovers(root)
    assert files(root) == [] and list(temporary.iterdir()) == []


def test_a_writer_that_outlives_its_session_is_looked_for_again(root: Path) -> None:
    """A rank whose flow was killed may be keeping a checkpoint."""
    sessions = root / "sessions"
    sessions.mkdir()
    evidence = sessions / f"{leftovers.MACHINE}-killed"
    evidence.touch()
    with Workspace(str(root)).staged("checkpoint") as staging:
        staging.write_bytes(b"weights")
        look_for_leftovers(root)
        assert evidence.exists()
    assert (root / "checkpoint").read_bytes() == b"weights"
    look_for_leftovers(root)
    assert not evidence.exists()


def test_the_files_of_another_machine_are_left_to_it(root: Path) -> None:
    (root / "sessions").mkdir()
    theirs = [root / "sessions" / "0badcafe-x", root / ".model.0badcafe-x.partial"]
    ours = root / "sessions" / f"{leftovers.MACHINE}-x"
    for path in (*theirs, ours):
        path.touch()
    look_for_leftovers(root)
    assert not ours.exists() and all(path.exists() for path in theirs)


def test_a_workspace_is_searched_only_after_a_crash(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_be_called(*_arguments: object) -> Iterator[object]:
        raise AssertionError("searched")

    monkeypatch.setattr(os, "walk", must_not_be_called)
    look_for_leftovers(root)
    look_for_leftovers(root)


def test_a_scratch_folder_that_says_nothing_of_its_owner_is_left_alone(root: Path, temporary: Path) -> None:
    (temporary / "headway-made-by-hand").mkdir()
    look_for_leftovers(root)
    assert (temporary / "headway-made-by-hand").exists()


def test_a_full_disk_takes_nothing_that_was_staged(root: Path) -> None:
    with pytest.raises(RuntimeError), Workspace(str(root)).staged("model.bin") as staging:
        staging.write_bytes(b"half")
        raise RuntimeError
    assert files(root) == []


def test_no_claim_is_ever_lost_to_somebody_who_looks_at_the_same_moment(tmp_path: Path) -> None:
    path, done, lost = tmp_path / "claim", threading.Event(), []

    def look() -> None:
        while not done.is_set():
            discard_if_abandoned(path)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    for _ in range(2000):
        with claimed(path):
            if not path.exists():
                lost.append(path)
            path.unlink(missing_ok=True)
    done.set()
    for looker in lookers:
        looker.join()
    assert lost == []


def test_no_scratch_folder_is_ever_lost_to_somebody_who_looks_at_the_same_moment(root: Path) -> None:
    lost: list[Path] = []

    def work() -> None:
        for _ in range(100):
            with scratch_folder("headway-") as folder:
                (folder / "file").touch()
                if not (folder / leftovers.OWNER).exists():
                    lost.append(folder)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert lost == []
