"""Every row and file that the client of our own leaves is one that MLflow's would have left, and MLflow reads it."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.documents import Link, RunSpec, StoredFile
from headway.data_contracts.store.errors import RegistryError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.registry import champion, mlflow_store, track, tracked_runs
from headway.tasks.registry.model_versions import ModelVersions, model_versions
from headway.tasks.tracking import local_client as module
from headway.tasks.tracking.local_client import LocalClient, local_client
from headway.training.observe.step_summary import summarise_steps
from tests.tasks.conftest import MODEL, Register, report_on

ZERO = "0" * 64
LINEAGE = {"headway.snapshot": ZERO, "headway.contract": "c 1.0.0"}
UNKNOWN_SETTING = "MLFLOW_SQLALCHEMYSTORE_POOL_RECYCLE"
"""With it MLflow itself is asked."""
STEP = {"event": "step", "loss": 2.0, "lr": 0.1, "tokens": 4, "duration_s": 1.0, "unix_s": 1.8e9}
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00")
DRAWN = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
WITHOUT_MLFLOW = """
import sys
from headway.data_contracts.store.documents import RunSpec
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry import mlflow_store
from headway.tasks.registry.track import SeriesShipper
from headway.tasks.registry.model_export import save_model

workspace = Workspace(sys.argv[1])
run = RunSpec.from_bytes(sys.stdin.buffer.read(), where="")
with SeriesShipper(workspace, mlflow_store.default_tracking_uri(workspace), "tiny", run) as shipper:
    shipper.add({"event": "step", "step": 1, "loss": 2.0, "tokens": 1, "duration_s": 1.0, "unix_s": 0.0})
assert not {"mlflow", "sqlalchemy", "alembic", "pandas"} & sys.modules.keys()
"""
METRICS = [
    ("train/x", 1.0, 1000, 1),
    ("train/x", 3.0, 1000, 1),  # the greater of one moment
    ("train/x", 2.0, 999, 2),  # a later step
    ("train/x", 2.0, 999, 2),
    ("train/y", math.nan, 5, 5),
    ("train/y", 0.0, 5, 5),  # after one that is no number, which stands for 0
    ("train/z", math.inf, 5, 5),
    ("train/z", -math.inf, 5, 6),
]


def run_of(seed: int, **config: Any) -> RunSpec:
    nowhere = StoredFile(path="code/none.zip", size_bytes=0, sha256=ZERO)
    links = {kind: Link(kind=kind, sha256=ZERO) for kind in ("manifest", "receipt", "fitted")}
    config = {"seed": seed, "betas": [0.9, 0.95], "deep": {"größe": "x" * 7000, "nothing": None}, **config}
    return RunSpec(pipeline="tiny", config=config, code=nowhere, environment=nowhere, **links)


def train(workspace: Workspace, client: Any) -> None:
    """Two runs as a retrain logs them, one of them resumed, and one left RUNNING."""
    entities = mlflow_store.entities_of(client)
    for seed in (1, 2, 1):
        run_id = mlflow_store.find_or_create_run(client, workspace, "tiny", run_of(seed)).info.run_id
        tracked_runs.end_killed(workspace, client)
        tracked_runs.begin(client, run_id)
        logged = track._Logged(client, run_id)
        steps = [STEP | {"step": step, "grad_norm": math.nan if step == 2 else 0.5} for step in (1, 2, 3)]
        steps += [{"event": "validation", "metric": "log_loss", "value": 0.3, "step": 3, "unix_s": 1.8e9}]
        summary = summarise_steps(steps)
        assert summary is not None
        for _ in range(2):  # ranks may repeat steps
            track._log_steps(client, run_id, [*steps, {"event": track.SUMMARY, **summary.model_dump()}], logged, "rows")
        for some in (METRICS[:3], METRICS, METRICS[::-1]):
            client.log_batch(run_id, metrics=[entities.Metric(*each) for each in some])
        tags = [entities.RunTag("long", "ä" * 9000), entities.RunTag("again", "1"), entities.RunTag("again", "2")]
        client.log_batch(run_id, tags=tags)
        client.set_tag(run_id, "again", "3")
        report = report_on(Link(kind="checkpoint", sha256=ZERO), run_of(seed).manifest, None)
        for _ in range(2):
            mlflow_store.log_result(client, run_id, run_of(seed), report, LINEAGE)
        client.set_terminated(run_id, "FAILED")
        mlflow_store.name_by_version(client, run_id, "tiny", "7")
    tracked_runs.begin(client, mlflow_store.find_or_create_run(client, workspace, "tiny", run_of(3)).info.run_id)


def settle(versions: ModelVersions, register: Register, settled: Callable[..., Any]) -> None:
    """Three versions: champion and challenger change, one is withdrawn and one retired; all of it twice."""
    for number, better in ((1, True), (2, True), (3, False), (2, True)):
        registration, evaluation = register(number, better=better)
        settled(versions, registration, evaluation)
        assert versions._find(registration) == versions.ensure(registration)
    versions.client.set_model_version_tag(MODEL, "1", "headway.retired", "old")
    versions.client.set_model_version_tag(MODEL, "1", "headway.retired", "older")
    versions.client.set_registered_model_alias(MODEL, "mine", "1")
    versions.client.set_registered_model_alias(MODEL, "mine", "2")
    versions.client.set_registered_model_alias(MODEL, "other", "2")
    versions.client.delete_registered_model_alias(MODEL, "other")
    versions.client.delete_model_version(MODEL, "3")


def rows(database: Path) -> dict[str, list[str]]:
    """Of every table that has any, without ids that are drawn: each is numbered as it appears."""
    found, numbers = dict[str, list[str]](), dict[str, str]()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        for (table,) in connection.execute("select name from sqlite_master where type = 'table' order by name desc"):
            columns = [name for _, name, *_ in connection.execute(f"pragma table_info({table})")]
            for row in connection.execute(f"select * from {table} order by rowid").fetchall():
                text = MOMENT.sub("MOMENT", repr(dict(zip(columns, row, strict=True))))
                text = DRAWN.sub(lambda match: numbers.setdefault(match[0], f"id {len(numbers)}"), text)
                found.setdefault(table, []).append(text)
    return {table: sorted(each) for table, each in found.items()}


def files(workspace: Workspace) -> dict[str, bytes]:
    root = workspace.local_path(mlflow_store.FILES)
    numbers = dict[str, str]()
    return {
        DRAWN.sub(
            lambda match: numbers.setdefault(match[0], f"id {len(numbers)}"), path.relative_to(root).as_posix()
        ): MOMENT.sub("MOMENT", path.read_bytes().decode()).encode()
        for path in sorted(root.rglob("*"), key=lambda path: path.stat().st_ctime_ns)
        if path.is_file()
    }


@pytest.fixture
def database(workspace: Workspace, mlflow_tables: Path) -> Path:
    return Path(shutil.copy(mlflow_tables, workspace.local_path("mlflow.db")))


@pytest.fixture
def client(database: Path) -> Iterator[LocalClient]:
    with local_client(database, {}, {}) as made:
        assert made is not None
        yield made


@pytest.mark.process  # for what it takes of the processor
def test_what_a_retrain_leaves_is_to_the_row_what_mlflow_leaves(
    context: RunContext, database: Path, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, made = context.workspace, dict[str, Any]()
    empty = database.read_bytes()
    monkeypatch.setattr(time, "time", lambda: 1.8e9)
    for kind in ("ours", "mlflow's"):
        database.write_bytes(empty)
        for folder in ("refs", "cards", "decisions", mlflow_store.FILES):
            shutil.rmtree(workspace.local_path(folder), ignore_errors=True)
        if kind != "ours":
            monkeypatch.setenv(UNKNOWN_SETTING, "3600")
        with model_versions(context, MODEL, "") as versions:
            assert isinstance(versions.client, LocalClient) == (kind == "ours")
            train(workspace, versions.client)
            settle(versions, register, champion.settle)
        made[kind] = rows(database), files(workspace)
    ours, theirs = made.values()
    assert ours[0].keys() == theirs[0].keys() >= {"datasets", "input_tags", "latest_metrics", "model_version_tags"}
    for table, expected in theirs[0].items():
        assert ours[0][table] == expected, table
    assert ours[1] == theirs[1]
    assert len(ours[1]) > 6


def test_mlflow_reads_what_was_written(
    context: RunContext, database: Path, register: Register, client: LocalClient
) -> None:
    run_id = mlflow_store.find_or_create_run(client, context.workspace, "tiny", run_of(1)).info.run_id
    client.log_batch(run_id, metrics=[module.Metric("train/loss", 0.5, 1000, 3)])
    registration, evaluation = register(1)
    with model_versions(context, MODEL, "") as versions:
        assert isinstance(versions.client, LocalClient)
        outcome = champion.settle(versions, registration, evaluation)
    theirs = mlflow_store.connect(mlflow_store.default_tracking_uri(context.workspace))
    run = theirs.get_run(run_id)
    assert run.data.metrics == {"train/loss": 0.5} and run.data.params["seed"] == "1"
    assert run.info.status == "RUNNING"
    version = theirs.get_model_version_by_alias(MODEL, "champion")
    assert str(version.version) == outcome.version and version.status == "READY"
    names = [file.path for file in theirs.list_artifacts(version.run_id, "model")]
    assert "model/input_example.json" in names


@pytest.mark.parametrize("setting", ["MLFLOW_ENABLE_WORKSPACES", "MLFLOW_TRUNCATE_LONG_VALUES", UNKNOWN_SETTING])
def test_mlflow_is_asked_where_a_setting_of_its_own_might_change_what_it_writes(database: Path, setting: str) -> None:
    known = mlflow_store.QUIET_SETTINGS
    with local_client(database, known, {**known, "MLFLOW_TRACKING_URI": "http://x"}) as made:
        assert made is not None
    with local_client(database, known, {**known, setting: "true"}) as made:
        assert made is None
    with local_client(database, known, {"MLFLOW_HTTP_REQUEST_TIMEOUT": "7"}) as made:
        assert made is None, "its value is another"


def test_mlflow_is_asked_of_tables_of_another_revision_and_where_there_are_none(database: Path) -> None:
    with local_client(database.with_name("none.db"), {}, {}) as made:
        assert made is None
    assert not database.with_name("none.db").exists()
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update alembic_version set version_num = 'ffffffffffff'")
    with local_client(database, {}, {}) as made:
        assert made is None


def test_a_database_that_would_compute_as_it_is_written_is_left_to_mlflow(database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create trigger t after insert on tags begin delete from tags; end")
    with local_client(database, {}, {}) as made:
        assert made is None


@pytest.mark.parametrize("name", ["a*b", "a//b", "../a", "/a", ".", "a" * 251, ""])
def test_names_that_mlflow_refuses_are_refused_and_nothing_is_written(
    client: LocalClient, database: Path, workspace: Workspace, name: str
) -> None:
    run_id = mlflow_store.find_or_create_run(client, workspace, "tiny", run_of(1)).info.run_id
    before = rows(database)
    theirs = mlflow_store.connect(f"{mlflow_store.SQLITE}{database}")
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    with pytest.raises(RegistryError):
        client.log_batch(run_id, metrics=[module.Metric("good", 1.0, 1, 1), module.Metric(name, 1.0, 1, 1)])
    with pytest.raises(MlflowException):
        theirs.log_batch(run_id, metrics=[Metric("good", 1.0, 1, 1), Metric(name, 1.0, 1, 1)])
    assert rows(database) == before


def test_a_parameter_that_changed_and_a_run_that_was_deleted_are_refused(
    client: LocalClient, database: Path, workspace: Workspace
) -> None:
    run_id = mlflow_store.find_or_create_run(client, workspace, "tiny", run_of(1)).info.run_id
    with pytest.raises(RegistryError, match="seed"):
        client.log_batch(run_id, params=[module.Param("new", "1"), module.Param("seed", "2")])
    assert "'new'" not in str(rows(database)["params"])
    mlflow_store.connect(f"{mlflow_store.SQLITE}{database}").delete_run(run_id)
    for refused in (
        lambda: client.set_tag(run_id, "a", "b"),
        lambda: client.update_run(run_id, status="RUNNING"),
        lambda: client.set_terminated(run_id, "FINISHED"),
        lambda: client.log_inputs(run_id, []),
        lambda: client.get_run("none"),
        lambda: client.set_registered_model_alias("none", "champion", "1"),
        lambda: client.update_model_version("none", "1", description=""),
    ):
        with pytest.raises(RegistryError):
            refused()
    assert mlflow_store.find_run(client, "tiny", run_of(1)) is None


def test_files_of_a_run_that_lie_elsewhere_are_not_written(
    client: LocalClient, database: Path, workspace: Workspace
) -> None:
    run_id = mlflow_store.find_or_create_run(client, workspace, "tiny", run_of(1)).info.run_id
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update runs set artifact_uri = 'mlflow-artifacts:/x'")
    with pytest.raises(RegistryError, match="not on this machine"):
        client.log_text(run_id, "text", "card.md")


def test_a_database_that_another_holds_for_too_long_is_an_error_to_retry(
    client: LocalClient, database: Path, workspace: Workspace
) -> None:
    client._database.execute("pragma busy_timeout = 1")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("begin immediate")
        with (
            pytest.raises(RegistryError, match="locked") as caught,
            mlflow_store.mlflow_client(f"sqlite:///{database}"),
        ):
            mlflow_store.find_or_create_run(client, workspace, "tiny", run_of(1))
        assert caught.value.retryable
    assert mlflow_store.find_or_create_run(client, workspace, "tiny", run_of(1)).info.status == "RUNNING"


@pytest.mark.process
def test_none_of_it_imports_mlflow(workspace: Workspace, database: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MLFLOW, workspace.uri], input=run_of(1).to_bytes(), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "'train/loss'" in str(rows(database)["metrics"]) and "FINISHED" in str(rows(database)["runs"])
