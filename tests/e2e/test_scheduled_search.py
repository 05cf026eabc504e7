"""A search that windows begin by themselves, after their retrain."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from headway.data_contracts.store.documents import Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.request import RetrainRequest
from headway.flows.show.status import read_kept
from headway.tasks.ownership.pipeline_history import read
from headway.training.observe.ledger import Event
from tests.e2e.project import Project
from tests.e2e.test_windows import WINDOWS, change_the_data, open_window

RATES = (0.002, 0.03)


def ask_for_searches(project: Project) -> None:
    with project.pipeline.open("a") as file:
        file.write(f"trials: {{vary: {{optimizer.lr: {list(RATES)}}}, rungs: [10], min_starts: 0, every: quarter}}\n")
        file.write(WINDOWS)
    project.edit("tiny.yaml", "{bootstrap_resamples: 100}", "{bootstrap_resamples: 100, ranking_share: 0.5}")
    project.edit("tiny.yaml", "max_steps: 120", "max_steps: 20")
    asked = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
    open_window(asked, datetime.timedelta(hours=1))


def steps(events: list[Event]) -> list[tuple[str, int]]:
    return [(str(event.get("trial", "")), int(event["step"])) for event in events if event["event"] == "step"]


def named(events: list[Event], name: str) -> list[str]:
    return [str(event["message"]) for event in events if event["event"] == name]


@pytest.mark.long
def test_a_search_that_a_window_cuts_is_continued_after_the_next_windows_retrain_on_the_data_it_began_with(
    new_project: Project, retrain_here: Any
) -> None:
    ask_for_searches(new_project)
    workspace = Workspace(str(new_project.workspace))

    def close_the_window(event: Event) -> None:
        if event["event"] == "rung":
            raise RunStopped("the window is over.", reason="window closed")

    by_hand, events = retrain_here(new_project)
    assert not named(events, "search.started") and read(workspace, "tiny").search is None

    first, events = retrain_here(new_project, in_window=True, watching=close_the_window)
    assert first.version == by_hand.version, "the retrain's own model comes first, whatever becomes of the search"
    assert len(named(events, "search.started")) == len(named(events, "search.cut")) == 1
    assert steps(events) == [(f"trial {number}", step) for number in (1, 2) for step in range(1, 11)]
    started = read(workspace, "tiny").search
    assert started is not None and started.state == "started" and started.manifest is not None

    assert [each.pipeline for each in read_kept(workspace).searching] == ["tiny"]
    (page,) = (path.read_text() for path in new_project.files("ledger/*/trials.html"))
    assert "<h1>Stopped: the window is over.</h1>" in page and "at step 10" in page

    change_the_data(new_project)
    kept, events = retrain_here(new_project, in_window=True)
    own = [step for trial, step in steps(events) if not trial]
    assert own == list(range(1, 21)), "first the newest data, with the file's settings"
    assert [each for each in steps(events) if each[0]] == [("trial 2", step) for step in range(11, 21)]
    (message,) = named(events, "search.ended")
    assert "keep trial 2 by training: {optimizer: {lr: 0.03}}" in message
    runs = [Link(kind="run", sha256=name.removesuffix(".json")) for name in workspace.names("documents/run")]
    described = [workspace.load(link, RunSpec) for link in runs]
    trials = [each for each in described if each.config["optimizer"]["lr"] in RATES]
    assert {each.manifest for each in trials} == {started.manifest} and len(trials) == 2
    (ranking,) = (json.loads(path.read_text()) for path in new_project.files("ledger/*/trials.json"))
    assert ranking["best"]["version"] == kept.version != first.version
    snapshot = workspace.load(started.manifest, ShardManifest).snapshot
    assert ranking["data"] == {"snapshot": snapshot.sha256, "unix_s": started.started_unix_s}

    over = read(workspace, "tiny").search
    assert not read_kept(workspace).searching
    assert over is not None and over.state == "ended" and over.manifest is None
    assert over.started_unix_s == started.started_unix_s

    _, events = retrain_here(new_project, in_window=True)
    assert not named(events, "search.started") and not steps(events)
    (message,) = named(events, "search.kept")
    assert message.endswith(": training: {optimizer: {lr: 0.03}}"), "of which the file says nothing yet"


@pytest.mark.long
def test_a_search_that_a_person_stops_is_not_continued_by_the_next_window(
    new_project: Project, retrain_here: Any
) -> None:
    ask_for_searches(new_project)

    def stop(event: Event) -> None:
        if event["event"] == "search.started":
            raise RunStopped("enough.", reason="requested")

    with pytest.raises(RunStopped, match="enough"):
        retrain_here(new_project, in_window=True, watching=stop)
    search = read(Workspace(str(new_project.workspace)), "tiny").search
    assert search is not None and search.state == "stopped"
    made, events = retrain_here(new_project, in_window=True)
    assert made.version and not named(events, "search.started")
