"""From an exporter to a webhook: real Prometheus and Alertmanager with the shipped files, on loopback.

Only addresses, the interval of scrapes and that of later messages of a group are the tests' own.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.metrics_core import Metric

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.flows.monitoring.alert_delivery import chosen, try_alertmanager
from headway.flows.monitoring.exporter import Exporter
from headway.flows.monitoring.samples import Samples
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.flows.show import delivered_alerts
from tests.cluster.monitoring import (
    SHIPPED,
    Daemon,
    alertmanager_config,
    heading_of,
    running_alertmanager,
    running_prometheus,
    shipped,
)
from tests.cluster.prerequisites import why_no_monitoring
from tests.e2e.conftest import flip_one_bit
from tests.e2e.project import CHECKPOINT_EVERY_STEPS, MAX_STEPS, Project
from tests.pages import HOME
from tests.prefect_tables import new_prefect_home
from tests.waiting import wait_until

PAGE_WITHIN_S = 5.0
"""Of the scrape that shows it, on a machine that is not busy."""
BUSY = 3.0
ROUNDS = 5
"""Of looking at rules, after which a page that is to come has come."""
DOCS = "http://docs.example"


@pytest.fixture(autouse=True, scope="module")
def programs() -> None:
    if reason := why_no_monitoring():
        pytest.skip(reason)


class Receiver(ThreadingHTTPServer):
    """A webhook that keeps what comes, by its path."""

    daemon_threads = True

    def __init__(self) -> None:
        self.messages: list[tuple[str, float, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), _Hook)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def named(self) -> list[str]:
        """Receiver, state and name of each message, in order."""
        return [f"{to} {each['status']} {each['groupLabels']['alertname']}" for to, _, each in self.messages]

    def until(self, message: str) -> tuple[float, dict[str, Any]]:
        """The moment and the text of the first such message."""
        wait_until(lambda: message in self.named(), what=message, every_s=0.02)
        _, at_s, text = self.messages[self.named().index(message)]
        return at_s, text


class _Hook(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.messages.append((self.path.strip("/"), time.monotonic(), text))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Watched:
    """A workspace of which the test says what is to be seen, for the product's own exporter."""

    def __init__(self) -> None:
        self.corrupt = 0
        self.problems: dict[tuple[str, str], str] = {}
        """State by pipeline and role."""
        self.failed: dict[str, float] = {}
        """When, by pipeline."""
        self.num_looks = 0
        self.shown_s: dict[str, float] = {}
        """When it was first shown that something is wrong, by a word for it."""

    def collect(self) -> list[Metric]:
        samples = Samples()
        samples.value("headway_status_timestamp_seconds", time.time())
        samples.value("headway_workspace_free_bytes", 1e12)
        for outcome, number in (("ok", 7), ("failed", 0), ("corrupt", self.corrupt)):
            samples.value("train_checkpoint_total", number, op="verify", outcome=outcome)
        for pipeline in ("nightly", "weekly", "hourly"):
            finished_s = time.time() - 600
            samples.value("headway_retrain_finished_timestamp_seconds", finished_s, pipeline=pipeline)
        for (pipeline, role), state in self.problems.items():
            samples.value("train_process_problem", 1, pipeline=pipeline, role=role, state=state)
        for pipeline, at_s in self.failed.items():
            labels = {"pipeline": pipeline, "stage": "launch", "cause": "environment"}
            samples.value("headway_retrain_failed_timestamp_seconds", at_s, **labels)
        for word in ("corrupt", "problems", "failed"):
            if getattr(self, word):
                self.shown_s.setdefault(word, time.monotonic())
        self.num_looks += 1
        return list(samples.families())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server
        server.shutdown()


@pytest.fixture
def alertmanager(receiver: Receiver, tmp_path: Path) -> Iterator[Daemon]:
    config = alertmanager_config({"pages-url": receiver.url("pages"), "tickets-url": receiver.url("tickets")})
    for route in config["route"]["routes"]:
        route["group_interval"] = "2s"  # after which it says that something is over; a minute as shipped
    with running_alertmanager(tmp_path / "alertmanager", config) as daemon:
        yield daemon


class Seen:
    """A real workspace's metrics, with the moment at which each word was first in them."""

    def __init__(self, workspace: Path, *words: str) -> None:
        self._metrics = WorkspaceMetrics(Workspace(str(workspace)))
        self._words = words
        self.shown_s: dict[str, float] = {}

    def collect(self) -> list[Metric]:
        found = list(self._metrics.collect())
        shown = {
            word
            for word in self._words
            for family in found
            for sample in family.samples
            if sample.value and word in (*sample.labels.values(),)
        }
        for word in shown:
            self.shown_s.setdefault(word, time.monotonic())
        return found


@pytest.fixture
def watched(alertmanager: Daemon, tmp_path: Path) -> Iterator[tuple[Watched, Daemon]]:
    workspace = Watched()
    with scraped(workspace, alertmanager, tmp_path) as prometheus:
        yield workspace, prometheus


@contextlib.contextmanager
def scraped(workspace: Watched | Seen, alertmanager: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    """A Prometheus that knows the workspace by the product's exporter, each second."""
    password, folder = "a-password", tmp_path / "prometheus"
    with Exporter(("127.0.0.1", 0), cast(WorkspaceMetrics, workspace), f"headway:{password}") as exporter:
        threading.Thread(target=exporter.serve_forever, args=(0.05,), daemon=True).start()
        config = shipped("prometheus.yaml")
        config["global"] |= {"scrape_interval": "1s", "external_labels": {"runbooks": DOCS}}
        config["rule_files"] = [str(SHIPPED / name) for name in config["rule_files"]]
        config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [alertmanager.url.partition("//")[2]]
        (job,) = config["scrape_configs"]
        job["basic_auth"]["password_file"] = str(tmp_path / "headway-password")
        job["static_configs"] = [
            {"targets": [f"127.0.0.1:{exporter.server_address[1]}"], "labels": {"owner": "vision"}}
        ]
        (tmp_path / "headway-password").write_text(password)
        with running_prometheus(folder, config) as prometheus:
            wait_until(lambda: _value(prometheus, "workspace:checkpoints_corrupt:total") == 0.0, what="a first look")
            yield prometheus
        exporter.shutdown()


def _value(prometheus: Daemon, expr: str) -> float | None:
    found = prometheus.get(f"/api/v1/query?query={expr}")["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def _after_some_rounds(prometheus: Daemon) -> None:
    """Until rules were looked at several times more: what they bring was sent."""

    def rounds() -> float:
        groups = prometheus.get("/api/v1/rules")["data"]["groups"]
        return max(_unix_s(each["lastEvaluation"]) for each in groups if each["name"] == "headway-now")

    begun = rounds()
    wait_until(lambda: rounds() >= begun + 2 * ROUNDS, what="some rounds", every_s=0.2)


def _unix_s(moment: str) -> float:
    # Go writes nine digits of a second, and `Z`; Python 3.11 takes six.
    return datetime.datetime.fromisoformat(moment[:19] + "+00:00").timestamp()


def test_what_happens_reaches_a_person_as_one_page_with_its_runbook_and_its_end_follows(
    watched: tuple[Watched, Daemon],
    alertmanager: Daemon,
    receiver: Receiver,
    record_property: Callable[[str, object], None],
) -> None:
    workspace, prometheus = watched
    _after_some_rounds(prometheus)
    assert receiver.named() == []

    # A rank is stopped; two of them are one page.
    workspace.problems = {("nightly", "rank 1"): "stopped", ("nightly", "rank 3"): "stopped"}
    at_s, page = receiver.until("pages firing ProcessStopped")
    record_property("stopped_s", round(took_s := at_s - workspace.shown_s["problems"], 1))
    assert took_s < PAGE_WITHIN_S * BUSY
    assert page["commonLabels"]["owner"] == "vision" and page["groupLabels"]["pipeline"] == "nightly"
    assert {each["labels"]["role"] for each in page["alerts"]} == {"rank 1", "rank 3"}
    _leads_somewhere(page)
    workspace.problems = {}
    receiver.until("pages resolved ProcessStopped")

    # A first checkpoint is quarantined: the total before it was never anything but zero.
    workspace.corrupt = 1
    at_s, page = receiver.until("pages firing CheckpointCorrupt")
    record_property("corrupt_s", round(took_s := at_s - workspace.shown_s["corrupt"], 1))
    assert took_s < PAGE_WITHIN_S * BUSY
    assert page["alerts"][0]["annotations"]["summary"].startswith("1 checkpoints were quarantined")
    _leads_somewhere(page)

    # Three pipelines fail for one reason.
    workspace.failed = dict.fromkeys(("nightly", "weekly", "hourly"), time.time())
    at_s, page = receiver.until("pages firing FailureCascade")
    record_property("cascade_s", round(at_s - workspace.shown_s["failed"], 1))
    assert page["alerts"][0]["annotations"]["summary"].startswith("3 pipelines of 127.0.0.1:")
    _leads_somewhere(page)
    _after_some_rounds(prometheus)
    kept_back = [each for each in alertmanager.get("/api/v2/alerts") if each["status"]["inhibitedBy"]]
    assert {each["labels"]["alertname"] for each in kept_back} == {"RetrainFailed"} and len(kept_back) == 3
    workspace.failed = {}
    receiver.until("pages resolved FailureCascade")

    _after_some_rounds(prometheus)
    assert receiver.named() == [
        "pages firing ProcessStopped",
        "pages resolved ProcessStopped",
        "pages firing CheckpointCorrupt",
        "pages firing FailureCascade",
        "pages resolved FailureCascade",
    ]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Project]:
    """A real retrain that trains for as long as the test takes."""
    project = Project.create(tmp_path / "project", new_prefect_home(tmp_path / "prefect"))
    project.edit("tiny.yaml", f"max_steps: {MAX_STEPS}", "max_steps: 1000000")
    project.start("retrain", "tiny.yaml")
    try:
        wait_until(lambda: project.newest_step() > CHECKPOINT_EVERY_STEPS, what="a step", every_s=0.5)
        _let_others_first(project)
        yield project
    finally:
        project.clean_up()


def _let_others_first(project: Project) -> None:
    """Ranks that train without an end would take both cores from the tests beside this one."""
    for pid in project.living():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, pid, 19)


def test_a_rank_of_a_real_retrain_that_is_stopped_and_a_bit_of_its_checkpoint_that_flips_are_one_page_each(
    training: Project,
    alertmanager: Daemon,
    receiver: Receiver,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    seen = Seen(training.workspace, "stopped", "corrupt")
    with scraped(seen, alertmanager, tmp_path) as prometheus:
        os.kill(rank := training.rank_pid(1), signal.SIGSTOP)
        at_s, page = receiver.until("pages firing ProcessStopped")
        os.kill(rank, signal.SIGCONT)
        record_property("stopped_s", round(took_s := at_s - seen.shown_s["stopped"], 1))
        assert took_s < PAGE_WITHIN_S * BUSY
        assert [each["labels"]["role"] for each in page["alerts"]] == ["rank 1"]
        _leads_somewhere(page)
        receiver.until("pages resolved ProcessStopped")

        # All of it dies, and the newest checkpoint rots before the next retrain goes on from it.
        training.started[-1].kill()
        wait_until(lambda: training.living() == [], what="all to end", every_s=0.2)
        newest = max(path.parent for path in training.files("runs/*/checkpoints/step-*/manifest.json"))
        flip_one_bit(max(newest.iterdir(), key=lambda path: path.stat().st_size), random.Random(0))
        training.start("retrain", "tiny.yaml")
        at_s, page = receiver.until("pages firing CheckpointCorrupt")
        record_property("corrupt_s", round(took_s := at_s - seen.shown_s["corrupt"], 1))
        assert took_s < PAGE_WITHIN_S * BUSY
        _leads_somewhere(page)
        # It goes on from an older one, and nobody is called for anything else.
        wait_until(lambda: len(training.attempts()) > 1 and training.newest_step() > 0, what="a step", every_s=0.5)
        _let_others_first(training)
        _after_some_rounds(prometheus)
        assert receiver.named() == [
            "pages firing ProcessStopped",
            "pages resolved ProcessStopped",
            "pages firing CheckpointCorrupt",
        ]


def _leads_somewhere(page: dict[str, Any]) -> None:
    for alert in page["alerts"]:
        assert "runbooks" not in alert["labels"]
        place, heading = heading_of(alert["annotations"]["runbook_url"], DOCS)
        assert place == HOME / "docs/operations/alerts.md" and heading == alert["labels"]["alertname"]
        assert "error" not in alert["annotations"]["description"]


NIGHTLY = {"pipeline": "nightly"}
PAIRS: list[tuple[str, str, dict[str, str]]] = [
    ("RetrainsFailInARow", "RetrainFailed", NIGHTLY),
    ("RetrainFailed", "ScheduleSilent", NIGHTLY),
    ("RetrainsFailInARow", "ScheduleSilent", NIGHTLY),
    ("ProcessStopped", "RunWithoutProgress", NIGHTLY),
    ("ProcessStopped", "ScheduleSilent", NIGHTLY),
    ("ProcessStopped", "CheckpointOld", NIGHTLY),
    ("RunWithoutProgress", "CheckpointOld", NIGHTLY),
    ("RunWithoutProgress", "ScheduleSilent", NIGHTLY),
    ("RetrainFailed", "RequestUnanswered", NIGHTLY),
    ("ScheduleSilent", "RequestUnanswered", NIGHTLY),
    ("WindowsStarve", "RequestUnanswered", NIGHTLY),
    ("FailureCascade", "RetrainFailed", {}),
    ("FailureCascade", "RunBudgetBurns", {}),
    ("RetrainFailed", "RunBudgetBurns", {}),
    ("WorkspaceDiskFull", "RetrainFailed", {"cause": "environment"}),
    ("WorkspaceDiskFull", "FailureCascade", {}),
    ("WorkspaceDiskFull", "WorkspaceDiskFills", {}),
    ("CheckpointCorrupt", "RetrainFailed", {"cause": "integrity"}),
    ("CheckpointCorrupt", "CheckpointBudgetBurns", {}),
]
"""What keeps back what, and what they have in common beside the exporter."""
STRANGERS: list[tuple[str, str, dict[str, str]]] = [
    ("WorkspaceDiskFull", "RetrainFailed", {"cause": "training"}),
    ("CheckpointCorrupt", "RetrainFailed", {"cause": "training"}),
    ("WindowsStarve", "ScheduleSilent", NIGHTLY),
    ("CheckpointCorrupt", "ProcessStopped", {}),
]
"""Two causes, and two messages."""


def test_one_root_cause_is_one_page_and_two_are_two(alertmanager: Daemon) -> None:
    posted: list[dict[str, Any]] = []

    def post(name: str, severity: str = "page", **labels: str) -> None:
        given = {"alertname": name, "severity": severity, "job": "headway", **labels}
        posted.append({"labels": given})

    # Each pair has an exporter of its own, and each target a twin of another pipeline or exporter.
    for number, (source, target, common) in enumerate((*PAIRS, *STRANGERS)):
        of_each = {key: value for key, value in common.items() if key == "pipeline"}
        post(source, instance=f"{number}", **of_each)
        post(target, instance=f"{number}", **common)
        if of_each:
            post(target, instance=f"{number}", pipeline="another")
        post(target, instance=f"another {number}", **common)
    # A fast burn keeps the slow one back.
    post("RunBudgetBurns", instance="burns")
    post("RunBudgetBurns", "ticket", instance="burns")
    # `absent` knows no exporter.
    post("ExporterDown", instance="gone", job="headway")
    post("WorkspaceUnseen")
    alertmanager.post("/api/v2/alerts", posted)
    wait_until(lambda: len(alertmanager.get("/api/v2/alerts")) == len(posted), what="all alerts", every_s=0.05)
    kept_back = {
        (
            each["labels"]["alertname"],
            each["labels"]["severity"],
            each["labels"].get("instance", ""),
            each["labels"].get("pipeline", ""),
        )
        for each in alertmanager.get("/api/v2/alerts")
        if each["status"]["inhibitedBy"]
    }
    wanted = {
        (target, "page", f"{number}", common.get("pipeline", "")) for number, (_, target, common) in enumerate(PAIRS)
    }
    assert kept_back == {*wanted, ("RunBudgetBurns", "ticket", "burns", ""), ("WorkspaceUnseen", "page", "", "")}


def test_one_of_each_page_arrives_marked_as_a_test_and_none_keeps_another_back(
    alertmanager: Daemon, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(delivered_alerts, "private_folder", lambda: tmp_path)
    alerts = chosen(None)
    delivery = try_alertmanager(alertmanager.url, alerts, owner="vision", runbooks=DOCS)
    pages = sorted(alert.name for alert in alerts if alert.severity == "page")
    assert delivery.num_notified == len(pages) and not delivery.num_failed
    arrived = [alert for to, _, text in receiver.messages for alert in text["alerts"] if to == "pages"]
    assert sorted(each["labels"]["alertname"] for each in arrived) == pages
    for each in arrived:
        assert each["annotations"]["summary"].startswith("TEST: ") and each["labels"]["owner"] == "vision"
        assert heading_of(each["annotations"]["runbook_url"], DOCS)[1] == each["labels"]["alertname"]
    assert (tried := delivered_alerts.read_delivered()) is not None and tried.to == alertmanager.url
    # Tickets are held back, and what was sent ends by itself.
    held = {each["labels"]["alertname"] for each in alertmanager.get("/api/v2/alerts") if each["endsAt"]}
    assert held == {alert.name for alert in alerts}


def test_a_receiver_that_is_gone_and_routes_that_wait_are_told(tmp_path: Path) -> None:
    config = alertmanager_config(dict.fromkeys(("pages-url", "tickets-url"), "http://127.0.0.1:9/"))  # nobody's
    with (
        running_alertmanager(tmp_path / "gone", config) as gone,
        pytest.raises(EnvironmentProblem, match="reached no receiver, and 0 did"),
    ):
        try_alertmanager(gone.url, chosen("page"), within_s=60)
    config["route"]["routes"][-1]["group_wait"] = "1h"
    with (
        running_alertmanager(tmp_path / "patient", config) as patient,
        pytest.raises(EnvironmentProblem, match="no notification went out within 1 s"),
    ):
        try_alertmanager(patient.url, chosen("page"), within_s=1)
