"""Writers on two hosts promote and roll back at once: one champion at any moment, no move lost, all in the history.

With `HEADWAY_RACE_MOVES=50` each of four writers moves the champion fifty times; otherwise the race is a short one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.registry import mlflow_store, model_refs
from headway.tasks.registry.champion import move_alias, set_champion
from headway.tasks.registry.mlflow_aliases import sync_mlflow_aliases
from headway.tasks.registry.model_versions import ModelVersions
from tests.warm_programs import Program

MODEL = "tiny"
WRITER = Path(__file__).with_name("champion_writer.py")
REPOSITORY = Path(__file__).resolve().parents[3]
MOVES = int(os.environ.get("HEADWAY_RACE_MOVES", "4"))
IN_EARNEST = "HEADWAY_RACE_MOVES" in os.environ
DEADLINE_S = 60.0 + 60.0 * MOVES
CHAMPION = model_refs.alias_ref(MODEL, "champion")


pytestmark = pytest.mark.process


@pytest.fixture(params=["folder", "s3"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    places = {
        "folder": lambda: str(tmp_path / "workspace"),
        "s3": lambda: f"s3://{request.getfixturevalue('new_bucket')()}/team",
    }
    return Workspace.create(places[request.param]())


class Race:
    """Writers that start together, two on each host: another working folder, home and local side."""

    def __init__(self, workspace: Workspace, folder: Path, store: str, writers: int, moves: int) -> None:
        self.workspace, self.go, self.seen = workspace, folder / "go", dict[int, Link]()
        hosts = [folder / f"host-{number % 2}" for number in range(writers)]
        for host in hosts:
            host.mkdir(exist_ok=True)
        self.message = [host / f"said-{number}.json" for number, host in enumerate(hosts)]
        self.writers = Program(
            [sys.executable, WRITER, workspace.uri, MODEL, store, moves, self.go, *hosts],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )

    def run(self) -> list[dict[str, Any]]:
        """What each writer says it did; meanwhile a reader looks who is champion."""
        assert self.writers.stdout is not None
        assert self.writers.stdout.readline() == "ready\n", self.writers.communicate()
        self.go.touch()
        last = 0
        while self.writers.poll() is None:
            looked_s = time.monotonic()
            now = refs.current(self.workspace, CHAMPION)
            assert now is not None and now.number >= last, "the history went backwards"
            last = now.number
            assert self.seen.setdefault(now.number, now.target) == now.target, "two champions"
            time.sleep(0.02 + 4 * (time.monotonic() - looked_s))  # the writers need processor and store as well
        assert self.writers.returncode == 0, self.writers.communicate(timeout=DEADLINE_S)
        return [json.loads(message.read_bytes()) for message in self.message]

    def end(self) -> None:
        if self.writers.poll() is None:  # else all of them have ended
            os.killpg(self.writers.pid, signal.SIGKILL)
        self.writers.communicate()


@pytest.fixture
def start() -> Iterator[Any]:
    races: list[Race] = []

    def started(*arguments: Any) -> Race:
        races.append(Race(*arguments))
        return races[-1]

    yield started
    for race in races:
        race.end()


def crowned(workspace: Workspace, links: list[Link]) -> None:
    """Versions 1, 2, ... and a first champion for the writers to move."""
    entry = None
    for number, link in enumerate(links, 1):
        detail = {"version": str(number), model_refs.STORE: ""}
        entry = refs.move(
            workspace, model_refs.versions_ref(MODEL), link, expected=entry, reason="registered", detail=detail
        )
    first = {"version": "1", "how": "promote", "by": "a test", "from": None}
    refs.move(workspace, CHAMPION, links[0], expected=None, reason="first", detail=first)


def require_complete(workspace: Workspace, told: list[dict[str, Any]], moves: int, seen: dict[int, Link]) -> None:
    history = refs.history(workspace, CHAMPION)
    made = sorted(move for each in told for move in each["made"])
    assert len(history) == 1 + moves * len(told), "as many entries as moves that were said to be made"
    assert [number for number, *_ in made] == list(range(2, len(history) + 1)), "each made by one writer"
    for before, entry, (_, came_from, target, how) in zip(history, history[1:], made, strict=False):
        assert entry.detail["from"] == came_from == before.target.sha256, entry.number
        assert (entry.target.sha256, entry.detail["how"]) == (target, how)
    for number, target in seen.items():
        assert history[number - 1].target == target


@pytest.mark.long
def test_of_racing_promotions_and_rollbacks_none_is_lost(workspace: Workspace, start: Any, tmp_path: Path) -> None:
    crowned(workspace, [Link(kind="registration", sha256=f"{number:064x}") for number in range(1, 6)])
    race = start(workspace, tmp_path, "", 4, MOVES)
    told = race.run()
    print([each["lost"] for each in told], "moves were refused")
    require_complete(workspace, told, MOVES, race.seen)


# In a folder they take turns, by a lock that the race above has as well.
@pytest.mark.long
@pytest.mark.parametrize("workspace", ["s3", pytest.param("folder", marks=pytest.mark.soak)], indirect=True)
def test_the_aliases_in_mlflow_end_where_the_last_of_the_racing_moves_put_the_champion(
    workspace: Workspace, context: RunContext, start: Any, register: Any, tmp_path: Path, mlflow_tables: Path
) -> None:
    """In a bucket the hosts' locks don't reach each other: their projections cross. In a folder they take turns.

    The newest candidate is one of those that the writers make champion, and challenger in between.
    """
    store = f"{mlflow_store.SQLITE}{shutil.copy(mlflow_tables, tmp_path)}"
    client = mlflow_store.connect(store)
    links = [register(number)[0] for number in range(3)]
    versions = ModelVersions(context, lambda: client, MODEL, store)
    for link in links:
        versions.ensure(link)
    move_alias(context, MODEL, "challenger", links[2], reason="newest candidate", detail={"version": "3"})
    set_champion(context, MODEL, links[0], expected=None, why="first", detail={"version": "1", "how": "promote"})
    sync_mlflow_aliases(versions)
    writers, moves = (4, MOVES) if IN_EARNEST else (2, 2)  # each starts by importing MLflow, which takes seconds
    race = start(workspace, tmp_path, store, writers, moves)
    told = race.run()
    require_complete(workspace, told, moves, race.seen)
    now = refs.current(workspace, CHAMPION)
    assert now is not None
    assert mlflow_store.alias_version(client, MODEL, "champion") == model_refs.version_of(workspace, MODEL, now.target)
    challenger = None if now.target == links[2] else "3"
    assert mlflow_store.alias_version(client, MODEL, "challenger") == challenger
    assert [each["stray"] for each in told] == [[]] * writers, "nobody's move is taken for a stranger's"
    assert len(client.search_model_versions(f"name = '{MODEL}'")) == len(links)
