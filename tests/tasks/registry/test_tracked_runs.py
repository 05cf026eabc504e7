"""MLflow says RUNNING of what is trained, and of nothing else: also of what was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import Link, RunSpec, StoredFile
from headway.data_contracts.store.errors import RunStopped, Superseded, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry import mlflow_store, track, tracked_runs
from headway.tasks.registry.file_lock import holding
from headway.tasks.registry.track import SeriesShipper
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base import run_lock
from tests.waiting import DEADLINE_S
from tests.warm_programs import Program

REPOSITORY = Path(__file__).resolve().parents[3]
TRAINS = """
import signal, sys
from headway.data_contracts.store.documents import Link, RunSpec
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry import mlflow_store
from headway.tasks.registry.track import SeriesShipper
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base import run_lock

workspace, run = Workspace(sys.argv[1]), RunSpec.from_bytes(sys.stdin.buffer.read(), where="")
uri = sys.argv[2]
folder = workspace.local_path(run_folder(run.link))
folder.mkdir(parents=True)
with run_lock.owning(folder), SeriesShipper(workspace, uri, "tiny", run) as shipper:
    shipper.add({"event": "step", "step": 1, "loss": 2.0, "tokens": 1, "duration_s": 1.0, "unix_s": 0.0})
    client = mlflow_store.connect(uri)
    while True:
        found = mlflow_store.find_run(client, "tiny", run)
        if found is not None and "train/loss" in found.data.metrics:
            break
    print("training", flush=True)
    signal.pause()
"""


def run_of(seed: int) -> RunSpec:
    zero = "0" * 64
    nowhere = StoredFile(path="code/none.zip", size_bytes=0, sha256=zero)
    return RunSpec(
        pipeline="tiny",
        config={"seed": seed},
        manifest=Link(kind="manifest", sha256=zero),
        receipt=Link(kind="receipt", sha256=zero),
        fitted=Link(kind="fitted", sha256=zero),
        code=nowhere,
        environment=nowhere,
    )


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> str:
    """One store for all tests."""
    return f"{mlflow_store.SQLITE}{shutil.copy(mlflow_tables, tmp_path_factory.mktemp('mlflow'))}"


def status_of(uri: str, run: RunSpec) -> str:
    client = mlflow_store.connect(uri)
    found = mlflow_store.find_run(client, "tiny", run)
    assert found is not None
    return str(found.info.status)


@pytest.fixture
def killed(workspace: Workspace, uri: str) -> Iterator[tuple[RunSpec, subprocess.Popen[str]]]:
    """A process that trains, as far as MLflow and the run's lock can tell; to be killed."""
    run = run_of(1)
    process = Program(
        [sys.executable, "-c", TRAINS, workspace.uri, uri],
        cwd=REPOSITORY,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(run.to_bytes().decode())
    process.stdin.close()
    assert process.stdout.readline() == "training\n"
    yield run, process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.process
def test_what_was_killed_ends_as_killed_when_another_trains_and_no_sooner(
    workspace: Workspace, uri: str, killed: tuple[RunSpec, subprocess.Popen[str]]
) -> None:
    run, process = killed
    client = mlflow_store.connect(uri)
    assert tracked_runs.end_killed(workspace, client) == []
    assert status_of(uri, run) == "RUNNING"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    other = run_of(2)
    with SeriesShipper(workspace, uri, "tiny", other):
        pass
    assert status_of(uri, run) == "KILLED"
    assert status_of(uri, other) == "FINISHED"

    with pytest.raises(Superseded), SeriesShipper(workspace, uri, "tiny", run, lambda: True):
        raise Superseded("another machine goes on with the run.")
    assert status_of(uri, run) == "RUNNING", "it is not this machine's to end"
    with pytest.raises(Superseded), SeriesShipper(workspace, uri, "tiny", run):
        raise Superseded("another machine goes on with another trial.")
    assert status_of(uri, run) == "KILLED"
    with SeriesShipper(workspace, uri, "tiny", run):  # continued
        pass
    assert status_of(uri, run) == "FINISHED"


def test_how_training_ended_is_what_mlflow_says() -> None:
    errors = (None, TrainingFailed, RunStopped, KeyboardInterrupt, SystemExit)
    assert [tracked_runs.ended_as(error) for error in errors] == ["FINISHED", "FAILED", "KILLED", "KILLED", "KILLED"]


def test_of_another_machine_nobody_here_can_tell_whether_it_was_killed(workspace: Workspace, uri: str) -> None:
    client = mlflow_store.connect(uri)
    record = mlflow_store.find_or_create_run(client, workspace, "tiny", run_of(3))
    client.set_tag(record.info.run_id, tracked_runs.MACHINE_TAG, "elsewhere")
    assert tracked_runs.end_killed(workspace, client) == []


def test_an_old_run_goes_with_its_document_unless_a_version_came_of_it(workspace: Workspace, uri: str) -> None:
    client = mlflow_store.connect(uri)
    runs = [run_of(seed) for seed in range(10, 14)]
    ids = []
    for run in runs:
        record = mlflow_store.find_or_create_run(client, workspace, "tiny", run)
        ids.append(record.info.run_id)
    for run_id in ids[:3]:
        client.set_terminated(run_id, "FINISHED")
    client.create_registered_model("tiny")
    client.create_model_version("tiny", source=f"runs:/{ids[1]}/model", run_id=ids[1])
    later_s = client.get_run(ids[0]).info.end_time / 1000 + 1000

    def names(limit_unix_s: float, *, apply: bool) -> list[str]:
        kept = {runs[0].sha256, *(run_of(seed).sha256 for seed in range(4))}
        return tracked_runs.tidy(workspace, client, kept, limit_unix_s, apply=apply)[0]

    assert names(0.0, apply=True) == []
    expected = [client.get_run(ids[2]).info.run_name]  # kept; of a version; neither; still running
    assert runs[2].sha256[:8] in expected[0]
    assert names(later_s, apply=False) == expected == names(later_s, apply=True)
    assert names(later_s, apply=False) == []
    assert client.get_run(ids[2]).info.lifecycle_stage == "deleted"


def test_the_lock_of_a_run_says_who_trains_it(workspace: Workspace) -> None:
    folder = workspace.local_path(run_folder(run_of(1).link))
    folder.mkdir(parents=True)
    assert run_lock.owner_of(folder) is None
    with run_lock.owning(folder):
        assert run_lock.owner_of(folder) == f"pid {os.getpid()} on {os.uname().nodename}"
    assert run_lock.owner_of(folder) is None


def test_a_flow_that_is_interrupted_does_not_wait_for_a_store_that_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "CLOSE_WITHIN_S", None)  # for ever
    database = tmp_path / "mlflow.db"
    shipper = SeriesShipper(Workspace.create(str(tmp_path)), f"{mlflow_store.SQLITE}{database}", "tiny", run_of(1))
    with holding(Path(f"{database}.lock"), within_s=DEADLINE_S):
        with pytest.raises(KeyboardInterrupt), shipper:
            raise KeyboardInterrupt
        (thread,) = (each for each in threading.enumerate() if each.name == track.THREAD)
    thread.join()
