"""A watch on a real server: one retrain for one need, none lost or beside another; and an event from end to end."""

from __future__ import annotations

import contextvars
import datetime
import io
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.request import RetrainRequest
from headway.flows.deploy.deploying import deploy
from headway.flows.prefect_api.devices import CountedDevices
from headway.flows.show.decisions import open_until, skip
from headway.flows.watch import WatchOutcome, WatchRequest, watch_once
from headway.flows.windows.admission import open_pipeline
from headway.tasks.ownership.pipeline_history import read
from headway.training.launch.base.stop_request import NEVER
from headway.training.observe.ledger import Ledger

from .conftest import POLL_EVERY_S, end, wait_until

PROFILES = """
project: watched
profiles:
  production: {pool: {name: watched}, suffix: -watched, env: {HEADWAY_WORKSPACE: KEPT}, limits: {gpus: 1}}
"""
TRIGGERS = "\ntriggers: {new_data: {files: 0.1}, event: watched.exported, check_every: 1d}\noccupies: {gpus: 1}\n"
WINDOWS = '\nwindows: {time_zone: UTC, open: [{start: "01:00", end: "05:00"}]}\n'
MARK = "headway:watched:production"
DAY = datetime.timedelta(days=1)


class Watched:
    """A project of two pipelines, `tiny` with triggers, deployed; its runs are set in motion by hand."""

    def __init__(self, service: Any, folder: Path) -> None:
        self.service, self.folder = service, folder
        self.started = datetime.datetime.now(datetime.UTC)
        self.workspace = Workspace.create(str(folder / "workspace"))

    def deploy(self) -> list[str]:
        made = deploy(self.folder, "production", console=Console(file=io.StringIO()))
        return [str(change) for change in made.changes]

    def id(self, name: str) -> str:
        return str(self.service.api(f"deployments/name/{name}")["id"])

    def watch(self) -> WatchOutcome:
        return watch_once(WatchRequest(pipeline="tiny", retrain="retrain/tiny-watched", workspace=self.workspace.uri))

    def runs(self, name: str = "retrain/tiny-watched") -> list[dict[str, Any]]:
        """Oldest first."""
        requested = {"deployments": {"id": {"any_": [self.id(name)]}}}
        found: list[dict[str, Any]] = self.service.api("flow_runs/filter", requested)
        return sorted(found, key=lambda run: run["created"])

    def forget_runs(self, name: str) -> None:
        """But those that a schedule has planned."""
        if name in self.names():
            for run in self.runs(name):
                if not run["auto_scheduled"]:
                    self.set(run["id"], "CANCELLED")  # so that it keeps no place of its deployment
                    self.service.api(f"flow_runs/{run['id']}", method="DELETE")

    def names(self) -> set[str]:
        """Of deployments."""
        flows = {each["id"]: each["name"] for each in self.service.api("flows/filter", {})}
        found = self.service.api("deployments/filter", {})
        return {f"{flows[each['flow_id']]}/{each['name']}" for each in found}

    def run(self, name: str) -> str:
        return str(self.service.api(f"deployments/{self.id(name)}/create_flow_run", {})["id"])

    def set(self, run: str, type: str, **details: Any) -> str:
        """The state that came of it."""
        given = {"state": {"type": type, **details}, "force": type not in ("PENDING", "RUNNING")}
        self.service.api(f"flow_runs/{run}/set_state", given)
        return str(self.service.state(run)["type"])

    def emit(self, name: str) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat()
        resource = {"prefect.resource.id": "shop.exports"}
        event = {"event": name, "occurred": now, "resource": resource, "id": str(uuid.uuid4())}
        self.service.api("events", [event])

    def fired(self) -> list[str]:
        """Automations of ours that fired since this test began, in no order."""
        requested = {
            "event": {"name": ["prefect.automation.triggered"]},
            "occurred": {"since": self.started.isoformat()},
        }
        events = self.service.api("events/filter", {"filter": requested})
        names = (each["resource"]["prefect.resource.name"] for each in events["events"])
        return [name for name in names if name.startswith("watched ")]


@pytest.fixture(scope="module")
def deployed_once(service: Any, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the project: to deploy costs more than most of the tests do afterwards."""
    folder = tmp_path_factory.mktemp("triggers") / "watched"
    shutil.copytree(project, folder)
    (folder / "deployments" / "refused.yaml").unlink()
    (folder / "deployments" / "profiles.yaml").write_text(PROFILES.replace("KEPT", str(folder / "workspace")))
    with (folder / "deployments" / "tiny.yaml").open("a") as file:
        file.write(TRIGGERS)
    with service.configured():
        Watched(service, folder).deploy()
    yield folder
    with service.configured():
        for path in ("automations", "deployments", "v2/concurrency_limits", "work_pools"):
            for each in service.api(f"{path}/filter", {}):
                if "headway:watched:" in str(each):
                    service.api(f"{path}/{each['name'] if path == 'work_pools' else each['id']}", method="DELETE")


@pytest.fixture
def watched(service: Any, deployed_once: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """As if nothing had run yet, with a workspace that is new and sources and pipelines as they were."""
    folder, tiny = deployed_once, deployed_once / "deployments" / "tiny.yaml"
    monkeypatch.setenv("HEADWAY_PROJECT", str(folder))
    before, sources = tiny.read_text(), {*(folder / "sources").iterdir()}
    made = Watched(service, folder)
    with service.configured():
        yield made
        for name in ("retrain/tiny-watched", "retrain/endless-watched", "watch/tiny-watched"):
            made.forget_runs(name)
        if tiny.read_text() != before:
            tiny.write_text(before)
            made.deploy()
    for path in {*(folder / "sources").iterdir()} - sources:
        path.unlink()
    shutil.rmtree(made.workspace.uri)


def test_deployed_twice_the_second_time_changes_nothing(watched: Watched) -> None:
    assert watched.deploy() == []
    look = watched.service.api("deployments/name/watch/tiny-watched")
    (schedule,) = look["schedules"]
    assert schedule["schedule"]["interval"] == 86_400
    text = (watched.folder / "deployments" / "tiny.yaml").read_text()
    (watched.folder / "deployments" / "tiny.yaml").write_text(text.replace(TRIGGERS, "\noccupies: {gpus: 1}\n"))
    gone = ["remove automation watched production: watched.exported for tiny", "remove deployment watch/tiny-watched"]
    assert watched.deploy() == ["change deployment retrain/tiny-watched", *gone]


def test_watchers_at_once_and_repeated_ask_for_one_retrain(watched: Watched) -> None:
    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(contextvars.copy_context().run, watched.watch) for _ in range(4)]
        message = [each.result() for each in looks]
    (run,) = watched.runs()
    # Who looks while the run of another is there already waits for it.
    assert {each.state for each in message} <= {"Requested", "WaitingForRun"} and "Requested" in {
        each.state for each in message
    }
    assert watched.watch().state == "WaitingForRun" and len(watched.runs()) == 1
    requested = run["parameters"]["request"]
    assert requested["note"].startswith("new data: files") and not requested["in_window"]
    history = read(watched.workspace, "tiny")
    assert history.event == "asked" and history.requested is not None and history.requested.why in requested["note"]
    assert len(watched.workspace.names("refs/pipelines/tiny")) == 1


@pytest.mark.parametrize(
    ("ended", "message", "outcome", "num_runs"),
    [
        ("CRASHED", "the worker is gone", "Requested", 2),
        ("CANCELLED", "Deployment concurrency limit reached.", "Requested", 2),
        ("COMPLETED", "its window closed", "Requested", 2),
        ("CANCELLED", "by a person", "PreviousRequestFailed", 1),
        ("Stopped", "by a person", "PreviousRequestFailed", 1),
        ("FAILED", "the data break their contract", "PreviousRequestFailed", 1),
        ("Infrastructure", "rank 1 vanished", "Requested", 2),
    ],
)
def test_what_came_to_nothing_is_asked_again_and_what_failed_is_not(
    watched: Watched, ended: str, message: str, outcome: str, num_runs: int
) -> None:
    assert watched.watch().state == "Requested"
    types = {"Stopped": "COMPLETED", "Infrastructure": "FAILED"}
    named = {"name": ended, "type": types[ended]} if ended in types else {"type": ended}
    watched.set(watched.runs()[0]["id"], **named, message=message)
    assert watched.watch().state == outcome
    assert len(watched.runs()) == num_runs
    # Data that are new enough are another need.
    for number in range(8):
        (watched.folder / "sources" / f"new{number}.py").write_text("x = 1\n")
    assert watched.watch().state == ("WaitingForRun" if num_runs == 2 else "Requested")


def test_while_a_retrain_goes_on_or_starts_in_a_moment_nothing_is_asked_for(watched: Watched) -> None:
    by_hand = watched.run("retrain/tiny-watched")
    assert watched.watch().state == "WaitingForRun"  # due to start
    for state in ("PENDING", "RUNNING"):
        watched.set(by_hand, state)
        assert watched.watch().state == "WaitingForRun"
    assert len(watched.runs()) == 1 and read(watched.workspace, "tiny").requested is None
    watched.set(by_hand, "FAILED")
    assert watched.watch().state == "Requested"


def test_outside_its_windows_it_waits_for_the_next_and_inside_it_asks_to_keep_to_them(watched: Watched) -> None:
    with (watched.folder / "deployments" / "tiny.yaml").open("a") as file:
        file.write(WINDOWS)
    now = datetime.datetime.now(datetime.UTC)

    def pipeline() -> Any:
        return open_pipeline(RetrainRequest(pipeline="tiny", workspace=watched.workspace.uri))

    skip(pipeline(), now, until=(now + DAY).isoformat(), skip_next=False, why="the cluster moves")
    waits = watched.watch()
    assert waits.state == "WaitingForWindow"
    assert (
        "new data" in waits.message and "the cluster moves" in waits.message and "next window opens at" in waits.message
    )
    assert watched.runs() == [] and read(watched.workspace, "tiny").requested is None
    open_until(pipeline(), now, until=(now + DAY).isoformat(), why="now after all")
    assert watched.watch().state == "Requested"
    assert watched.runs()[0]["parameters"]["request"]["in_window"]


def test_a_start_that_is_looked_after_is_not_reported_as_lost(watched: Watched) -> None:
    for name in ("retrain/tiny-watched", "watch/tiny-watched", "retrain/endless-watched"):
        one, other = watched.run(name), watched.run(name)
        assert [watched.set(each, "PENDING") for each in (one, other)] == ["PENDING", "CANCELLED"]
    # Events are judged in order: the last one's is heard when those before it have been.
    wait_until(watched.fired, 120, "the lost start of retrain/endless-watched", every_s=POLL_EVERY_S)
    assert watched.fired() == ["watched production: lost starts"]


def test_a_deployment_that_is_not_there_is_named(watched: Watched) -> None:
    with pytest.raises(ConfigError, match="headway deploy"):
        watch_once(WatchRequest(pipeline="tiny", retrain="retrain/gone", workspace=watched.workspace.uri))


@pytest.fixture
def worker(watched: Watched) -> Iterator[subprocess.Popen[bytes]]:
    cwd = watched.folder.parent
    command = ("worker", "start", "--pool", "watched")
    process = watched.service.start(*command, cwd=cwd, log=cwd / "worker.log", is_fresh=False)
    yield process
    end(process)


def test_an_event_starts_one_retrain_that_says_why_and_waits_for_its_devices(
    watched: Watched, worker: subprocess.Popen[bytes]
) -> None:
    def taken(limit: str) -> bool:
        return bool(watched.service.api(f"v2/concurrency_limits/{MARK}:gpus{limit}")["active_slots"])

    other = CountedDevices(
        slots={"gpus": 1}, priority=0, prefix=MARK, ledger=Ledger(watched.folder / "other.jsonl"), stop=NEVER
    )
    other.take()
    watched.emit("watched.exported")

    def looks() -> list[dict[str, Any]]:
        """Besides those that the schedule has planned."""
        return [run for run in watched.runs("watch/tiny-watched") if not run["auto_scheduled"]]

    (look,) = wait_until(looks, 300, "the watch that the event starts", every_s=POLL_EVERY_S)
    assert watched.service.wait_for_end(look["id"], 300)["name"] == "Requested"
    (run,) = watched.runs()
    wait_until(lambda: taken(":waiting:0"), 300, "the retrain waits for the device", every_s=POLL_EVERY_S)
    assert not list((watched.folder / "workspace").glob("runs/*/attempts"))  # sharded, and no rank started
    other.release()
    ended = watched.service.wait_for_end(run["id"], 600)
    assert ended["name"] == "Completed", ended
    assert "event: watched.exported" in run["parameters"]["request"]["note"]
    assert not taken("") and not taken(":waiting:0")
    history = read(watched.workspace, "tiny")
    assert history.requested is None and history.finished is not None and history.snapshot is not None
    assert watched.watch() == WatchOutcome("NotDue", "nothing is over its limit")
    wait_until(lambda: not watched.service.flow_processes(), 300, "the end of the retrain's process")
    message = (watched.folder.parent / "worker.log").read_text()
    assert "register tiny" in message and "leaked" not in message, (
        "it ends in order, and no library complains of its end"
    )
