"""Starts that an outage left behind, and triggers at once, on a real server and worker: one run comes of them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prefect.conftest import QUEUE, working
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NOW = datetime.datetime.now(datetime.UTC)
DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)
OPENS = (NOW - HOUR).replace(minute=0, second=0, microsecond=0)
CLOSES = OPENS + 12 * HOUR
WINDOWS = f"""
windows: {{time_zone: UTC, open: [{{start: "{OPENS:%H:%M}", end: "{CLOSES:%H:%M}"}}], margin_s: 60, min_useful_s: 60}}
"""
NAME = "retrain/digits"


class Starts:
    """Flow runs of a deployment of a limit of one, for a pipeline with windows of its own that is open."""

    def __init__(self, service: Any, project: Path) -> None:
        self.service, self.deployment = service, service.api(f"deployments/name/{NAME}")
        self._env = self.deployment["job_variables"]["env"] | {"HEADWAY_PROJECT": str(project)}
        assert self.deployment["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"

    def due(self, at: datetime.datetime) -> str:
        """A start as the schedule makes them, due at a moment; its id."""
        body = {
            "parameters": {"request": {"pipeline": "nightly", "in_window": True, "stop_at_step": 2}},
            "job_variables": {"env": self._env},
            "work_queue_name": QUEUE,
            "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": at.isoformat()}},
        }
        return str(self.service.api(f"deployments/{self.deployment['id']}/create_flow_run", body)["id"])

    def ends(self, runs: list[str]) -> list[str]:
        """Names of the states in which they end."""
        return sorted(self.service.wait_for_end(run, within_s=600)["name"] for run in runs)


@pytest.fixture(scope="module")
def starts(deployed: Any, project: Path) -> Starts:
    text = (project / "deployments" / "tiny.yaml").read_text().replace("tiny\n", "nightly\n")
    (project / "deployments" / "nightly.yaml").write_text(text + WINDOWS)
    return Starts(deployed, project)


@pytest.fixture(scope="module")
def late_worker(starts: Starts) -> Iterator[list[str]]:
    """A worker that comes after three starts were due, each in a window that is over; now one is open."""
    runs = [starts.due(OPENS - days * DAY) for days in (3, 2, 1)]
    with working(starts.service):
        yield runs


def test_after_three_missed_starts_one_run_happens_and_it_is_the_first_to_come(late_worker: list[str], starts) -> None:
    assert starts.ends(late_worker) == ["Cancelled", "Cancelled", "Stopped"]


def test_the_page_of_a_run_has_the_lines_that_a_terminal_shows(late_worker: list[str], starts: Starts) -> None:
    starts.ends(late_worker)
    (ran,) = (run for run in late_worker if starts.service.state(run)["name"] == "Stopped")
    asked = {"logs": {"flow_run_id": {"any_": [ran]}}, "sort": "TIMESTAMP_ASC"}

    def begins() -> list[str]:
        lines = [line["message"].split() for line in starts.service.api("logs/filter", asked)]
        shown = ("snapshot", "validate", "shard", "batch", "step", "launch")
        return [line[0] for line in lines if line and line[0] in shown]

    wait_until(lambda: "launch" in begins(), 120, "the last line of the log")
    assert begins() == ["snapshot", "validate", "shard", "batch", "step", "launch"]


def test_two_triggers_at_once_make_one_run(late_worker: list[str], starts: Starts) -> None:
    starts.ends(late_worker)
    now = datetime.datetime.now(datetime.UTC)
    assert starts.ends([starts.due(now), starts.due(now)]) == ["Cancelled", "Stopped"]
