"""Starts that an outage left behind, on a real server and worker, and triggers at once: one run comes of them.

The run that comes trains for hours, so that its worker can be killed in the middle of it.
"""

from __future__ import annotations

import datetime
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.prefect.conftest import POLL_EVERY_S, QUEUE, halted_ranks, send, steps_in, working
from tests.waiting import wait_until

NOW = datetime.datetime.now(datetime.UTC)
DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)
OPENS = (NOW - HOUR).replace(minute=0, second=0, microsecond=0)
CLOSES = OPENS + 12 * HOUR
WINDOWS = f"""
windows: {{time_zone: UTC, open: [{{start: "{OPENS:%H:%M}", end: "{CLOSES:%H:%M}"}}], margin_s: 60, min_useful_s: 60}}
"""
NOBODYS = "nobody-s"
"""A queue of the pool that no worker looks at."""


class Starts:
    """Flow runs of a deployment of a limit of one, for a pipeline with windows of its own that is open."""

    def __init__(self, service: Any, project: Path, name: str) -> None:
        self.service, self.deployment = service, service.api(f"deployments/name/{name}")
        self._env = self.deployment["job_variables"]["env"] | {"HEADWAY_PROJECT": str(project)}
        assert self.deployment["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"

    def due(self, at: datetime.datetime, queue: str) -> str:
        """A start as the schedule makes them, due at a moment; its id."""
        body = {
            "parameters": {"request": {"pipeline": "nightly", "in_window": True}},
            "job_variables": {"env": self._env},
            "work_queue_name": queue,
            "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": at.isoformat()}},
        }
        return str(self.service.api(f"deployments/{self.deployment['id']}/create_flow_run", body)["id"])

    def names(self, runs: list[str]) -> list[str]:
        """Names of the states in which they are."""
        return sorted(self.service.state(run)["name"] for run in runs)

    def set(self, run: str, type: str, *, force: bool = False) -> None:
        self.service.api(f"flow_runs/{run}/set_state", {"state": {"type": type}, "force": force})


@dataclass(frozen=True)
class Late:
    """What a worker does that comes after three starts were due, each in a window that is over; now one is open."""

    worker: subprocess.Popen[bytes]
    states: list[str]
    """Of the three starts, when one of them trains."""
    ran: str
    """The one that does."""
    ranks: list[int]
    """Its own, which stand still."""


@pytest.fixture(scope="module")
def starts(deployed: Any, project: Path) -> Starts:
    text = (project / "deployments" / "endless.yaml").read_text().replace("endless\n", "nightly\n")
    (project / "deployments" / "nightly.yaml").write_text(text + WINDOWS)
    return Starts(deployed, project, "retrain/digits")


@pytest.fixture(scope="module")
def late(starts: Starts) -> Iterator[Late]:
    runs = [starts.due(OPENS - days * DAY, QUEUE) for days in (3, 2, 1)]
    workspace = starts.service.folder / "workspace"
    before = steps_in(workspace)
    with working(starts.service, is_fresh=False) as worker:
        wait_until(lambda: steps_in(workspace) > before, 600, "the first steps", every_s=POLL_EVERY_S)
        with halted_ranks(workspace) as ranks:
            (ran,) = (run for run in runs if starts.service.state(run)["type"] == "RUNNING")
            yield Late(worker, starts.names(runs), ran, ranks)
    starts.set(ran, "CRASHED", force=True)  # it would keep the only place of its deployment


def test_triggers_at_once_begin_one_run(deployed: Any, project: Path) -> None:
    starts = Starts(deployed, project, "retrain/breast-cancer")
    runs = [starts.due(datetime.datetime.now(datetime.UTC), NOBODYS) for _ in range(4)]
    with ThreadPoolExecutor(len(runs)) as workers:
        list(workers.map(lambda run: starts.set(run, "PENDING"), runs))  # as workers do first
    assert starts.names(runs) == ["Cancelled", "Cancelled", "Cancelled", "Pending"]
    for run in runs:
        starts.set(run, "CANCELLED", force=True)


def test_after_three_missed_starts_one_run_happens_and_it_is_the_first_to_come(late: Late) -> None:
    assert late.states == ["Cancelled", "Cancelled", "Running"]


def test_the_page_of_a_run_has_the_lines_that_a_terminal_shows(late: Late, starts: Starts) -> None:
    requested = {"logs": {"flow_run_id": {"any_": [late.ran]}}, "sort": "TIMESTAMP_ASC"}

    def begins() -> list[str]:
        lines = [line["message"].split() for line in starts.service.api("logs/filter", requested)]
        shown = ("snapshot", "validate", "shard", "batch", "step", "launch")
        return [name for name, _ in itertools.groupby(line[0] for line in lines if line and line[0] in shown)]

    wait_until(lambda: "step" in begins(), 120, "the first steps' lines", every_s=POLL_EVERY_S)
    assert begins() == ["snapshot", "validate", "shard", "batch", "step"]


def test_a_killed_worker_leaves_no_process(late: Late, starts: Starts) -> None:
    """It takes its flow, guards, agents and ranks along: nobody else could stop them."""
    assert len(starts.service.processes()) > 5
    send(late.ranks, signal.SIGCONT)
    os.kill(late.worker.pid, signal.SIGKILL)
    wait_until(lambda: len(starts.service.processes()) == 1, what="the end of all but the server")
    ledger = starts.service.folder / "workspace" / "ledger" / late.ran / "flow.jsonl"
    assert '"event":"worker.lost"' in ledger.read_text()
