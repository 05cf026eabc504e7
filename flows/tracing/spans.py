"""The trace of a flow run, as a pure function of its ledgers: sent once more, or by another process, it is the same.

Spans are the ledger's own: of the flow, of each attempt in it, of each rank in those. A span's parent is the innermost
one of its process that encloses it. Steps have none, for a long run has millions.

Numbers and a few words of Headway's own are all that a span carries: no message, path or note, in which a secret could
stand.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from headway.data_contracts.store.errors import StopReason
from headway.flows.accounts.flow_account import Outcome, end_of
from headway.flows.accounts.traces import RUN, FlowTrace
from headway.training.observe.events import BEGIN, EVENTS
from headway.training.observe.ledger import Event, event_end_unix_s
from headway.training.observe.trace_context import TraceContext, flow_trace, parse_traceparent, span_id

MAX_SPANS = 5_000
"""Of one trace: collectors refuse what is too large, and nobody looks at more. The first one counts those left out."""
MAX_MOMENTS = 1_000
"""Of one ledger."""
SLACK_S = 0.005
"""A span begins by the wall clock and lasts by the monotonic one, so it may end a little after what it is in."""
ATTEMPT = "attempt"
DURABLE = "checkpoint.durable"
"""Recorded at its end, with how long it took: steps went on meanwhile."""
MOMENTS = frozenset(
    {
        *("checkpoint.quarantined", "checkpoint.published", "checkpoint.damaged", "guard", "restore.inexact"),
        *("rank.slow", "rank.failed", "rank.stopped", "attempt.overdue", "attempt.retry", "attempt.stop"),
        *("host.missing", "host.unreachable", "host.excluded", "run.went_back", "run.lost", "run.stopped"),
        *("job.submitted", "job.found", "job.again", "job.requeue", "job.stop", "worker.lost", "pipeline.starving"),
        *("stage.damaged", "version.withdrawn", "alias.moved", "promotion.lost", "champion.damaged"),
        "batch.grown",
        "shares.moved",
    }
)
"""Events without a length that stand on the span in which they happened: a run has few of them."""
NUMBERS = frozenset(
    {
        *("attempt", "rank", "node", "step", "first_step", "last_step", "window", "count", "quarantined", "found"),
        *("size_bytes", "sent_bytes", "known_files", "devices", "restarts"),
        *("communication_s", "durable_s", "took_s", "wait_s", "own_s", "others_s", "excess_s", "step_s", "score"),
    }
)
WORDS = frozenset({"task", "cause", "result", "split", "part", "stage", "alarm", "action"})
"""Fields whose text is one of a few of Headway's own, and is held to that form."""
_WORD = re.compile("[a-z][a-z _.-]{0,40}")
_CLASS = re.compile("[A-Za-z_][A-Za-z_]{0,60}")
IN_ORDER = frozenset({"ok", "RunStopped", "CostBoundReached", "Rescheduled", "RunBusy"})
"""Outcomes of spans that are no errors."""
RESULTS: Mapping[Outcome, str] = {
    "succeeded": "success",
    "failed": "failure",
    "stopped": "cancellation",
    "lost": "error",
}
"""As OpenTelemetry's conventions for CI/CD call the ends of a pipeline's run."""

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanMoment:
    name: str
    unix_s: float
    attributes: Attributes


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceSpan:
    name: str
    span_id: str
    parent_id: str
    """Empty: it is the trace's first."""
    begin_unix_s: float
    end_unix_s: float
    attributes: Attributes
    error: str = ""
    """The class or cause of what ended it; empty where nothing did."""
    is_cut: bool = False
    """It has no end of its own: its process was killed in it, or is in it still."""
    moments: tuple[SpanMoment, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    flow_run: str
    pipeline: str
    trace_id: str
    is_sampled: bool
    """False: who began it, such as CI, keeps none of it."""
    host: str
    """The flow's."""
    spans: tuple[TraceSpan, ...]
    """The flow run's first, and each after the one that it is in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEvents:
    """What one rank of an attempt wrote down; its steps are not needed."""

    folder: str
    """The attempt's, as the flow's ledger names it."""
    rank: int
    events: tuple[Event, ...]


@dataclass(slots=True)
class _Span:
    """One that still gets its parent, and what happened in it."""

    event: Event
    name: str
    begin_unix_s: float
    end_unix_s: float
    is_cut: bool = False
    span_id: str = ""
    parent_id: str = ""
    moments: list[SpanMoment] = field(default_factory=list)

    def encloses(self, begin_unix_s: float, end_unix_s: float) -> bool:
        return self.begin_unix_s <= begin_unix_s + SLACK_S and end_unix_s <= self.end_unix_s + SLACK_S

    def closed(self) -> TraceSpan:
        return TraceSpan(
            name=self.name,
            span_id=self.span_id,
            parent_id=self.parent_id,
            begin_unix_s=self.begin_unix_s,
            end_unix_s=self.end_unix_s,
            attributes=_attributes(self.event),
            error=_error(self.event),
            is_cut=self.is_cut,
            moments=tuple(self.moments),
        )


def trace_of(
    flow: FlowTrace, ranks: Sequence[RankEvents] = (), *, is_at_work: bool = False, num_unread: int = 0
) -> Trace:
    """Args:
    ranks: of the flow run's attempts, in the order in which they are left out where there are too many.
    is_at_work: it has not ended, and its process lives.
    num_unread: how many ranks have a ledger that is not among them.
    """
    begin = _begin(flow)
    parent = parse_traceparent(str(begin.get("traceparent", "")))
    root = flow_trace(flow.flow_run, parent)
    whole = _Span(begin, "", flow.begin_unix_s, max(flow.end_unix_s, flow.begin_unix_s), span_id=root.span_id)
    spans = _of_process(flow.events, whole, root)
    attempts = {str(span.event.get("folder", "")): span for span in spans if span.name == ATTEMPT}
    for each in ranks:
        # By its folder, not its number: gangs that prove, evaluate or export have attempts and ranks as well.
        if (attempt := attempts.get(each.folder)) is not None:
            spans += _of_process(each.events, attempt, root, "rank", each.rank)
    kept = spans[: MAX_SPANS - 1]
    outcome, cause, stage = end_of(flow)
    is_error = not is_at_work and outcome in ("failed", "lost")
    left_out = {"headway.spans_left_out": len(spans) - len(kept), "headway.ledgers_left_out": num_unread}
    words = {"headway.run": flow.run, "headway.cause": _word(cause), "headway.stage": _word(stage)}
    first = TraceSpan(
        name=f"{'trials' if any(flow.named('trial')) else 'retrain'} {flow.pipeline}",
        span_id=root.span_id,
        parent_id="" if parent is None else parent.span_id,
        begin_unix_s=whole.begin_unix_s,
        end_unix_s=whole.end_unix_s,
        attributes={
            "cicd.pipeline.name": flow.pipeline,
            "cicd.pipeline.run.id": flow.flow_run,
            **({} if is_at_work else {"cicd.pipeline.result": RESULTS[outcome], "headway.outcome": outcome}),
            **{name: word for name, word in words.items() if word and not is_at_work},
            **{name: number for name, number in left_out.items() if number},
        },
        error=(_word(cause) or _class(cause) or outcome) if is_error else "",
        is_cut=not flow.has_ended,
        moments=tuple(whole.moments),
    )
    return Trace(
        flow_run=flow.flow_run,
        pipeline=flow.pipeline,
        trace_id=root.trace_id,
        is_sampled=root.is_sampled,
        host=str(begin.get("host", "")),
        spans=(first, *(span.closed() for span in kept)),
    )


def _begin(flow: FlowTrace) -> Event:
    return next(flow.named("flow.begin"))


def _of_process(events: Sequence[Event], holder: _Span, root: TraceContext, *place: object) -> list[_Span]:
    """The spans of one ledger below one span, each after its parent; what happened outside of all is the holder's.

    Args:
        place: what tells this ledger from others below the same span.
    """
    last_sign_unix_s = max(map(event_end_unix_s, events), default=holder.end_unix_s)
    spans = _opened(events, last_sign_unix_s)
    open_spans: list[_Span] = []
    num_alike = defaultdict[tuple[str, float], int](int)
    for span in spans:
        while open_spans and open_spans[-1].end_unix_s <= span.begin_unix_s:
            open_spans.pop()
        # A write is in nothing that its rank does beside it.
        fits = (each for each in reversed(open_spans) if span.name != DURABLE and _may_hold(each, span))
        span.parent_id = next(fits, holder).span_id
        alike = span.name, span.begin_unix_s
        span.span_id = span_id(root, holder.span_id, *place, *alike, num_alike[alike])
        num_alike[alike] += 1
        if span.name != DURABLE:
            open_spans.append(span)
    # Bounded: each is looked for among all spans.
    for event in itertools.islice((event for event in events if event["event"] in MOMENTS), MAX_MOMENTS):
        at = float(event["unix_s"])
        innermost = next((span for span in reversed(spans) if span.encloses(at, at)), holder)
        innermost.moments.append(SpanMoment(name=event["event"], unix_s=at, attributes=_attributes(event)))
    return spans


def _opened(events: Iterable[Event], last_sign_unix_s: float) -> list[_Span]:
    """By their begins, the longer first; one that was begun and has no end goes on to the last sign."""
    spans: list[_Span] = []
    begun = defaultdict[tuple[object, ...], list[Event]](list)
    for event in events:
        name = str(event["event"])
        if name == DURABLE and "durable_s" in event:
            begin_unix_s = max(event["unix_s"] - event["durable_s"], 0.0)
            spans.append(_Span(event, name, begin_unix_s, float(event["unix_s"])))
        elif name.endswith(BEGIN) and _is_span(name.removesuffix(BEGIN)):
            begun[_key(event)].append(event)
        elif _is_span(name) and "outcome" in event:
            if same := begun[_key(event)]:
                same.pop()
            spans.append(_Span(event, name, float(event["unix_s"]), event_end_unix_s(event)))
    for event in (event for events_of_a_kind in begun.values() for event in events_of_a_kind):
        at, name = float(event["unix_s"]), str(event["event"]).removesuffix(BEGIN)
        spans.append(_Span(event, name, at, max(last_sign_unix_s, at), is_cut=True))
    # Of two that took the same time the one that was written down later holds the other.
    order = sorted(enumerate(spans), key=lambda each: (each[1].begin_unix_s, -each[1].end_unix_s, -each[0]))
    return [span for _, span in order]


def _is_span(name: str) -> bool:
    return name in EVENTS and EVENTS[name].is_span


def _key(event: Event) -> tuple[object, ...]:
    """What a begin and its end have alike; fields may be added in between."""
    name = str(event["event"]).removesuffix(BEGIN)
    return (name, *(event.get(of) for of in ("task", "attempt", "job", "run", "trial")))


def _may_hold(holder: _Span, span: _Span) -> bool:
    """Several jobs and runs may be watched at once, and their spans overlap as chance has it."""
    pairs = ((holder.event.get(name), span.event.get(name)) for name in ("job", "run", "trial", "attempt"))
    is_of_another = any(one is not None and other is not None and one != other for one, other in pairs)
    return not is_of_another and holder.encloses(span.begin_unix_s, span.end_unix_s)


def _attributes(event: Event) -> Attributes:
    found: dict[str, str | int | float | bool] = {}
    for name, value in event.items():
        if name in NUMBERS and isinstance(value, int | float) and math.isfinite(value):
            found[f"headway.{name}"] = value
        elif name in WORDS and (word := _word(value)):
            found["cicd.pipeline.task.name" if name == "task" else f"headway.{name}"] = word
        elif name == "reason" and value in get_args(StopReason):
            found["headway.reason"] = value
        elif name == "run" and isinstance(value, str) and (run := RUN.match(value)):
            found["headway.run"] = run[0]
    return found


def _error(event: Event) -> str:
    outcome = str(event.get("outcome", "ok"))
    if outcome not in IN_ORDER:
        return _class(outcome) or "error"
    # Of an attempt: its span ends in order whatever came of it.
    return (_word(event.get("cause")) or "failed") if event.get("result") == "failed" else ""


def _word(value: object) -> str:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def _class(value: object) -> str:
    return value if isinstance(value, str) and _CLASS.fullmatch(value) else ""
