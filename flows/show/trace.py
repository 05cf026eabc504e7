"""`headway trace`: what the flow runs of a run did, as spans; and the way by which a killed one's reach a collector."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from headway.data_contracts.store import plain_text
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count, moment
from headway.flows.accounts.flow_ledgers import ledger_spool
from headway.flows.console.console import plain_console
from headway.flows.show.status import run_asked
from headway.flows.tracing.read_trace import read_trace
from headway.flows.tracing.spans import Trace, TraceSpan
from headway.training.launch.base.retry_budget import AttemptRecords

WITHIN_S = 10.0
"""For all of them to be sent: somebody waits for it."""
SHOWN = {
    "cicd.pipeline.task.name": "",
    "headway.attempt": "attempt ",
    "headway.rank": "rank ",
    "headway.step": "step ",
}
"""What a line shows of a span's attributes, and what it is called there."""


def read_traces(workspace_uri: str, run: str) -> list[Trace]:
    """Of the flow runs that trained a run, oldest first, as far as this machine has their ledgers.

    Args:
        run: the beginning of a run's id; a flow run's, for its trace alone; empty: the one that runs, or the newest.

    Raises:
        ConfigError: no such run, or several; no ledger of it is here.
    """
    workspace = Workspace(workspace_uri)
    flow_runs = [run] if _is_flow_run(workspace, run) else _flow_runs(Path(run_asked(workspace_uri, run).folder))
    found = [trace for each in flow_runs if (trace := read_trace(workspace, each)) is not None]
    if not found:
        raise ConfigError(
            "no ledger of a flow run that trained it is here.",
            where=run,
            advice="Ask on the machine that trained it; `headway status` shows what is known here.",
        )
    return found


def _is_flow_run(workspace: Workspace, name: str) -> bool:
    """One that came to no run is known by its own id alone."""
    try:
        # Also a check: a name that is no id could lead out of the folder.
        return str(uuid.UUID(name)) == name and ledger_spool(workspace, name).is_file()
    except ValueError:
        return False


def _flow_runs(run_dir: Path) -> list[str]:
    scopes = dict.fromkeys(record.scope for record in AttemptRecords(run_dir).all())
    return [scope for scope in scopes if scope == Path(scope).name and scope not in ("", "..")]


def send_traces(traces: Sequence[Trace]) -> None:
    """Send them to the endpoint that the environment names, in `WITHIN_S` seconds or not at all.

    Raises:
        ConfigError: no endpoint is set.
        EnvironmentProblem: its collector does not take them, or not in time.
    """
    from headway.flows.tracing.otlp import Endpoint, send

    endpoint, until_s = Endpoint.from_environment(os.environ), time.monotonic() + WITHIN_S
    sent: list[str] = []
    problems: list[Exception] = []

    def send_all() -> None:
        try:
            for trace in traces:
                send(trace, endpoint, until_s - time.monotonic())
                sent.append(trace.flow_run)
        except Exception as error:
            problems.append(error)

    # A thread: a name service that never answers, or a collector that answers byte by byte, knows no deadline.
    thread = threading.Thread(target=send_all, name="trace-sending", daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    if problems:
        raise problems[0]
    if thread.is_alive():
        raise EnvironmentProblem(
            f"the collector took {len(sent)} of {count(len(traces), 'trace')} in {WITHIN_S:g} s.",
            where=endpoint.shown,
            advice="Look after the collector, then send them again: those that it has are the same traces.",
        )


def in_json(traces: Sequence[Trace]) -> list[dict[str, object]]:
    return [dataclasses.asdict(trace) for trace in traces]


def print_traces(traces: Sequence[Trace]) -> None:
    """A line a span: when it began after the first, how long it took, and what it is, below what it is in."""
    console = plain_console()
    for trace in traces:
        first = trace.spans[0]
        console.print(Text(f"{trace.trace_id}  {plain_text.one_line(trace.pipeline)}", style="bold"))
        console.print(f"flow run {trace.flow_run}, {moment(first.begin_unix_s)} UTC, {count(len(trace.spans), 'span')}")
        for span, depth in _below(trace.spans):
            console.print(Text(_line(span, first.begin_unix_s, depth)))


def _below(spans: Sequence[TraceSpan]) -> Iterator[tuple[TraceSpan, int]]:
    """The first span and its depth, then by their begins those in it, each with those in itself."""
    inner = defaultdict[str, list[TraceSpan]](list)
    for span in sorted(spans[1:], key=lambda each: each.begin_unix_s, reverse=True):
        inner[span.parent_id].append(span)
    left = [(spans[0], 0)]
    while left:
        span, depth = left.pop()
        yield span, depth
        left += ((each, depth + 1) for each in inner[span.span_id])


def _line(span: TraceSpan, begin_unix_s: float, depth: int) -> str:
    length_s = span.end_unix_s - span.begin_unix_s
    facts = "".join(f"  {SHOWN[name]}{value}" for name, value in span.attributes.items() if name in SHOWN)
    end = f"  {span.error}" if span.error else "  has no end" if span.is_cut else ""
    name = plain_text.one_line(span.name)
    return f"{span.begin_unix_s - begin_unix_s:>10,.3f} s {length_s:>10,.3f} s  {'  ' * depth}{name}{facts}{end}"
