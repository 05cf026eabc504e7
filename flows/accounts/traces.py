"""What is left of flow runs and attempts in their ledgers, in the form that accounts are made from.

Of an attempt rank 0 speaks for all: ranks of a synchronous gang make the same steps at the same times.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.flows.accounts.figures import TrainingFigures
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord
from headway.training.observe.ledger import Event, SpoolTail, event_end_unix_s
from headway.training.observe.step_summary import PARTS, finite

REGISTERED = "stage.register"
NAMED = "run.named"
RUN = re.compile("[0-9a-f]{16}")
"""A run's id: the beginning of its digest, as its folder is named."""
COLUMNS = ("step", "unix_s", "duration_s", "tokens", "loss", *(f"{part}_s" for part in PARTS))
"""Of a step. What a record lacks is 0, but the loss, which is nan: JSON has no word for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTrace:
    """What is left of one attempt at training."""

    record: AttemptRecord
    begin_unix_s: float
    end_unix_s: float
    """Its record's; that of its last word where its owner was lost."""
    world_size: int | None
    """None: it came to no model."""
    device: str
    """The kind of device, as its maker names it, or `cpu`."""
    events: tuple[Event, ...]
    """Of rank 0, without its steps."""
    steps: NDArray[np.float64]
    """Of rank 0, in order of time, shape (steps, len(COLUMNS)); those that a guard left out are not among them."""
    excluded: NDArray[np.float64]
    """Those, in the same form."""
    figures: TrainingFigures
    last_sign_unix_s: float
    """The end of what rank 0 wrote last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowTrace:
    """What is left of one flow run."""

    flow_run: str
    pipeline: str
    begin_unix_s: float
    end_unix_s: float
    """Its last word's, however it ended."""
    stopped_for: str = ""
    """Why it stopped in order, such as `window closed`; empty: it did not."""
    has_ended: bool = True
    """It wrote its last word; one that lacks it goes on, or was killed."""
    events: tuple[Event, ...] = field(repr=False, default=())

    @property
    def runs(self) -> list[str]:
        """The ids of all runs that it was at; trials are at several."""
        return list(dict.fromkeys(run for event in self.named(NAMED) if (run := run_named(event))))

    @property
    def run(self) -> str:
        """The id of the run that it worked on; empty: none, or another had it, or, as trials do, it had several."""
        has_worked = any(self.named("run.folder")) or any(_is_ok(event) for event in self.named("stage.launch"))
        return self.runs[0] if len(self.runs) == 1 and has_worked else ""

    @property
    def has_registered(self) -> bool:
        return any(_is_ok(event) for event in self.named(REGISTERED))

    def while_at(self, run: str, attempts: Sequence[AttemptTrace]) -> FlowTrace:
        """As if it had been at no other run, and no longer than for these attempts; what it registers is another's."""
        events = tuple(
            event
            for event in self.events
            if event["event"] != REGISTERED and (event["event"] != NAMED or run_named(event) == run)
        )
        begin_unix_s, end_unix_s = attempts[0].begin_unix_s, attempts[-1].end_unix_s
        return replace(self, events=events, begin_unix_s=begin_unix_s, end_unix_s=end_unix_s)

    def named(self, name: str) -> Iterator[Event]:
        return (event for event in self.events if event["event"] == name)


def run_named(event: Event) -> str:
    """The id of the run that an event of `NAMED` names; empty: none that a folder of ours could have."""
    found = RUN.match(str(event.get("run", ""))) if event["event"] == NAMED else None
    return found[0] if found else ""


def _is_ok(event: Event) -> bool:
    return event.get("outcome") == "ok"


def read_flow(spool: Path, flow_run: str) -> FlowTrace | None:
    """None: there is no such ledger, or nothing of its begin is left."""
    events = tuple(_stream(spool))
    begin = next((event for event in events if event["event"] == "flow.begin"), None)
    if begin is None:
        return None
    stopped = next((event for event in events if event["event"] == "flow.stopped"), {})
    return FlowTrace(
        flow_run=flow_run,
        pipeline=str(begin.get("pipeline", "")),
        begin_unix_s=float(begin.get("started_unix_s") or begin["unix_s"]),
        # One that was killed has no last word but its last event.
        end_unix_s=max(event_end_unix_s(event) for event in events),
        stopped_for=str(stopped.get("reason") or ""),
        has_ended=any(event["event"] == "flow.end" for event in events),
        events=events,
    )


def read_attempt(run_dir: Path, record: AttemptRecord) -> AttemptTrace:
    """What is left of it under the run's folder."""
    files = AttemptFiles(attempt_folder(run_dir, record.attempt))
    events: list[Event] = []
    steps, excluded = array("d"), array("d")
    figures = TrainingFigures()
    last_sign_unix_s, world_size, device = record.start_unix_s, None, ""
    for event in _stream(files.rank_spool(0)):
        figures.take(event)
        if event["event"] in ("step", "step.excluded"):
            into = steps if event["event"] == "step" else excluded
            into.extend(_figure(event, name) for name in COLUMNS)
        else:
            events.append(event)
            if event["event"] == "model":
                world_size, device = int(event["world_size"]), str(event.get("device", ""))
        last_sign_unix_s = max(last_sign_unix_s, event_end_unix_s(event))
    return AttemptTrace(
        record=record,
        begin_unix_s=record.start_unix_s,
        end_unix_s=last_sign_unix_s if record.end_unix_s is None else record.end_unix_s,
        world_size=world_size,
        device=device,
        events=tuple(events),
        steps=np.frombuffer(steps).reshape(-1, len(COLUMNS)),
        excluded=np.frombuffer(excluded).reshape(-1, len(COLUMNS)),
        figures=figures,
        last_sign_unix_s=last_sign_unix_s,
    )


def _figure(event: Event, name: str) -> float:
    value = finite(event.get(name))
    return value if value is not None else math.nan if name == "loss" else 0.0


def _stream(spool: Path) -> Iterator[Event]:
    """What of a ledger can be read: an account of a damaged one is better than none."""
    try:
        yield from SpoolTail(spool).stream()
    except OSError:
        return
