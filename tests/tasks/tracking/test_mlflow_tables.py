"""What is read of an SQLite store without MLflow is what MLflow itself answers."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from headway.tasks.registry import mlflow_store
from headway.tasks.tracking import mlflow_tables

MODEL = "one o'clock"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[MlflowClient, Path]:
    """Three versions: with all that can be said of one, with nothing, and deleted."""
    database = tmp_path_factory.mktemp("mlflow 1") / "mlflow.db"
    client = mlflow_store.connect(f"sqlite:///{database}")
    client.create_registered_model(MODEL)
    client.create_registered_model("other")
    run = client.create_run(client.create_experiment("tables", artifact_location="file:///nowhere"))
    client.create_model_version(MODEL, "file:///a", run.info.run_id, tags={"a": "1", "b": "ä\n"}, description="Good.")
    for _ in range(2):
        client.create_model_version(MODEL, "file:///b")
    client.create_model_version("other", "file:///c", tags={"a": "of another"})
    client.set_registered_model_alias(MODEL, "champion", "1")
    client.set_registered_model_alias(MODEL, "gone", "3")
    client.delete_model_version(MODEL, "3")
    return client, database


@pytest.fixture
def tables(store: tuple[MlflowClient, Path]) -> Iterator[mlflow_tables.MlflowTables]:
    with mlflow_tables.mlflow_tables(store[1]) as found:
        assert found is not None, "MLflow makes other tables now: look whether they are read right, then set REVISION"
        yield found


@pytest.mark.parametrize("version", ["1", "2", "3", "4"])
@pytest.mark.parametrize("model", [MODEL, "other", "none"])
def test_a_version_is_what_mlflow_says_of_it(store, tables: mlflow_tables.MlflowTables, model: str, version: str):
    assert tables.version(model, version) == mlflow_store.stored_version(store[0], model, version)


@pytest.mark.parametrize("alias", ["champion", "gone", "never"])
@pytest.mark.parametrize("model", [MODEL, "other"])
def test_an_alias_is_at_the_version_at_which_mlflow_has_it(
    store, tables: mlflow_tables.MlflowTables, model: str, alias: str
) -> None:
    assert tables.alias(model, alias) == mlflow_store.alias_version(store[0], model, alias)


def test_tables_of_another_revision_are_not_read(store: tuple[MlflowClient, Path], tmp_path: Path) -> None:
    copy = tmp_path / "mlflow.db"
    copy.write_bytes(store[1].read_bytes())
    with contextlib.closing(sqlite3.connect(copy)) as database, database:
        database.execute("update alembic_version set version_num = 'ffffffffffff'")
    with mlflow_tables.mlflow_tables(copy) as found:
        assert found is None


@pytest.mark.parametrize("content", [None, b"", b"no database" * 100])
def test_what_is_no_store_of_mlflows_is_not_read_and_stays_as_it_is(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mlflow.db"
    if content is not None:
        path.write_bytes(content)
    with mlflow_tables.mlflow_tables(path) as found:
        assert found is None
    assert (path.read_bytes() if path.exists() else None) == content
