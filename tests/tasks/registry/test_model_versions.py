"""One version for one registration: with several flows at once, over a kill at the worst moment, in any store."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link, RunSpec, StoredFile
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError, RegistryError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.registry import mlflow_store, model_refs
from headway.tasks.registry.file_lock import holding
from headway.tasks.registry.model_versions import REGISTRATION_TAG, ModelVersions, lineage, model_versions
from headway.tasks.stages.launch import watched_training
from headway.tasks.stages.starting_point import ResolvedStart
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.gang import LaunchSpec
from tests.tasks.conftest import link
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import Program

if TYPE_CHECKING:
    from mlflow import MlflowClient

MODEL = "tiny"
REPOSITORY = Path(__file__).resolve().parents[3]
FLOW = """
import signal, sys, time
from pathlib import Path
sys.path.insert(0, "tests/tasks")
import mlflow
from conftest import make_context
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry.model_versions import ModelVersions, model_versions

workspace_uri, folder, go, sha256, dies = sys.argv[1:]
if dies == "dies":
    def hold(*_arguments):
        print("made", flush=True)
        signal.pause()
    ModelVersions._write_down = hold
context = make_context(Workspace(workspace_uri), Path(folder))
print("ready", flush=True)
while not Path(go).exists():
    time.sleep(0.001)
with model_versions(context, "tiny", "") as versions:
    print(versions.ensure(Link(kind="registration", sha256=sha256)), flush=True)
"""

OPEN = """
import sys, time
from pathlib import Path
import mlflow
from headway.tasks.registry.mlflow_store import connect
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
connect(sys.argv[1])
"""


@pytest.fixture
def workspace(workspace: Workspace, mlflow_tables: Path) -> Workspace:
    """One whose MLflow has its tables."""
    shutil.copy(mlflow_tables, workspace.local_path("mlflow.db"))
    return workspace


@pytest.fixture
def start(workspace: Workspace, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A flow's process that is about to register; it does so once `go` exists."""
    started: list[subprocess.Popen[str]] = []

    def process(registration: Link, *, dies: bool = False) -> subprocess.Popen[str]:
        folder = tmp_path / f"flow-{len(started)}"
        arguments = (workspace.uri, str(folder), str(tmp_path / "go"), registration.sha256, "dies" if dies else "lives")
        started.append(
            Program(
                [sys.executable, "-c", FLOW, *arguments],
                cwd=REPOSITORY,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        return started[-1]

    yield process
    for flow in started:
        flow.kill()
        flow.communicate()


def go(processes: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """Let them all go at once, when all have imported what they need."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
    (tmp_path / "go").touch()


def client_of(workspace: Workspace) -> MlflowClient:
    return mlflow_store.connect(mlflow_store.default_tracking_uri(workspace))


def registered(client: MlflowClient) -> Counter[str]:
    """How many versions each registration has."""
    return Counter(version.tags[REGISTRATION_TAG] for version in client.search_model_versions(f"name = '{MODEL}'"))


@pytest.mark.process
def test_flows_that_register_at_once_make_one_version_for_each_checkpoint(
    workspace: Workspace, register, start, tmp_path: Path
) -> None:
    (one, _), (other, _) = register(1), register(2)
    flows = [start(registration) for registration in (one, one, other)]
    go(flows, tmp_path)
    message = [flow.communicate(timeout=DEADLINE_S) for flow in flows]
    assert [flow.returncode for flow in flows] == [0] * 3, message
    assert registered(client_of(workspace)) == {one.sha256: 1, other.sha256: 1}
    first, second = (model_refs.version_of(workspace, MODEL, registration) for registration in (one, other))
    assert [out.strip() for out, _ in message] == [first, first, second]
    assert {first, second} == {"1", "2"}
    assert len(client_of(workspace).search_runs(["1"])) == 2


@pytest.mark.process
def test_a_flow_killed_between_making_a_version_and_writing_it_down_leaves_no_second_one(
    workspace: Workspace, context: RunContext, register, start, tmp_path: Path
) -> None:
    registration, _ = register(1)
    flow = start(registration, dies=True)
    go([flow], tmp_path)
    assert flow.stdout.readline() == "made\n"
    lock = workspace.local_path("locks/model-tiny.lock")
    with pytest.raises(RegistryError, match=f"pid {flow.pid} "), holding(lock, within_s=0):
        pytest.fail("two registered at once")
    flow.send_signal(signal.SIGKILL)
    flow.wait(DEADLINE_S)
    assert model_refs.versions(workspace, MODEL) == []
    with model_versions(context, MODEL, "") as versions:
        assert versions.ensure(registration) == "1"
    assert registered(client_of(workspace)) == {registration.sha256: 1}


@pytest.mark.process
def test_processes_that_open_a_new_store_at_once_do_not_spoil_it_for_each_other(tmp_path: Path) -> None:
    opening = [
        Program(
            [sys.executable, "-c", OPEN, f"sqlite:///{tmp_path}/new.db", tmp_path / "go"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    go(opening, tmp_path)
    message = [process.communicate(timeout=DEADLINE_S) for process in opening]
    assert [process.returncode for process in opening] == [0] * 2, message


@pytest.mark.long
@pytest.mark.process
def test_a_store_whose_maker_is_killed_in_the_midst_of_it_is_made_anew(tmp_path: Path) -> None:
    database, unfinished = tmp_path / "new.db", tmp_path / ".new.db.unfinished"
    (tmp_path / "go").touch()
    # A fresh process, whose tables MLflow makes: those of forks are copies, there at once.
    making = subprocess.Popen(
        [sys.executable, "-c", OPEN, f"sqlite:///{database}", str(tmp_path / "go")],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: unfinished.exists() and unfinished.stat().st_size > 0, what="the first tables")
    finally:
        making.kill()
        making.wait()
    assert not database.exists()
    assert mlflow_store.connect(f"sqlite:///{database}").search_runs(["0"]) == []
    assert not unfinished.exists()


def test_a_store_that_a_server_made_meanwhile_is_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "new.db"
    database.write_bytes(b"theirs")
    mlflow_store._make_tables(database)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("new.db", b"theirs")]


def test_a_stores_uri_may_say_more_than_its_file(tmp_path: Path) -> None:
    mlflow_store.connect(f"sqlite:///{tmp_path}/new.db?timeout=30")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.db", "new.db.lock"]


def test_where_the_lock_does_not_reach_the_second_to_write_down_withdraws(context: RunContext, register) -> None:
    (registration, _), (other, _) = register(1), register(2)
    client = client_of(context.workspace)
    here, there = (ModelVersions(context, lambda: client, MODEL, "") for _ in range(2))
    assert (here._create(registration), there._create(registration)) == ("1", "2")
    assert there._write_down(registration, "2", None) == "2"
    assert here.ensure(other) == "3", "another registration is nobody's rival"
    assert here._write_down(registration, "1", None) == "2"
    assert registered(client) == {registration.sha256: 1, other.sha256: 1}


def test_a_version_whose_bits_are_not_an_undisturbed_runs_has_a_tag_that_says_why(
    workspace: Workspace, register
) -> None:
    exact, inexact = register(1)[0], register(2, scalars={"inexact_resumes": 2, "halved_micro_batch": 4})[0]
    assert "headway.inexact" not in lineage(workspace, exact)
    assert lineage(workspace, inexact)["headway.inexact"] == (
        "resumed 2 times on another kind of machine or mesh; micro-batch halved to 4 when memory ran out"
    )


def test_repeating_a_registration_changes_nothing(context: RunContext, register) -> None:
    registration, _ = register(1)
    for _ in range(2):
        with model_versions(context, MODEL, "") as versions:
            assert versions.ensure(registration) == "1"
    assert len(refs.history(context.workspace, model_refs.versions_ref(MODEL))) == 1


def test_a_version_that_mlflow_lost_is_registered_again_and_the_ref_says_so(context: RunContext, register) -> None:
    registration, _ = register(1)
    client = client_of(context.workspace)
    versions = ModelVersions(context, lambda: client, MODEL, "")
    assert versions.ensure(registration) == "1"
    client.delete_model_version(MODEL, "1")
    assert versions.ensure(registration) == "2"
    newest = refs.current(context.workspace, model_refs.versions_ref(MODEL))
    assert newest is not None
    assert (newest.detail["version"], newest.reason) == ("2", "registered again: MLflow has no version 1 of it")


@pytest.mark.process
def test_a_store_begun_anew_gives_no_model_a_number_that_another_had(context: RunContext, register) -> None:
    first, second, third = (register(number)[0] for number in (1, 2, 3))
    with model_versions(context, MODEL, "") as versions:
        assert [versions.ensure(each) for each in (first, second)] == ["1", "2"]
    client_of(context.workspace).delete_registered_model(MODEL)  # as a database that was moved aside has none of it
    with model_versions(context, MODEL, "") as versions:
        assert versions.ensure(third) == "3"
        assert versions.ensure(third) == "3"
        assert versions.ensure(first) == "4", "its own number is over, for others came after it"
    names = {version.version: version.tags[REGISTRATION_TAG] for version in _all_versions(context.workspace)}
    assert names == {3: third.sha256, 4: first.sha256}


@pytest.mark.process
def test_the_newest_model_has_its_own_number_again_in_a_store_begun_anew(context: RunContext, register) -> None:
    first, second = (register(number)[0] for number in (1, 2))
    with model_versions(context, MODEL, "") as versions:
        assert [versions.ensure(each) for each in (first, second)] == ["1", "2"]
    client_of(context.workspace).delete_registered_model(MODEL)
    with model_versions(context, MODEL, "") as versions:
        assert versions.ensure(second) == "2"


def _all_versions(workspace: Workspace) -> list[Any]:
    return list(client_of(workspace).search_model_versions(f"name = '{MODEL}'"))


def test_a_waiting_flow_has_a_deadline_and_names_who_was_late(tmp_path: Path) -> None:
    path = tmp_path / "model.lock"
    begun_s = time.monotonic()
    with (
        holding(path),
        pytest.raises(RegistryError, match=rf"more than 0.2 s \(pid {os.getpid()} on "),
        holding(path, within_s=0.2),
    ):
        pytest.fail("two held it")
    assert time.monotonic() - begun_s >= 0.2
    with holding(path, within_s=0):
        pass


def test_a_store_in_a_folder_that_went_away_is_made_nowhere_anew(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="is not there"):
        mlflow_store.connect(f"sqlite:///{tmp_path}/gone/new.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.parametrize("asks_the_registry", [False, True])
def test_a_workspace_that_goes_away_while_mlflow_opens_its_database_is_not_made_anew(
    tmp_path: Path, mlflow_tables: Path, monkeypatch: pytest.MonkeyPatch, asks_the_registry: bool
) -> None:
    """Right after the last look at its folder; MLflow opens the registry's part when it is first asked for."""
    import mlflow

    workspace = tmp_path / "workspace"
    workspace.mkdir()
    shutil.copy(mlflow_tables, workspace / "mlflow.db")
    make = mlflow.MlflowClient

    def go_away(**where: str) -> MlflowClient:
        if not asks_the_registry:
            workspace.rename(tmp_path / "away")
        return make(**where)

    monkeypatch.setattr(mlflow, "MlflowClient", go_away)
    with pytest.raises(EnvironmentProblem, match="folder of MLflow's database is not there"):
        client = mlflow_store.connect(f"sqlite:///{workspace}/mlflow.db")
        workspace.rename(tmp_path / "away")
        client.search_registered_models()
    assert not workspace.exists()


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:9/theirs", "file://{elsewhere}", "{root}/../../elsewhere", "{link}"]
)
def test_an_altered_database_sends_a_models_files_and_credentials_nowhere(
    context: RunContext, register, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    registration, _ = register(1)
    root, elsewhere = mlflow_store.artifact_root(context.workspace), tmp_path / "elsewhere"
    elsewhere.mkdir()
    context.workspace.local_path("mlartifacts").mkdir(exist_ok=True)
    (context.workspace.local_path("mlartifacts") / "link").symlink_to(elsewhere)
    place = place.format(elsewhere=elsewhere, root=root, link=f"{root}/link")
    client = client_of(context.workspace)
    client.create_experiment(context.pipeline, artifact_location=place)
    sent = list[object]()
    monkeypatch.setattr(client, "log_artifacts", lambda *arguments: sent.append(arguments))
    with pytest.raises(IntegrityError, match="outside of the workspace") as refused:
        ModelVersions(context, lambda: client, MODEL, "").ensure(registration)
    assert (sent, list(elsewhere.iterdir()), registered(client)) == ([], [], {})
    assert "mlflow.db aside" in refused.value.advice


def test_a_workspace_that_was_moved_is_refused_before_it_trains_and_one_that_was_not_is_not(
    context: RunContext, workspace: Workspace, tmp_path: Path
) -> None:
    def required(of: Workspace) -> None:
        mlflow_store.require_own_files(of, mlflow_store.default_tracking_uri(of), context.pipeline)

    required(workspace)  # no experiment yet
    root = f"{mlflow_store.artifact_root(workspace)}/{context.pipeline}"
    client_of(workspace).create_experiment(context.pipeline, artifact_location=root)
    required(workspace)
    shutil.copytree(workspace.local_root, tmp_path / "moved")
    moved = Workspace(str(tmp_path / "moved"))
    with pytest.raises(IntegrityError, match="outside of the workspace") as refused:
        required(moved)
    assert "was moved or copied" in refused.value.advice and refused.value.where == root
    mlflow_store.require_own_files(moved, "http://127.0.0.1:9", context.pipeline)  # a server has files of its own
    # So does the stage that would train, before it makes a folder of the run; without a registration it may.
    none, code = link("none", "0"), StoredFile(path="code/0.zip", sha256="0" * 64, size_bytes=1)
    run = RunSpec(
        pipeline=context.pipeline, config={}, manifest=none, receipt=none, fitted=none, code=code, environment=code
    )
    settled = ResolvedStart(run, "")
    there = dataclasses.replace(context, workspace=moved)
    uri = mlflow_store.default_tracking_uri(moved)
    with (
        pytest.raises(IntegrityError, match="outside of the workspace"),
        watched_training(there, TrainingSpec(), LaunchSpec(), settled, uri, ""),
    ):
        pass
    assert not moved.local_path("runs").exists()
