"""`headway logs`: what happened in a run, and what its ranks, agents and guards wrote; by time, with attempt, host and
rank.
"""

from __future__ import annotations

import dataclasses
import datetime
import heapq
import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from headway.data_contracts.store import plain_text
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.flows.console.console import plain_console
from headway.flows.console.output import print_json, print_line
from headway.flows.report.terminal import STAGE_WIDTH, notice_line
from headway.flows.show.status import run_asked
from headway.training.launch.base import run_lock
from headway.training.launch.base.protocol import OWNER_LOST
from headway.training.launch.diagnosis.logs import LogLine, RunLogs, attempts_of
from headway.training.launch.diagnosis.run_events import RANK_CAME_UP, RANK_FAILED, RunEvent, RunEvents
from headway.training.observe.ledger import Event

FOLLOW_S = 0.3
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What a rank wrote is text here: its colours are dropped, and whatever else steers a terminal is spelled out."""
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


def show_logs(
    workspace_uri: str,
    run: str,
    *,
    ranks: Sequence[int] = (),
    attempt: int | None = None,
    tail: int | None = None,
    follow: bool = False,
    as_json: bool = False,
) -> None:
    """Print a run's logs; `follow` continues until the run ends.

    Args:
        run: the beginning of a run's id, or a flow run's; empty: the one that runs, or the newest.
        ranks: only what these wrote and what happened to them; where empty all, and what agents and guards wrote.
        attempt: only this one of the gang that trains.
        tail: of what is there already, only so many lines.

    Raises:
        ConfigError: no such run, or several; it has no logs on this machine.
    """
    folder = Path(run_asked(workspace_uri, run).folder)
    logs = RunLogs(folder, ranks, attempt)
    events = _EventLines(RunEvents(folder, Workspace(workspace_uri).local_path("ledger"), ranks, attempt))
    if not any(attempts_of(folder)):
        raise ConfigError(
            "no attempt of this run has started on this machine.",
            where=str(folder),
            advice="Ask on the machine that trained it; `headway status` shows what is known here.",
        )
    show, is_silent = _as_json if as_json else _Printer(), True
    for line in _lines(folder, logs, events, tail, follow):
        is_silent = False
        show(line)
    if is_silent and tail != 0:
        by_ranks = f" by rank {' or '.join(map(str, ranks))}" if ranks else ""
        when = "" if attempt is None else f" in attempt {attempt} at training"
        print_line(f"headway: nothing was written{by_ranks}{when} in run {folder.name}.", sys.stderr)


def _lines(folder: Path, logs: RunLogs, events: _EventLines, tail: int | None, follow: bool) -> Iterator[LogLine]:
    is_over = not (follow and run_lock.is_at_work(folder))
    there: Iterable[LogLine] = _merged(events, logs.read(is_over=is_over))
    yield from there if tail is None else deque(there, maxlen=tail)
    while not is_over:
        time.sleep(FOLLOW_S)
        # Asked before reading: what was written before the end is read after it.
        is_over = not run_lock.is_at_work(folder)
        yield from _merged(events, logs.read(is_over=is_over))


def _merged(events: _EventLines, written: Iterable[LogLine]) -> Iterator[LogLine]:
    """What happened comes before what was written of it at the same time."""
    return heapq.merge(events.lines(), written, key=lambda line: line.unix_s)


class _EventLines:
    """The events of a run, as lines."""

    def __init__(self, events: RunEvents) -> None:
        self._events, self._words = events, EventFormatter()

    def lines(self) -> Iterator[LogLine]:
        """What has come since the last call."""
        for event in self._events.read():
            if text := " ".join(self._words(event).splitlines()):
                yield LogLine(
                    unix_s=event.unix_s,
                    gang=event.gang,
                    attempt=event.attempt,
                    node=None,
                    host="",
                    rank=event.rank,
                    stream="ledger",
                    event=event.event["event"],
                    text=text,
                )


def _as_json(line: LogLine) -> None:
    print_json(dataclasses.asdict(line))


class _Printer:
    """A line a line: time, attempt, host and rank, then what was written; a colour a rank."""

    def __init__(self) -> None:
        self._console = plain_console()
        self._gang = ""

    def __call__(self, line: LogLine) -> None:
        gang = f"{line.gang}, attempt {line.attempt}"
        if gang != self._gang:
            self._gang = gang
            self._console.print(Text(f"── {gang} ──", style="bold"))
        when = datetime.datetime.fromtimestamp(line.unix_s).strftime("%H:%M:%S.%f")[:-5]
        text = Text(f"{when} {_source_of(line)} ", style=_style(line))
        text.append("! " if line.stream == "stderr" else "  ")
        text.append(plain_text.one_line(COLOUR.sub("", line.text)))
        self._console.print(text)


def _style(line: LogLine) -> str:
    if line.event:
        return "bold"
    return "dim" if line.rank is None else COLOURS[line.rank % len(COLOURS)]


def _source_of(line: LogLine) -> str:
    if line.event:
        return "headway"
    where = f"{line.host or 'node'}/{line.node}"
    return f"{where} {'agent' if line.stream == 'node' else 'rank ?' if line.rank is None else f'rank {line.rank}'}"


STEP_EVERY_S = 60.0


class EventFormatter:
    """Called with one event after another, by time; returns the words, empty for what nobody needs."""

    def __init__(self) -> None:
        self._step_unix_s = defaultdict[tuple[str, int, int | None], float](float)

    def __call__(self, run_event: RunEvent) -> str:
        if run_event.event["event"] == "step" and not self._is_due(run_event):
            return ""
        try:
            return self._words(run_event)
        # Who looks for a fault reads damaged ledgers as well; one line must not end the listing.
        except (KeyError, TypeError, ValueError, OverflowError):
            return f"{'damaged':<{STAGE_WIDTH}} the event {run_event.event['event']} lacks what it should say."

    def _words(self, run_event: RunEvent) -> str:
        label, words = _label_and_text(run_event.event, run_event.rank)
        return notice_line(run_event.event) if not label else f"{label:<{STAGE_WIDTH}} {words}" if words else ""

    def _is_due(self, step: RunEvent) -> bool:
        step_key = (step.gang, step.attempt, step.rank)
        is_due = step.unix_s - self._step_unix_s[step_key] >= STEP_EVERY_S
        self._step_unix_s[step_key] = step.unix_s if is_due else self._step_unix_s[step_key]
        return is_due


def _label_and_text(event: Event, rank: int | None) -> tuple[str, str]:
    """Label and words; no words where there is nothing to tell, and no label where a terminal has the words."""
    match event["event"]:
        case "attempt.begin":
            return "attempt", f"{event['attempt']} begins."
        case "attempt":
            return "attempt", f"{event['attempt']} {_end(event)}"
        case "attempt.start":
            return "ranks", f"all have come up, after {event['duration_s']:.1f} s."
        case "attempt.stop":
            return "stop", f"ranks are asked to keep a checkpoint and end: {event['reason']}."
        case "attempt.overdue" | "host.missing" | "host.unreachable":
            return "attempt", str(event["what"])
        case "attempt.retry":
            return "attempt", ""  # the end of the one and the beginning of the other have said it
        case "agent.stop":
            return "guard", _on_its_own(event)
        case "rank.lost" if "ranks" in event:
            return "rank", f"rank {rank} is gone without a word: it crashed, or was killed, as for want of memory."
        case name if name == RANK_CAME_UP:
            return "rank", f"rank {rank} is process {event['pid']}{' on ' if event['host'] else ''}{event['host']}."
        case name if name == RANK_FAILED:
            return "rank", f"rank {rank} failed: {event['what']}"
        case "step":
            return "step", f"{event['step']:,}: loss {event['loss']:.4f}, took {event['duration_s']:.3f} s."
        case "restore" if event.get("step") == 0:
            return "start", "at step 0."
        case "checkpoint.durable":
            size_mb = event["size_bytes"] / 1e6
            return "checkpoint", f"of step {event['step']:,} is kept: {size_mb:,.1f} MB in {event['durable_s']:.2f} s."
    return "", ""


def _end(event: Event) -> str:
    at = "" if event["step"] is None or event["state"] == "stopped" else f" at step {event['step']:,}"
    what = event["failure"]["what"]
    return f"{event['state']}{at}: {what}" if what else f"{event['state']}{at}."


def _on_its_own(event: Event) -> str:
    """Why a guard ends its ranks, where nobody told it to."""
    is_its_own = event["why"] in OWNER_LOST or str(event["why"]).endswith("came")
    return f"node {event['node']} ends its ranks: {event['why']}." if is_its_own else ""
