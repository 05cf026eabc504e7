"""Goodput: what every device-second of a run's whole life was good for, over all its attempts, flow runs and windows.

A step is productive once: where it was made last before the weights went on from it. Made again after a restart or a
roll-back, what came before is `redone`. States sum to wall time times devices.

The ratio of productive time to all of it is the effective training time ratio, ETTR (Kokolis et al., "Revisiting
Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from headway.flows.accounts.painting import Painted, Span, paint
from headway.flows.accounts.run_life import COLUMNS, AttemptTrace, RunLife
from headway.tasks.core.stage_records import STAGES
from headway.training.observe.ledger import Event
from headway.training.observe.step_summary import PARTS

State = Literal[
    "productive",
    "data_wait",
    "sync",
    "checkpoint_stall",
    "redone",
    "excluded",
    "start",
    "rendezvous",
    "restore",
    "detection",
    "teardown",
    "backoff",
    "queue",
    "closed_window",
    "stopped",
    "down",
    "preparation",
    "evaluation",
    "registration",
    "orchestration",
]
STATES: tuple[State, ...] = get_args(State)
MEANING: Mapping[State, str] = {
    "productive": "forward, backward and update of steps that count",
    "data_wait": "steps that count, waiting for their batch",
    "sync": "steps that count, adding up gradients with other ranks and waiting for them",
    "checkpoint_stall": "training waiting for a checkpoint's copy",
    "redone": "steps that were made again later",
    "excluded": "batches that a guard left out",
    "start": "processes, imports, shards, until the first step",
    "rendezvous": "ranks finding each other",
    "restore": "a checkpoint fetched, verified and loaded",
    "detection": "from the last sign of a failed attempt until something was done about it",
    "teardown": "ending an attempt: its last words and its processes",
    "backoff": "the wait before another attempt",
    "queue": "a scheduler's queue, devices or runs of others",
    "closed_window": "between two windows",
    "stopped": "after somebody stopped it",
    "down": "nobody at work: after a failure, until the next retrain",
    "preparation": "snapshot, contract, fit and shards",
    "evaluation": "verification, scoring and evaluation",
    "registration": "export and registration",
    "orchestration": "what flow and Prefect do around the stages",
}
FORWARD: tuple[State, ...] = ("productive", "data_wait", "sync")
"""Steps that count, whole."""
_OF_PARTS: Mapping[str, State] = {"data": "data_wait", "sync": "sync", "staging": "checkpoint_stall"}
_OF_STAGES: Mapping[str, State] = {
    **dict.fromkeys(STAGES, "preparation"),
    **{"launch": "start", "verify": "evaluation", "score": "evaluation", "evaluate": "evaluation"},
    "register": "registration",
}
_OF_EVENTS: Mapping[str, State] = {
    **{"start": "start", "prefect": "orchestration", "check": "preparation"},
    **{"run.wait": "queue", "devices.wait": "queue", "launch.submit": "queue", "launch.follow": "queue"},
    **{"launch.lease": "start", "launch.freeze": "start", "launch.reattach": "teardown"},
    **{"attempt.gather": "start", "attempt.muster": "start", "attempt.preflight": "start", "attempt.start": "start"},
    **{"attempt.ending": "teardown", "attempt.backoff": "backoff", "checkpoints.fetch": "restore"},
    **{"rank.imports": "start", "run.open": "start", "data.open": "start"},
    **{"rendezvous": "rendezvous", "restore": "restore", "checkpoint": "checkpoint_stall"},
    **{"wind_down": "teardown", "result": "teardown", "result.check": "start", "teardown": "teardown"},
}
"""Spans of flows, jobs and rank 0. What is not among them belongs to what it lies in."""
_GAPS: Mapping[str, State] = {"window closed": "closed_window", "": "down"}


class Recovery(BaseModel):
    """From the last step before something went wrong to the first that had not been made before."""

    attempt: int
    """The one that ended."""
    cause: str
    what: str
    begin_unix_s: float
    lost_steps: int
    """That had to be made again."""
    total_s: float
    device_s: float
    parts_s: dict[State, float]
    """Steps that are made again within are `redone` here: to the run they count, and those before do not."""


class RunAccount(BaseModel):
    """Of one run, up to its registration, or so far."""

    run: str
    pipeline: str
    begin_unix_s: float
    end_unix_s: float
    is_over: bool
    """Its model was registered; before that all figures are so far."""
    num_flow_runs: int
    num_attempts: int
    num_steps: int
    """That count."""
    num_redone_steps: int
    num_tokens: int
    """Of steps that count."""
    devices: int
    """Of the newest attempt."""
    wall_s: float
    device_s: float
    parts_s: dict[State, float]
    """Wall seconds by state, the largest first; they sum to `wall_s`."""
    parts_device_s: dict[State, float]
    """The same times devices; between attempts those that the next one has."""
    ettr: float
    """Effective training time ratio: device-seconds of steps that count, whole, over all."""
    productive_ratio: float
    """Of them forward, backward and update alone."""
    tokens_per_s: float
    """Effective: over the wall time of the whole life."""
    waste_device_s: dict[str, float]
    """By cause of a failed attempt: what it took to be where it had been."""
    recoveries: list[Recovery]


def run_account(life: RunLife) -> RunAccount:
    """The account of a run, from what its ledgers hold."""
    attempts = life.attempts
    steps = np.concatenate([attempt.steps for attempt in attempts]) if attempts else np.empty((0, len(COLUMNS)))
    counted = _counted(steps[:, 0])
    painted: Painted[State] = paint(_spans(life, counted), life.begin_unix_s, life.end_unix_s, ground="down")
    devices = _devices(attempts, painted)
    parts_s, parts_device_s = painted.seconds(), painted.seconds(devices)
    device_s = float(np.diff(painted.edges) @ devices)
    recoveries = list(_recoveries(attempts, painted, devices))
    waste: dict[str, float] = {}
    for recovery in recoveries:
        waste[recovery.cause] = waste.get(recovery.cause, 0.0) + recovery.device_s
    wall_s = life.end_unix_s - life.begin_unix_s
    num_tokens = int(steps[counted, COLUMNS.index("tokens")].sum())
    return RunAccount(
        run=life.run,
        pipeline=life.flows[0].pipeline,
        begin_unix_s=life.begin_unix_s,
        end_unix_s=life.end_unix_s,
        is_over=life.is_over,
        num_flow_runs=len(life.flows),
        num_attempts=len(attempts),
        num_steps=int(counted.sum()),
        num_redone_steps=int((~counted).sum()),
        num_tokens=num_tokens,
        devices=_world_size(attempts),
        wall_s=wall_s,
        device_s=device_s,
        parts_s=parts_s,
        parts_device_s=parts_device_s,
        ettr=sum(parts_device_s.get(state, 0.0) for state in FORWARD) / device_s if device_s else 0.0,
        productive_ratio=parts_device_s.get("productive", 0.0) / device_s if device_s else 0.0,
        tokens_per_s=num_tokens / wall_s if wall_s else 0.0,
        waste_device_s=dict(sorted(waste.items(), key=lambda part: -part[1])),
        recoveries=recoveries,
    )


def _counted(steps: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each step in order of time is the last of its number, and none before it was made again after it."""
    if not len(steps):
        return np.zeros(0, np.bool_)
    # Whoever goes back to step s makes all from s on again: what counts is below all that comes later.
    lowest_later = np.minimum.accumulate(np.append(steps[1:], np.inf)[::-1])[::-1]
    found: NDArray[np.bool_] = steps < lowest_later
    return found


def _spans(life: RunLife, counted: NDArray[np.bool_]) -> Iterator[Span[State]]:
    for flow in life.flows:
        yield "orchestration", flow.begin_unix_s, flow.end_unix_s
        yield from _of_ledger(flow.events)
    for earlier, later in itertools.pairwise(life.flows):
        if earlier.end_unix_s < later.begin_unix_s:
            yield _GAPS.get(earlier.stopped_for, "stopped"), earlier.end_unix_s, later.begin_unix_s
    done = 0
    for attempt in life.attempts:
        yield from _of_attempt(attempt, counted[done : done + len(attempt.steps)])
        done += len(attempt.steps)


def _of_ledger(events: Sequence[Event]) -> Iterator[Span[State]]:
    for event in events:
        name = str(event["event"])
        if "duration_s" not in event or "outcome" not in event:
            continue
        stage = str(event.get("task", "")) if name == "task" else name.partition("stage.")[2]
        state = _OF_STAGES.get(stage) if stage else _OF_EVENTS.get(name)
        if state is not None:
            yield state, float(event["unix_s"]), float(event["unix_s"]) + float(event["duration_s"])


def _of_attempt(attempt: AttemptTrace, counted: NDArray[np.bool_]) -> Iterator[Span[State]]:
    begin_s, end_s = attempt.begin_unix_s, attempt.end_unix_s
    first_s = float(attempt.steps[0, 1]) if len(attempt.steps) else end_s
    yield "teardown", begin_s, end_s
    yield "start", begin_s, first_s
    yield from _of_ledger(attempt.events)
    if attempt.record.state == "failed":
        # A hung rank writes nothing; what follows its last sign is waiting for a deadline.
        yield "detection", attempt.last_sign_unix_s, end_s
    for row in attempt.excluded:
        yield "excluded", row[1], row[1] + row[2]
    for row, counts in zip(attempt.steps, counted, strict=True):
        step_begin_s, step_end_s = row[1], row[1] + row[2]
        yield ("productive" if counts else "redone"), step_begin_s, step_end_s
        if counts:
            at_s = step_begin_s
            for place, part in enumerate(PARTS, start=len(COLUMNS) - len(PARTS)):
                yield _OF_PARTS.get(part, "productive"), at_s, min(at_s + row[place], step_end_s)
                at_s += row[place]


def _devices(attempts: Sequence[AttemptTrace], painted: Painted[State]) -> NDArray[np.float64]:
    """How many devices each stretch has: the attempt's that goes on, or that comes next, or that was the last."""
    sizes = np.array([attempt.world_size or 0 for attempt in attempts] or [1], np.float64)
    # An attempt that came to no model had as many as the next that did.
    for place in reversed(range(len(sizes) - 1)):
        sizes[place] = sizes[place] or sizes[place + 1]
    sizes = np.where(sizes > 0, sizes, sizes.max() or 1.0)
    ends = np.array([attempt.end_unix_s for attempt in attempts] or [painted.edges[-1]])
    found: NDArray[np.float64] = sizes[np.minimum(np.searchsorted(ends, painted.edges[1:]), len(sizes) - 1)]
    return found


def _world_size(attempts: Sequence[AttemptTrace]) -> int:
    return next((attempt.world_size for attempt in reversed(attempts) if attempt.world_size), 1)


def _recoveries(
    attempts: Sequence[AttemptTrace], painted: Painted[State], devices: NDArray[np.float64]
) -> Iterator[Recovery]:
    reached, reached_unix_s, recovered_unix_s = -1.0, painted.edges[0], painted.edges[0]
    for place, attempt in enumerate(attempts):
        if len(attempt.steps) and attempt.steps[:, 0].max() > reached:
            reached = float(attempt.steps[:, 0].max())
            reached_unix_s = float(attempt.steps[-1, 1] + attempt.steps[-1, 2])
        later = attempts[place + 1 :]
        end_unix_s = _first_beyond(later, reached)
        if attempt.record.state != "failed" or end_unix_s is None:
            continue
        begin_unix_s = reached_unix_s if reached >= 0 else attempt.begin_unix_s
        # An attempt that came no further than the one before is a part of that one's recovery.
        if begin_unix_s < recovered_unix_s:
            continue
        recovered_unix_s = end_unix_s
        part = painted._replace(edges=np.clip(painted.edges, begin_unix_s, end_unix_s))
        yield Recovery(
            attempt=attempt.record.attempt,
            cause=attempt.record.failure.cause,
            what=attempt.record.failure.what,
            begin_unix_s=begin_unix_s,
            lost_steps=sum(_num_again(each, reached, end_unix_s) for each in later),
            total_s=end_unix_s - begin_unix_s,
            device_s=float(np.diff(part.edges) @ devices),
            parts_s=_with_steps_redone(part.seconds()),
        )


def _num_again(attempt: AttemptTrace, reached: float, end_unix_s: float) -> int:
    """Steps that the attempt made once more before that; what goes back later is another recovery's."""
    return int(((attempt.steps[:, 0] <= reached) & (attempt.steps[:, 1] < end_unix_s)).sum())


def _with_steps_redone(parts_s: Mapping[State, float]) -> dict[State, float]:
    of_steps = (*FORWARD, "checkpoint_stall", "redone")
    redone_s = sum(parts_s.get(state, 0.0) for state in of_steps)
    found = {state: seconds for state, seconds in parts_s.items() if state not in of_steps}
    return {**found, **({"redone": redone_s} if redone_s else {})}


def _first_beyond(attempts: Sequence[AttemptTrace], reached: float) -> float | None:
    """When a step began that had not been made before."""
    for attempt in attempts:
        beyond = attempt.steps[attempt.steps[:, 0] > reached]
        if len(beyond):
            return float(beyond[0, 1])
    return None
