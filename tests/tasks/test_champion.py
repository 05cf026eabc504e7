"""Refs decide; MLflow's aliases follow them, also after a kill in between, and a move by hand is told from one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from data_contracts import refs
from data_contracts.digest_cache import DigestCache
from data_contracts.documents import Link
from data_contracts.errors import RefConflict
from data_contracts.publication import Workspace
from tasks import champion, mlflow_store, model_refs
from tasks.champion import Candidate
from tasks.context import RunContext
from training.ledger import Ledger, read_events

if TYPE_CHECKING:
    from mlflow import MlflowClient

MODEL = "tiny"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    made = mlflow_store.connect(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")
    made.create_registered_model(MODEL)
    for _ in range(3):
        made.create_model_version(MODEL, source="file:///nowhere")
    return made


@pytest.fixture
def context(tmp_path: Path, client: MlflowClient) -> RunContext:
    for alias in ("champion", "challenger"):
        client.delete_registered_model_alias(MODEL, alias)
    return RunContext(
        pipeline=MODEL,
        workspace=Workspace.create(str(tmp_path / "workspace")),
        base=tmp_path,
        ledger=Ledger(tmp_path / "ledger.jsonl"),
        digests=DigestCache(tmp_path / "digests.json"),
        scratch=tmp_path,
        budget_scope="test",
    )


def candidate(version: str) -> Candidate:
    registration = Link(kind="registration", sha256=version * 64)
    evaluation = Link(kind="evaluation", sha256="e" * 64)
    return Candidate(model=MODEL, registration=registration, version=version, evaluation=evaluation)


def crown(context: RunContext, client: MlflowClient, version: str) -> None:
    champion.point(context, candidate(version), "champion", reason="test")
    champion.project(context, client, MODEL, "champion")


def moved(context: RunContext, tmp_path: Path) -> bool:
    return any(event["event"] == "alias.moved" for event in read_events(tmp_path / "ledger.jsonl"))


def test_the_alias_follows_the_ref(context: RunContext, client: MlflowClient) -> None:
    crown(context, client, "1")
    crown(context, client, "2")
    assert mlflow_store.alias_version(client, MODEL, "champion") == "2"


def test_a_kill_between_ref_and_alias_is_made_up_for_and_blamed_on_nobody(
    context: RunContext, client: MlflowClient, tmp_path: Path
) -> None:
    crown(context, client, "1")
    champion.point(context, candidate("2"), "champion", reason="then the process was killed")
    champion.project(context, client, MODEL, "champion")
    assert mlflow_store.alias_version(client, MODEL, "champion") == "2"
    assert not moved(context, tmp_path)


def test_an_alias_moved_in_mlflow_is_reported_and_left_alone(
    context: RunContext, client: MlflowClient, tmp_path: Path
) -> None:
    crown(context, client, "1")
    client.set_registered_model_alias(MODEL, "champion", "3")
    champion.project(context, client, MODEL, "champion")
    assert mlflow_store.alias_version(client, MODEL, "champion") == "3"
    assert moved(context, tmp_path)


def test_an_alias_that_mlflow_lost_is_given_again(context: RunContext, client: MlflowClient) -> None:
    crown(context, client, "1")
    client.delete_registered_model_alias(MODEL, "champion")
    champion.project(context, client, MODEL, "champion")
    assert mlflow_store.alias_version(client, MODEL, "champion") == "1"


def test_of_two_writers_that_saw_the_same_champion_one_wins(context: RunContext) -> None:
    champion.point(context, candidate("1"), "champion", reason="first")
    seen = refs.current(context.workspace, model_refs.alias_ref(MODEL, "champion"))
    champion.point(context, candidate("2"), "champion", reason="the winner")
    with pytest.raises(RefConflict):
        refs.move(
            context.workspace,
            model_refs.alias_ref(MODEL, "champion"),
            candidate("3").registration,
            expected=seen,
            reason="the loser",
            detail={"version": "3"},
        )
    now = refs.current(context.workspace, model_refs.alias_ref(MODEL, "champion"))
    assert now is not None and now.detail["version"] == "2"
