"""Refs decide; MLflow's aliases follow them, also after a kill in between, and a move by hand is told from one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.registry import champion, mlflow_aliases, mlflow_store, model_refs
from headway.tasks.registry.champion import RegistrationOutcome
from headway.tasks.registry.model_versions import ModelVersions
from headway.training.observe.ledger import read_events

if TYPE_CHECKING:
    from mlflow import MlflowClient

MODEL = "tiny"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> dict[str, MlflowClient]:
    """MLflow databases, by tracking URI."""
    folder = tmp_path_factory.mktemp("mlflow")
    files = [shutil.copy(mlflow_tables, folder / f"{name}.db") for name in ("old", "new")]
    return {uri: mlflow_store.connect(uri) for uri in (f"{mlflow_store.SQLITE}{file}" for file in files)}


@pytest.fixture
def old(context: RunContext, stores: dict[str, MlflowClient]) -> ModelVersions:
    return versions_in(context, stores, 0)


@pytest.fixture
def new(context: RunContext, stores: dict[str, MlflowClient]) -> ModelVersions:
    return versions_in(context, stores, 1)


def versions_in(context: RunContext, stores: dict[str, MlflowClient], number: int) -> ModelVersions:
    uri, client = list(stores.items())[number]
    for model in client.search_registered_models():
        client.delete_registered_model(model.name)
    return ModelVersions(context, lambda: client, MODEL, uri)


def crown(versions: ModelVersions, registration: Link) -> None:
    now = refs.current(versions.context.workspace, model_refs.alias_ref(MODEL, "champion"))
    champion.set_champion(versions.context, MODEL, registration, expected=now, why="test", detail={"version": "0"})
    mlflow_aliases.sync_mlflow_aliases(versions)


def alias(versions: ModelVersions, name: str = "champion") -> str | None:
    return mlflow_store.alias_version(versions.client, MODEL, name)


def settled(versions: ModelVersions, pair: tuple[Link, Link]) -> RegistrationOutcome:
    return champion.settle(versions, *pair)


def champion_of(workspace: Workspace) -> Link | None:
    entry = refs.current(workspace, model_refs.alias_ref(MODEL, "champion"))
    return None if entry is None else entry.target


def moved(context: RunContext) -> bool:
    return any(event["event"] == "alias.moved" for event in read_events(context.scratch / "ledger.jsonl"))


def test_a_first_model_that_beats_its_baseline_is_champion_and_not_challenger_beside_it(old, register) -> None:
    one = register(1)
    outcome = settled(old, one)
    assert (outcome.version, outcome.promoted, outcome.is_champion) == ("1", True, True)
    assert champion_of(old.context.workspace) == one[0]
    assert (alias(old, "challenger"), alias(old)) == (None, "1")
    assert old.client.get_model_version(MODEL, "1").aliases == ["champion"]


def test_a_first_model_that_does_not_beat_its_baseline_stays_challenger(old, register) -> None:
    outcome = settled(old, register(1, better=False))
    assert (outcome.promoted, outcome.is_champion) == (False, False)
    assert champion_of(old.context.workspace) is None
    assert (alias(old, "challenger"), alias(old)) == ("1", None)


def test_a_challenger_takes_over_only_if_it_is_better(old, register) -> None:
    first = register(1)
    settled(old, first)
    assert not settled(old, register(2, first[0], better=False)).is_champion
    assert (alias(old, "challenger"), alias(old)) == ("2", "1")
    better = register(3, first[0])
    assert settled(old, better).promoted
    assert champion_of(old.context.workspace) == better[0]
    assert (alias(old, "challenger"), alias(old)) == (None, "3")


def test_a_challenger_that_no_figure_compares_with_the_champion_is_registered_and_stays_challenger(
    old, register
) -> None:
    first = register(1)
    settled(old, first)
    outcome = settled(old, register(2, first[0], incomparable="it cannot read today's data"))
    assert (outcome.version, outcome.promoted, outcome.is_champion) == ("2", False, False)
    assert "the champion, which stays: it cannot read today's data" in outcome.reason
    assert champion_of(old.context.workspace) == first[0]
    assert (alias(old, "challenger"), alias(old)) == ("2", "1")


def test_the_champion_again_stays_what_it_is(old, register) -> None:
    one = register(1)
    settled(old, one)
    outcome = settled(old, one)
    assert (outcome.promoted, outcome.is_champion) == (False, True)
    for name in ("champion", "challenger", "projected-champion", "projected-challenger", "versions"):
        assert len(refs.history(old.context.workspace, f"models/{MODEL}/{name}")) == 1, name


def test_a_replaced_champion_does_not_return_by_itself(old, register) -> None:
    first = register(1)
    settled(old, first)
    second = register(2, first[0])
    settled(old, second)
    again = register(1, second[0])  # judged anew against its successor, and better
    outcome = champion.settle(old, first[0], again[1])
    assert (outcome.promoted, outcome.is_champion) == (False, False)
    assert "does not return by itself" in outcome.reason
    assert champion_of(old.context.workspace) == second[0]


def test_a_report_against_another_champion_than_todays_decides_nothing(old, register) -> None:
    first = register(1)
    settled(old, first)
    late = register(2)  # judged when there was no champion
    outcome = settled(old, late)
    assert (outcome.promoted, outcome.is_champion) == (False, False)
    assert "another champion than today's" in outcome.reason
    assert champion_of(old.context.workspace) == first[0]


def test_promotion_that_is_blocked_moves_the_challenger_alone_and_says_why(old, register) -> None:
    held = ModelVersions(replace(old.context, blocked_promotion="not now"), lambda: old.client, MODEL, old.store)
    outcome = settled(held, register(1))
    assert not outcome.promoted and "not now" in outcome.reason
    assert champion_of(old.context.workspace) is None
    assert (alias(old, "challenger"), alias(old)) == ("1", None)


def test_a_kill_between_ref_and_alias_is_made_up_for_and_blamed_on_nobody(old, register) -> None:
    (one, _), (two, _) = register(1), register(2)
    crown(old, one)
    now = refs.current(old.context.workspace, model_refs.alias_ref(MODEL, "champion"))
    champion.set_champion(
        old.context, MODEL, two, expected=now, why="then the process was killed", detail={"version": "2"}
    )
    mlflow_aliases.sync_mlflow_aliases(old)
    assert alias(old) == "2"
    assert not moved(old.context)


def test_an_alias_moved_in_mlflow_is_reported_and_left_alone(old, register) -> None:
    (one, _), (two, _) = register(1), register(2)
    crown(old, one)
    old.client.set_registered_model_alias(MODEL, "champion", old.ensure(two))
    mlflow_aliases.sync_mlflow_aliases(old)
    assert alias(old) == "2"
    assert moved(old.context)


def test_an_alias_that_mlflow_lost_is_given_again(old, register) -> None:
    crown(old, register(1)[0])
    old.client.delete_registered_model_alias(MODEL, "champion")
    mlflow_aliases.sync_mlflow_aliases(old)
    assert alias(old) == "1"


def test_a_challenger_alias_moved_in_mlflow_is_reported_and_left_alone_also_where_none_is_to_have_it(
    old, register
) -> None:
    first = register(1)
    settled(old, first)
    settled(old, second := register(2, first[0]))
    old.client.set_registered_model_alias(MODEL, "challenger", "1")
    settled(old, second)
    assert (alias(old, "challenger"), alias(old)) == ("1", "2")
    (event,) = (e for e in read_events(old.context.scratch / "ledger.jsonl") if e["event"] == "alias.moved")
    assert "tiny@challenger was moved outside Headway: it is version 1, Headway's refs say none." in event["message"]


def test_a_champion_that_is_challenger_too_in_mlflow_was_left_so_by_an_overtaken_writer_and_is_mended(
    old, register
) -> None:
    """And so is every champion of a store that an earlier Headway wrote."""
    first = register(1)
    settled(old, first)
    old.client.set_registered_model_alias(MODEL, "challenger", "1")
    settled(old, first)
    assert (alias(old, "challenger"), alias(old)) == (None, "1")
    assert not moved(old.context)


def test_of_two_writers_that_saw_the_same_champion_one_wins(old, register) -> None:
    (one, _), (two, _), (three, _) = register(1), register(2), register(3)
    workspace, name = old.context.workspace, model_refs.alias_ref(MODEL, "champion")
    crown(old, one)
    seen = refs.current(workspace, name)
    crown(old, two)
    with pytest.raises(RefConflict):
        champion.set_champion(old.context, MODEL, three, expected=seen, why="the loser", detail={})
    assert champion_of(workspace) == two
    assert any(event["event"] == "promotion.lost" for event in read_events(old.context.scratch / "ledger.jsonl"))


def test_a_champion_that_came_between_judging_and_promoting_is_not_overwritten(old, register, monkeypatch) -> None:
    first = register(1)
    settled(old, first)
    (other, _), better = register(2, first[0]), register(3, first[0])
    judge = champion.decide_promotion

    def judged_slowly(*arguments, **named):
        decision = judge(*arguments, **named)
        crown(old, other)
        return decision

    monkeypatch.setattr(champion, "decide_promotion", judged_slowly)
    with pytest.raises(RefConflict):
        settled(old, better)
    assert champion_of(old.context.workspace) == other


def test_in_a_new_store_the_refs_stay_the_truth_and_the_aliases_follow_them(old, new, register) -> None:
    """The tracking URI was changed: the champion's version there is made, under the number that store gives it."""
    first = register(1)
    settled(old, first)
    settled(old, register(2, first[0], better=False))
    third = register(3, first[0], better=False)
    outcome = settled(new, third)
    workspace = old.context.workspace
    assert (outcome.version, outcome.is_champion) == ("1", False)
    assert champion_of(workspace) == first[0]
    assert (alias(new, "challenger"), alias(new)) == ("1", "2")
    assert new.client.get_model_version(MODEL, "2").tags["headway.registration"] == first[0].sha256
    assert len(refs.history(workspace, model_refs.alias_ref(MODEL, "champion"))) == 1
    assert (alias(old, "challenger"), alias(old)) == ("2", "1"), "the old store is left as it was"
    assert model_refs.resolve(workspace, "models:/tiny@champion") == (MODEL, "2", first[0])
    assert model_refs.resolve(workspace, "models:/tiny/1") == (MODEL, "1", third[0])
    assert {entry.reason for entry in model_refs.versions(workspace, MODEL)} == {"registered"}
    assert not moved(old.context)


def test_back_in_the_old_store_every_version_is_found_again(old, new, register) -> None:
    first = register(1)
    for versions in (old, new, old):
        settled(versions, first)
    workspace = old.context.workspace
    last = model_refs.last_entry(workspace, MODEL, first[0])
    assert last is not None and last.detail == {"version": "1", "tracking_uri": old.store}
    assert {len(versions.client.search_model_versions(f"name = '{MODEL}'")) for versions in (old, new)} == {1}
    assert not moved(old.context)


def test_a_champion_named_in_the_new_store_by_others_is_reported_and_left_alone(old, new, register) -> None:
    first = register(1)
    settled(old, first)
    new.client.create_registered_model(MODEL)
    theirs = new.client.create_model_version(MODEL, source=Path("/nowhere").as_uri())
    new.client.set_registered_model_alias(MODEL, "champion", theirs.version)
    settled(new, first)
    assert alias(new) == str(theirs.version)
    assert moved(old.context)
