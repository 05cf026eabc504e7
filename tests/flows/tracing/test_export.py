"""A flow run's last act: its trace is sent where an endpoint is set, in time, and fails nothing."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.flows.tracing import export
from headway.flows.tracing.export import export_quietly, is_wanted
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from tests.flows.tracing.collector import Collector, collector
from tests.flows.tracing.test_spans import FLOW_RUN, HERE, RUN, Ledgers, at

KEY = "kanarienvogel"


@pytest.fixture
def here() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    made = Ledgers(tmp_path)
    made.flow(at("flow.end", 101.0))
    return made


def said(url: str, **more: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={KEY}", **more}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == export.__name__]
    assert not any(KEY in text for text in found)
    return found


def test_it_is_sent_and_nothing_is_said(ledgers: Ledgers, here: Collector, caplog: pytest.LogCaptureFixture) -> None:
    export_quietly(ledgers.workspace, FLOW_RUN, said(here.url))
    (span,) = here.spans
    assert (span.name, span.trace_id.hex()) == ("retrain p", FLOW_RUN.replace("-", ""))
    assert here.received[0].headers["api-key"] == KEY
    assert told(caplog) == []


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        *(({}, True), ({"OTEL_TRACES_EXPORTER": "console,otlp"}, True), ({"OTEL_SDK_DISABLED": "false"}, True)),
        *(({"OTEL_TRACES_EXPORTER": "none"}, False), ({"OTEL_SDK_DISABLED": "TRUE"}, False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
    ],
)
def test_the_standard_switches_hold(more: dict[str, str], wanted: bool) -> None:
    assert is_wanted(said("http://c") | more) is wanted


def test_who_began_the_trace_and_keeps_none_of_it_gets_none(ledgers: Ledgers, here: Collector) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
    ledgers.flow(at("flow.end", 101.0), name="unsampled", begin={"traceparent": parent})
    export_quietly(ledgers.workspace, "unsampled", said(here.url))
    assert here.received == []


@pytest.mark.parametrize("trouble", ["away", "silent", "stuck", "500", "nonsense", "no address", "no thread"])
def test_whatever_is_in_the_way_is_one_sentence_and_takes_no_longer_than_it_may(
    trouble: str,
    ledgers: Ledgers,
    here: Collector,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, "WITHIN_S", 0.5)
    if trouble == "silent":
        here.silent.set()
    here.statuses = [500] if trouble == "500" else []
    url = {"away": "http://127.0.0.1:9", "no address": f"{KEY}://{KEY}"}.get(trouble, here.url)
    if trouble == "stuck":  # as a file system that does not answer
        monkeypatch.setattr("headway.flows.tracing.read_trace.read_flow", lambda *_: here.ended.wait(30.0) and None)
    if trouble == "nonsense":
        monkeypatch.setattr("headway.flows.tracing.read_trace.read_flow", lambda *_: 1 / 0)
    if trouble == "no thread":
        monkeypatch.setattr("threading.Thread.start", lambda _: (_ for _ in ()).throw(RuntimeError("no thread")))
    started_s = time.monotonic()
    with caplog.at_level(logging.WARNING):
        export_quietly(ledgers.workspace, FLOW_RUN, said(url))
    assert time.monotonic() - started_s < 3.0
    (sentence,) = told(caplog)
    assert sentence.startswith(f"The trace of flow run {FLOW_RUN} was not sent: ") and "\n" not in sentence
    assert sentence.endswith(f"`headway trace {FLOW_RUN} --otlp` sends it.")


def test_the_trace_of_the_flow_run_that_was_killed_before_comes_along(ledgers: Ledgers, here: Collector) -> None:
    run = at("run.named", 100.0, run=RUN + "0" * 48), at("run.folder", 100.0, path=str(ledgers.run_dir))
    ledgers.run_dir.mkdir(parents=True)
    for number, scope in enumerate(("killed", "now"), start=1):
        AttemptRecords(ledgers.run_dir).begin(AttemptRecord(attempt=number, scope=scope, start_unix_s=float(number)))
        ledgers.flow(*run, *([at("flow.end", 101.0)] if scope == "now" else []), name=scope, begin=HERE)
    export_quietly(ledgers.workspace, "now", said(here.url))
    assert [span.status.code for span in here.spans] == [0, 2]
    export_quietly(ledgers.workspace, "killed", said(here.url))
    assert here.spans[-1] == here.spans[1], "the same trace, whoever sends it"


UNSET = """
import sys
heard = []
sys.addaudithook(lambda event, _: heard.append(event) if event.startswith(("socket.", "_thread.start")) else None)
from headway.data_contracts.store.publication import Workspace
from headway.flows.run import session  # all that a flow run imports
import headway.flows.tracing.export as export
before = len(heard)
export.export_quietly(Workspace(sys.argv[1]), sys.argv[2])
ours = {name for name in sys.modules if name.startswith(("opentelemetry", "google.protobuf", "headway.flows.tracing."))}
print(sorted(ours), heard[before:])
"""


@pytest.mark.process
def test_without_an_endpoint_nothing_is_imported_and_no_socket_or_thread_made(ledgers: Ledgers) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNSET, ledgers.workspace.uri, FLOW_RUN],
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "['headway.flows.tracing.export'] []\n", done.stderr
