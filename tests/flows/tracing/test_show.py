"""`headway trace`: each span below what it is in, and errors where nothing is to be shown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.show import trace as of_trace
from headway.flows.show.trace import print_traces, read_traces, send_traces
from tests.flows.tracing.collector import collector
from tests.flows.tracing.test_otlp import TRACE
from tests.flows.tracing.test_spans import FLOW_RUN, Ledgers, a_retrain, at


def test_each_span_stands_below_what_it_is_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledgers = Ledgers(tmp_path)
    a_retrain(ledgers)
    print_traces(read_traces(ledgers.workspace.uri, FLOW_RUN))
    head, about, *lines = capsys.readouterr().out.splitlines()
    assert head == f"{FLOW_RUN.replace('-', '')}  p" and about.endswith("22 spans")
    shown = [line[27:] for line in lines]
    assert shown[:4] == ["retrain p", "  start", "  task  snapshot", "    stage.snapshot"]
    begin = shown.index("      attempt  attempt 1  step 20")
    of_attempt = shown[begin + 1 : begin + 4]
    assert of_attempt[0] == "        attempt.start  attempt 1"
    assert sorted(of_attempt[1:]) == [f"        restore  rank {rank}  attempt 1  step 0" for rank in (0, 1)]
    assert lines[2].startswith("     1.100 s      0.300 s")


def test_a_flow_run_that_came_to_no_run_is_found_by_its_own_id(tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    ledgers.flow(at("flow.failed", 101.0, error="DataError", message=""), at("flow.end", 101.0))
    (trace,) = read_traces(ledgers.workspace.uri, FLOW_RUN)
    assert trace.spans[0].error == "DataError"


@pytest.mark.parametrize("name", ["", "../ledger", "0123", "af91d8ec-7cb3-4fd4-bed9-d2ef69bba002"])
def test_what_has_no_trace_here_is_told(tmp_path: Path, name: str) -> None:
    ledgers = Ledgers(tmp_path)
    ledgers.workspace.publish_json("documents/one.json", {})
    with pytest.raises(ConfigError):
        read_traces(ledgers.workspace.uri, name)


def test_a_collector_that_answers_byte_by_byte_is_left_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_trace, "WITHIN_S", 1.0)
    with collector() as here:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", here.url)
        send_traces([TRACE, TRACE])
        assert len(here.received) == 2
        here.drips.set()
        started_s = time.monotonic()
        with pytest.raises(EnvironmentProblem, match="took 0 of 3 traces in 1 s") as problem:
            send_traces([TRACE] * 3)
        assert time.monotonic() - started_s < 5.0
        assert problem.value.where == here.url and "send them again" in problem.value.advice


def test_the_time_is_for_all_traces_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_trace, "WITHIN_S", 1.0)
    with collector() as here:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", here.url)
        here.statuses += [503, 200] * 5  # each is asked again, half a second later
        with pytest.raises(EnvironmentProblem, match=r"the collector (did not take|took)"):
            send_traces([TRACE] * 5)
        assert len(here.received) < 8
