"""A version is challenger only while it is not the champion, in MLflow and in what Headway says.

The ref `challenger` stays at the newest candidate, which gets the alias back once another version is champion.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import ConfigError
from headway.flows.show.status import read_status
from headway.tasks.registry import champion, champion_moves, mlflow_store, model_refs, retirement
from headway.tasks.registry.model_versions import ModelVersions
from headway.training.observe.ledger import read_events
from tests.tasks.registry.champion_by_hand import DEFAULT, MODEL, back, champion_of, promote


def aliases(versions: ModelVersions) -> tuple[str | None, str | None]:
    """Challenger and champion, as MLflow has them."""
    challenger, first = (
        mlflow_store.alias_version(versions.client, MODEL, each) for each in ("challenger", "champion")
    )
    return challenger, first


def strangers(versions: ModelVersions) -> list[str]:
    """What was reported of aliases that were moved outside Headway."""
    events = read_events(Path(versions.context.scratch) / "ledger.jsonl")
    return [event["message"] for event in events if event["event"] == "alias.moved"]


def another(versions: ModelVersions) -> ModelVersions:
    """Another writer, on a host whose locks do not reach this one."""
    return ModelVersions(versions.context, lambda: versions.client, MODEL, versions.store)


@pytest.fixture
def beaten(versions: ModelVersions, register: Any) -> tuple[Link, Link]:
    """Version 1, the champion, and version 2, which is better, and nobody has promoted yet."""
    first, second = register(1), register(2)
    champion.settle(versions, *first)
    champion.settle(versions, second[0], register(2, first[0], better=False)[1])
    assert aliases(versions) == ("2", "1")
    return first[0], second[0]


def by_hand(versions: ModelVersions, target: Link) -> None:
    promote(versions, target, override="a test")


def test_the_alias_goes_at_promotion_and_comes_back_when_another_is_champion(versions, beaten) -> None:
    first, second = beaten
    by_hand(versions, second)
    assert aliases(versions) == (None, "2")
    back(versions)
    assert aliases(versions) == ("2", "1")
    by_hand(versions, second)
    assert aliases(versions) == (None, "2")
    by_hand(versions, first)
    assert aliases(versions) == ("2", "1")
    assert strangers(versions) == []


def test_at_no_moment_does_the_page_of_a_champion_say_challenger_too(versions, beaten, settle, monkeypatch) -> None:
    first, second = beaten
    client, seen = versions.client, []
    for name in ("set_registered_model_alias", "delete_registered_model_alias"):
        write = getattr(client, name)
        monkeypatch.setattr(client, name, lambda *to, write=write: (write(*to), seen.append(aliases(versions))))
    by_hand(versions, second)
    back(versions)
    settle(3, first)
    assert seen == [(None, "1"), (None, "2"), (None, "1"), ("2", "1"), (None, "1"), (None, "3")]


def test_headway_names_a_challenger_only_while_it_is_not_the_champion(versions, beaten) -> None:
    workspace, uri = versions.context.workspace, f"models:/{MODEL}@challenger"

    def status() -> str | None:
        (model,) = read_status(workspace.uri).models
        return model.challenger

    assert model_refs.resolve(workspace, uri) == (MODEL, "2", beaten[1]) and status() == "2"
    by_hand(versions, beaten[1])
    with pytest.raises(ConfigError, match=r"'tiny' has no challenger: its newest version is the champion") as refused:
        model_refs.resolve(workspace, uri)
    assert refused.value.advice == "Write models:/tiny@champion." and status() is None
    back(versions)
    assert model_refs.resolve(workspace, uri) == (MODEL, "2", beaten[1]) and status() == "2"


@contextlib.contextmanager
def refusing(store: str, write: str) -> Iterator[None]:
    """MLflow's database, which takes no such write to an alias meanwhile."""
    trigger = (
        f"create trigger refused before {write} on registered_model_aliases "
        "begin select raise(abort, 'out of order'); end"
    )
    with contextlib.closing(sqlite3.connect(store.removeprefix(mlflow_store.SQLITE), isolation_level=None)) as database:
        database.execute(trigger)
        try:
            yield
        finally:
            database.execute("drop trigger refused")


BETWEEN = {
    "a promotion, before the challenger's alias was taken": (False, "delete", ("2", "1"), (None, "2")),
    "a promotion, before the champion's was moved": (False, "update", (None, "1"), (None, "2")),
    "a rollback, before the challenger's was given": (True, "insert", (None, "1"), ("2", "1")),
}


@pytest.mark.parametrize("case", BETWEEN)
def test_an_outage_of_mlflow_in_between_is_made_up_for_by_the_next_retrain(versions, register, beaten, case) -> None:
    is_rollback, write, behind, after = BETWEEN[case]
    if is_rollback:
        by_hand(versions, beaten[1])
    with pytest.raises(MlflowException, match="out of order"), refusing(versions.store, write):
        back(versions) if is_rollback else by_hand(versions, beaten[1])
    assert aliases(versions) == behind
    for _ in range(2):
        champion.settle(versions, beaten[1], register(2, beaten[0])[1])
        assert aliases(versions) == after
    assert strangers(versions) == []


def refused_again(versions: ModelVersions, three: list[Link]) -> None:
    with pytest.raises(ConfigError, match="is the champion of 'tiny' already"):
        by_hand(versions, three[0])


NEXT: dict[str, Callable[[ModelVersions, list[Link]], object]] = {
    "the same move again": refused_again,
    "a refusal": lambda versions, three: champion_moves.refuse(
        versions, three[1], why="it leaks", by="ada@desk", policy=DEFAULT
    ),
    "a retirement": lambda versions, three: retirement.retire(versions, three[1], why="old", by="ada@desk"),
    "another promotion": lambda versions, three: by_hand(versions, three[1]),
}


@pytest.mark.parametrize("comes", NEXT)
def test_whoever_comes_next_gives_back_what_an_outage_kept_from_the_challenger(versions, settle, comes: str) -> None:
    one = settle(1)
    three = [one, settle(2, one, better=False), settle(3, one)]
    with pytest.raises(MlflowException, match="out of order"), refusing(versions.store, "insert"):
        back(versions)
    assert aliases(versions) == (None, "1")
    NEXT[comes](versions, three)
    assert aliases(versions) == ("3", "2" if comes == "another promotion" else "1")
    assert strangers(versions) == []


class OvertakenError(Exception):
    """In place of a kill."""


@pytest.mark.parametrize("killed", [False, True], ids=["and looks again", "and is killed"])
def test_a_challengers_alias_that_is_given_while_it_wins_again_is_taken_from_it(
    versions, register, beaten, monkeypatch, killed: bool
) -> None:
    by_hand(versions, beaten[1])
    give, overtaken = versions.client.set_registered_model_alias, []

    def late(*arguments: str) -> None:
        if arguments[1] == "challenger" and not overtaken:
            overtaken.append(True)
            by_hand(another(versions), beaten[1])
        give(*arguments)
        if arguments[1] == "challenger" and killed:
            raise OvertakenError

    monkeypatch.setattr(versions.client, "set_registered_model_alias", late)
    with pytest.raises(OvertakenError) if killed else contextlib.nullcontext():
        back(versions)
    assert overtaken and champion_of(versions.context.workspace).target == beaten[1]
    if killed:
        assert aliases(versions) == ("2", "2")
        champion.settle(versions, beaten[1], register(2, beaten[0])[1])
    assert aliases(versions) == (None, "2")
    assert strangers(versions) == []


@pytest.mark.parametrize("killed", [False, True], ids=["and looks again", "and is killed"])
def test_a_challengers_alias_that_is_taken_while_it_is_rolled_back_is_given_to_it_again(
    versions, register, beaten, monkeypatch, killed: bool
) -> None:
    take, overtaken = versions.client.delete_registered_model_alias, []

    def late(*arguments: str) -> None:
        if not overtaken:
            overtaken.append(True)
            back(another(versions))
        take(*arguments)
        if killed:
            raise OvertakenError

    monkeypatch.setattr(versions.client, "delete_registered_model_alias", late)
    with pytest.raises(OvertakenError) if killed else contextlib.nullcontext():
        by_hand(versions, beaten[1])
    assert overtaken and champion_of(versions.context.workspace).target == beaten[0]
    if killed:
        champion.settle(versions, beaten[1], register(2, beaten[0])[1])
    assert aliases(versions) == ("2", "1")
    assert strangers(versions) == []


def test_a_champion_that_moves_between_the_two_aliases_leaves_neither_behind(versions, beaten, monkeypatch) -> None:
    """Another writer moved it, and was killed before it came to MLflow."""
    by_hand(versions, beaten[1])
    give, overtaken = versions.client.set_registered_model_alias, []

    def slowly(*arguments: str) -> None:
        give(*arguments)
        if not overtaken:
            overtaken.append(arguments[1])
            now, detail = champion_of(versions.context.workspace), {"version": "2", "how": "promote", "by": "another"}
            champion.set_champion(versions.context, MODEL, beaten[1], expected=now, why="again", detail=detail)

    monkeypatch.setattr(versions.client, "set_registered_model_alias", slowly)
    back(versions)
    assert overtaken == ["champion"] and aliases(versions) == (None, "2")


def test_a_strangers_challenger_gives_way_to_what_a_person_asks_headway_for(versions, beaten) -> None:
    versions.client.set_registered_model_alias(MODEL, "challenger", "1")
    by_hand(versions, beaten[1])
    assert aliases(versions) == (None, "2")
    assert strangers(versions) == [
        "MLflow's alias tiny@challenger was moved outside Headway: it is version 1, and is taken away now."
    ]
    versions.client.set_registered_model_alias(MODEL, "challenger", "1")
    back(versions)
    assert aliases(versions) == ("2", "1")
    assert strangers(versions)[1:] == [
        "MLflow's alias tiny@challenger was moved outside Headway: it is version 1, and is set to 2 now."
    ]
