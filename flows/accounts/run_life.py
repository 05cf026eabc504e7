"""What the ledgers of a run's whole life hold: all its flow runs, all its attempts, and every step that they made.

Of an attempt rank 0 speaks for all: ranks of a synchronous gang make the same steps at the same times.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.errors import ConfigError
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import Event, SpoolTail, event_end_unix_s
from headway.training.observe.step_summary import PARTS

REGISTERED = "stage.register"
COLUMNS = ("step", "unix_s", "duration_s", "tokens", *(f"{part}_s" for part in PARTS))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTrace:
    """What is left of one attempt at training."""

    record: AttemptRecord
    begin_unix_s: float
    end_unix_s: float
    """Its record's; that of its last word where its owner was lost."""
    world_size: int | None
    """None: it came to no model."""
    events: tuple[Event, ...]
    """Of rank 0, without its steps."""
    steps: NDArray[np.float64]
    """Of rank 0, in order of time, shape (steps, len(COLUMNS)); those that a guard left out are not among them."""
    excluded: NDArray[np.float64]
    """Those, in the same form."""
    last_sign_unix_s: float
    """The end of what rank 0 wrote last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowTrace:
    """What is left of one flow run that worked on the run."""

    flow_run: str
    pipeline: str
    begin_unix_s: float
    end_unix_s: float
    """Its last word's, however it ended."""
    stopped_for: str = ""
    """Why it stopped in order, such as `window closed`; empty: it did not."""
    has_registered: bool = False
    events: tuple[Event, ...] = field(repr=False, default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLife:
    run: str
    flows: tuple[FlowTrace, ...]
    """By their begin; up to the first that registered the model: later ones found it."""
    attempts: tuple[AttemptTrace, ...]

    @property
    def begin_unix_s(self) -> float:
        return min(flow.begin_unix_s for flow in self.flows)

    @property
    def end_unix_s(self) -> float:
        ends = [*(flow.end_unix_s for flow in self.flows), *(attempt.end_unix_s for attempt in self.attempts)]
        return max(ends)

    @property
    def is_over(self) -> bool:
        return any(flow.has_registered for flow in self.flows)


def read_life(run_dir: Path, ledgers: Path) -> RunLife:
    """Everything that this machine has of it.

    Args:
        run_dir: the run's folder.
        ledgers: the folder of the flow runs' ledgers, each `<flow run>/flow.jsonl`.

    Raises:
        ConfigError: nobody has tried to train it here.
    """
    records = AttemptRecords(run_dir).all()
    scopes = dict.fromkeys(record.scope for record in records)
    found = [flow for scope in scopes if (flow := _read_flow(ledgers / scope / "flow.jsonl", scope)) is not None]
    flows = sorted(found, key=lambda flow: flow.begin_unix_s)
    if not flows:
        raise ConfigError(
            "no ledger of a flow run that trained it is here.",
            where=str(run_dir),
            advice="Ask on the machine that trained it; `headway status` shows what is known here.",
        )
    last = next((place for place, flow in enumerate(flows) if flow.has_registered), len(flows) - 1)
    kept = tuple(flows[: last + 1])
    of = {flow.flow_run for flow in kept}
    attempts = tuple(_read_attempt(run_dir, record) for record in records if record.scope in of)
    return RunLife(run=run_dir.name, flows=kept, attempts=attempts)


def _read_flow(spool: Path, flow_run: str) -> FlowTrace | None:
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
        has_registered=any(event["event"] == REGISTERED and event.get("outcome") == "ok" for event in events),
        events=events,
    )


def _read_attempt(run_dir: Path, record: AttemptRecord) -> AttemptTrace:
    files = AttemptFiles(attempt_folder(run_dir, record.attempt))
    events: list[Event] = []
    steps, excluded = array("d"), array("d")
    last_sign_unix_s, world_size = record.start_unix_s, None
    for event in _stream(files.rank_spool(0)):
        if event["event"] in ("step", "step.excluded"):
            into = steps if event["event"] == "step" else excluded
            into.extend(float(event.get(name) or 0.0) for name in COLUMNS)
        else:
            events.append(event)
            if event["event"] == "model":
                world_size = int(event["world_size"])
        last_sign_unix_s = max(last_sign_unix_s, event_end_unix_s(event))
    return AttemptTrace(
        record=record,
        begin_unix_s=record.start_unix_s,
        end_unix_s=last_sign_unix_s if record.end_unix_s is None else record.end_unix_s,
        world_size=world_size,
        events=tuple(events),
        steps=np.frombuffer(steps).reshape(-1, len(COLUMNS)),
        excluded=np.frombuffer(excluded).reshape(-1, len(COLUMNS)),
        last_sign_unix_s=last_sign_unix_s,
    )


def _stream(spool: Path) -> Iterator[Event]:
    """What of a ledger can be read: an account of a damaged one is better than none."""
    try:
        yield from SpoolTail(spool).stream()
    except OSError:
        return
