"""A trace is a pure function of ledgers: whose spans they are, what they are in, and that nobody's text is on them."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path

import pytest

from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.flow_ledgers import ledger_spool
from headway.flows.tracing import spans as spans_module
from headway.flows.tracing.otlp import encode
from headway.flows.tracing.read_trace import killed_before, read_trace
from headway.flows.tracing.spans import NUMBERS, SLACK_S, WORDS, Trace, TraceSpan
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.events import EVENTS
from headway.training.observe.ledger import Event, Ledger
from headway.training.observe.ledger_lines import INTEGERS, TEXTS, parse_event

FLOW_RUN = "af91d8ec-7cb3-4fd4-bed9-d2ef69bba001"
RUN = "0123456789abcdef"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CANARY = "kanarienvogel"
HERE = {"host": socket.gethostname(), "pid": 1, "start_ticks": -1}
"""Of a flow run that was killed on this machine: no process of that number began then."""


def at(name: str, unix_s: float, **fields: object) -> Event:
    return {"event": name, "unix_s": unix_s, **fields}


def span(name: str, begin_s: float, end_s: float, outcome: str = "ok", **fields: object) -> Event:
    return at(name, begin_s, duration_s=end_s - begin_s, outcome=outcome, **fields)


class Ledgers:
    """Those of a flow run and its ranks, as they are written."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace.create(str(folder / "workspace"))
        self.run_dir = self.workspace.local_path(f"runs/{RUN}")

    def flow(self, *events: Event, name: str = FLOW_RUN, begin: dict[str, object] | None = None) -> None:
        first = at("flow.begin", 100.0, pipeline="p", started_unix_s=99.0, **(begin or {}))
        self._write(ledger_spool(self.workspace, name), first, *events)

    def folder(self, number: int = 1, gang: str = "") -> str:
        return str(attempt_folder(self.run_dir / gang, number))

    def rank(self, rank: int, *events: Event, number: int = 1, gang: str = "") -> None:
        self._write(AttemptFiles(Path(self.folder(number, gang))).rank_spool(rank), *events)

    def trace(self, name: str = FLOW_RUN, **options: float) -> Trace:
        found = read_trace(self.workspace, name, **options)
        assert found is not None
        return found

    def _write(self, spool: Path, *events: Event) -> None:
        ledger = Ledger(spool)
        for event in events:
            ledger.take_over(event)
        ledger.close()


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


def named(trace: Trace, name: str) -> list[TraceSpan]:
    return [each for each in trace.spans if each.name == name]


def holders(trace: Trace, one: TraceSpan) -> list[str]:
    """Names of what it is in, the innermost first."""
    by_id = {each.span_id: each for each in trace.spans}
    found: list[str] = []
    while (holder := by_id.get(one.parent_id)) is not None:
        found.append(holder.name)
        one = holder
    return found


def a_retrain(ledgers: Ledgers) -> None:
    ledgers.flow(
        span("start", 99.0, 100.0),
        span("snapshot.read", 100.1, 100.2),
        span("stage.snapshot", 100.1, 100.3, found=False, shown="3 files"),
        span("task", 100.1, 100.4, task="snapshot"),
        at("run.named", 101.0, run=RUN + "0" * 48),
        at("run.folder", 101.0, path=str(ledgers.run_dir), run=RUN + "0" * 48),
        span("attempt.start", 101.2, 102.0, attempt=1),
        at("rank.slow", 103.0, attempt=1, rank=1, host="h", what="slow", part="data", score=3.0),
        span("attempt", 101.1, 110.0, attempt=1, folder=ledgers.folder(), result="done", cause="", what="", step=20),
        span("stage.launch", 101.0, 110.2, found=False),
        span("task", 101.0, 110.3, task="launch"),
        span("attempt", 111.1, 112.0, attempt=1, folder=ledgers.folder(gang="verify"), result="done", cause=""),
        span("stage.verify", 111.0, 112.2),
        span("register.mlflow", 113.1, 113.8),
        span("stage.register", 113.0, 114.0),
        at("flow.end", 114.5),
    )
    for rank in (0, 1):
        ledgers.rank(
            rank,
            span("restore", 102.0, 102.1, rank=rank, attempt=1, step=0),
            *(span("step", 102.1 + step / 10, 102.2 + step / 10, step=step, rank=rank) for step in range(20)),
            span("checkpoint", 104.2, 104.3, rank=rank, attempt=1, step=20, size_bytes=9),
            span("wind_down", 104.22, 104.9, rank=rank, attempt=1),
            at("checkpoint.durable", 104.6, rank=rank, attempt=1, step=20, size_bytes=9, durable_s=0.35),
        )
    ledgers.rank(0, span("restore", 111.2, 111.3, rank=0, attempt=1, step=20), gang="verify")


def test_spans_are_the_ledgers_each_in_what_encloses_it(ledgers: Ledgers) -> None:
    a_retrain(ledgers)
    trace = ledgers.trace()
    root = trace.spans[0]
    assert (root.name, root.parent_id, root.begin_unix_s, root.end_unix_s) == ("retrain p", "", 99.0, 114.5)
    assert trace.trace_id == FLOW_RUN.replace("-", "") and not root.error and not root.is_cut
    assert root.attributes["cicd.pipeline.result"] == "success" and root.attributes["headway.run"] == RUN
    assert [holders(trace, each) for each in named(trace, "snapshot.read")] == [["stage.snapshot", "task", "retrain p"]]
    above = ["attempt", "stage.launch", "task", "retrain p"]
    for name in ("checkpoint", "checkpoint.durable"):
        assert [holders(trace, each) for each in named(trace, name)] == [above, above], name
        assert [each.attributes["headway.rank"] for each in named(trace, name)] == [0, 1]
    (durable, _) = named(trace, "checkpoint.durable")
    assert (durable.begin_unix_s, durable.end_unix_s) == (pytest.approx(104.25), 104.6), "steps go on beside it"
    assert [holders(trace, each)[1] for each in named(trace, "restore")] == [
        "stage.launch",
        "stage.verify",
        "stage.launch",
    ]
    assert [holders(trace, each) for each in named(trace, "register.mlflow")] == [["stage.register", "retrain p"]]
    assert named(trace, "step") == []
    (slow,) = [moment for each in trace.spans for moment in each.moments]
    assert (slow.name, slow.attributes["headway.part"]) == ("rank.slow", "data")
    assert [each.name for each in trace.spans if each.moments] == ["attempt"]


def test_it_is_the_same_trace_whoever_makes_it_and_each_id_is_one_spans(ledgers: Ledgers) -> None:
    a_retrain(ledgers)
    trace = ledgers.trace()
    assert trace == ledgers.trace()
    assert len({each.span_id for each in trace.spans}) == len(trace.spans)
    known = {""}
    for each in trace.spans:
        assert each.parent_id in known, "each after what it is in"
        known.add(each.span_id)


def test_a_trace_that_was_begun_elsewhere_goes_on_there(ledgers: Ledgers) -> None:
    ledgers.flow(at("flow.end", 101.0), begin={"traceparent": PARENT})
    trace = ledgers.trace()
    assert (trace.trace_id, trace.spans[0].parent_id) == (PARENT[3:35], PARENT[36:52])
    ledgers.flow(at("flow.end", 101.0), name="other", begin={"traceparent": f"{PARENT[:-2]}00"})
    assert trace.is_sampled and not ledgers.trace("other").is_sampled


def test_what_a_killed_flow_run_was_in_ends_with_its_last_sign(ledgers: Ledgers) -> None:
    ledgers.flow(
        at("task.begin", 100.5, task="snapshot"),
        span("task", 100.5, 100.8, task="snapshot"),
        at("task.begin", 101.0, task="launch"),
        at("attempt.begin", 101.5, attempt=1, folder=ledgers.folder()),
        at("attempt.deadline", 102.0, attempt=1),
        begin=HERE,
    )
    ledgers.rank(0, at("rendezvous.begin", 102.0, rank=0, attempt=1), at("rank.armed", 105.0, rank=0, attempt=1))
    trace = ledgers.trace()
    root, snapshot, launch, attempt, meeting = trace.spans
    assert (root.is_cut, root.error, root.attributes["headway.outcome"]) == (True, "infrastructure", "lost")
    assert [each.is_cut for each in (snapshot, launch, attempt, meeting)] == [False, True, True, True]
    assert (launch.end_unix_s, attempt.end_unix_s, meeting.end_unix_s) == (102.0, 102.0, 105.0)
    assert holders(trace, meeting) == ["attempt", "task", "retrain p"]


def test_errors_are_named_and_a_stop_in_order_is_none(ledgers: Ledgers) -> None:
    failed = {"attempt": 1, "folder": ledgers.folder(), "result": "failed", "cause": "oom"}
    ledgers.flow(
        span("attempt", 100.1, 100.5, **failed),
        span("stage.launch", 100.0, 101.0, "TrainingFailed"),
        at("flow.card", 101.1, stage="launch", failure={"cause": "oom"}),
        at("flow.failed", 101.2, error="TrainingFailed", message=CANARY),
        at("flow.end", 101.3),
    )
    trace = ledgers.trace()
    assert [(each.name, each.error) for each in trace.spans] == [
        ("retrain p", "oom"),
        ("stage.launch", "TrainingFailed"),
        ("attempt", "oom"),
    ]
    assert trace.spans[0].attributes["headway.stage"] == "launch"
    ledgers.flow(
        span("stage.launch", 100.0, 101.0, "RunStopped"),
        at("flow.stopped", 101.2, reason="window closed", message=""),
        at("flow.end", 101.3),
        name="stopped",
    )
    root, launch = ledgers.trace("stopped").spans
    assert (root.error, launch.error, root.attributes["cicd.pipeline.result"]) == ("", "", "cancellation")


def test_no_text_of_anybodys_is_on_a_span(ledgers: Ledgers) -> None:
    """Whatever field it stands in, of whatever event: a secret may be in a message, a path, a note or a name."""
    fields = {*TEXTS, *INTEGERS, *WORDS, *NUMBERS, *(field for each in EVENTS.values() for field in each.fields)}
    fields -= {"event", "unix_s", "duration_s", "outcome", "durable_s", "traceparent", "run", "flow_run"}
    # A number where a reader takes no text.
    told = {field: f"{CANARY} 7" if is_taken(field, f"{CANARY} 7") else 7 for field in fields}
    told = {field: value for field, value in told.items() if is_taken(field, value)} | {"task": "launch"}
    events = [
        span(name, 100.5, 101.0, f"{CANARY} 7", **told) if declared.is_span else at(name, 100.6, **told)
        for name, declared in EVENTS.items()
    ]
    ledgers.flow(*events, begin={"note": CANARY, "host": "h", "stop": CANARY})
    ledgers.rank(0, *events)
    trace = ledgers.trace()
    assert len(trace.spans) > 40 and any(each.moments for each in trace.spans)
    assert CANARY.encode() not in encode(trace, {})


def is_taken(field: str, value: object) -> bool:
    """Whether a reader takes an event with it."""
    return parse_event(json.dumps({"event": "x", "unix_s": 1.0, field: value}).encode()) is not None


def test_a_run_of_many_ranks_is_bounded_and_what_is_left_out_is_counted(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_retrain(ledgers)
    whole = ledgers.trace()
    monkeypatch.setattr(spans_module, "MAX_SPANS", 15)
    cut = ledgers.trace()
    assert len(cut.spans) == 15
    assert cut.spans[0].attributes["headway.spans_left_out"] == len(whole.spans) - 15
    assert cut.spans[1:] == whole.spans[1:15], "rank 0 of every attempt goes before the others"
    bounded = ledgers.trace(max_bytes=1.0)
    assert bounded.spans[0].attributes["headway.ledgers_left_out"] == 3
    assert named(bounded, "checkpoint") == [] and len(named(bounded, "attempt")) == 2


def test_whatever_overlaps_and_wherever_clocks_jump_each_span_has_a_parent(ledgers: Ledgers) -> None:
    draw = random.Random(0)
    for number in range(10):
        name = f"flow-{number}"
        begins = [draw.uniform(100, 110) for _ in range(40)]
        names = [draw.choice(["check", "task", "stage.fit", "start", "attempt.backoff"]) for _ in begins]
        made = [
            span(one, begin, begin + draw.uniform(0, 5), task="t") for one, begin in zip(names, begins, strict=True)
        ]
        ledgers.flow(*made, at("flow.end", draw.uniform(90, 120)), name=name)
        trace = ledgers.trace(name)
        by_id = {each.span_id: each for each in trace.spans}
        assert len(by_id) == 41
        for each in trace.spans[1:]:
            holder = by_id[each.parent_id]
            is_in = holder.begin_unix_s <= each.begin_unix_s and each.end_unix_s <= holder.end_unix_s + SLACK_S
            assert is_in or holder is trace.spans[0]


def test_the_one_that_was_killed_before_is_known_and_no_other(ledgers: Ledgers) -> None:
    run = at("run.named", 100.0, run=RUN + "0" * 48), at("run.folder", 100.0, path=str(ledgers.run_dir))
    ledgers.run_dir.mkdir(parents=True)
    records = AttemptRecords(ledgers.run_dir)
    for number, scope in enumerate(("ended", "killed", "now"), start=1):
        failure = Failure(cause="infrastructure", what="gone", retryable=True)
        records.begin(AttemptRecord(attempt=number, scope=scope, failure=failure, start_unix_s=float(number)))
        ledgers.flow(*run, *([] if scope == "killed" else [at("flow.end", 101.0)]), name=scope, begin=HERE)
    assert killed_before(ledgers.workspace, "now") == "killed"
    assert killed_before(ledgers.workspace, "killed") == "", "the one before it ended by itself"
    assert killed_before(ledgers.workspace, "ended") == ""
    assert killed_before(ledgers.workspace, "nobody") == ""


def test_a_workspace_without_the_ledger_has_no_trace(ledgers: Ledgers) -> None:
    assert read_trace(ledgers.workspace, "nobody") is None
