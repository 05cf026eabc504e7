"""Goodput: what every device-second of a flow run was good for, and of a run's whole life over all its flow runs.

A step is productive once: where it is made first. Made again after a restart or a roll-back it is `redone`, so what an
account says never changes by what comes later, and accounts of flow runs add up. States sum to wall time times devices.

The ratio of productive time to all of it is the effective training time ratio, ETTR (Kokolis et al., "Revisiting
Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from headway.flows.accounts.figures import Amount, Count, Moment, Step, Text
from headway.flows.accounts.painting import Painted, Span, paint
from headway.flows.accounts.traces import COLUMNS, AttemptTrace, FlowTrace
from headway.tasks.core.stage_records import STAGES
from headway.training.observe.ledger import Event
from headway.training.observe.step_summary import PARTS

State = Literal[
    "productive",
    "data_wait",
    "sync",
    "validation",
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
    "validation": "training held up by looking at the validation split",
    "checkpoint_stall": "training waiting for a checkpoint's copy",
    "redone": "steps that had been made before",
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
OF_STEPS: tuple[State, ...] = ("productive", "data_wait", "sync", "validation", "checkpoint_stall")
"""The same, with what validations and checkpoints keep them waiting."""
_OF_PARTS: Mapping[str, State] = {"data": "data_wait", "sync": "sync", "staging": "checkpoint_stall"}
_OF_STAGES: Mapping[str, State] = {
    **dict.fromkeys(STAGES, "preparation"),
    **{"launch": "start", "rung": "start", "verify": "evaluation", "evaluate": "evaluation"},
    **{"score": "evaluation", "finalists": "evaluation", "folds": "evaluation", "score fold": "evaluation"},
    "register": "registration",
}
_OF_EVENTS: Mapping[str, State] = {
    **{"start": "start", "prefect": "orchestration", "check": "preparation"},
    **{"run.wait": "queue", "devices.wait": "queue", "launch.submit": "queue", "launch.follow": "queue"},
    **{"launch.lease": "start", "launch.freeze": "start", "launch.reattach": "teardown"},
    **{"attempt.gather": "start", "attempt.muster": "start", "attempt.preflight": "start", "attempt.start": "start"},
    **{"attempt.ending": "teardown", "attempt.backoff": "backoff", "checkpoints.fetch": "restore"},
    **{"rank.imports": "start", "run.open": "start", "data.open": "start"},
    **{"rendezvous": "rendezvous", "restore": "restore", "restore.best": "restore", "checkpoint": "checkpoint_stall"},
    "validation": "validation",
    **{"wind_down": "teardown", "result": "teardown", "result.check": "start", "teardown": "teardown"},
    "end": "teardown",
}
"""Spans of flows, jobs and rank 0. What is not among them belongs to what it lies in."""
_GAPS: Mapping[str, State] = {"window closed": "closed_window", "": "down"}


class Recovery(BaseModel):
    """From the last new step before something went wrong to the next one; all steps in between are `redone`."""

    attempt: Count
    """The one that ended."""
    cause: Text
    what: Text
    begin_unix_s: Moment
    lost_steps: Count
    """That had to be made again."""
    total_s: Amount
    device_s: Amount
    parts_s: dict[State, Amount]


class Goodput(BaseModel):
    """Of one flow run, from the end of the run's flow run before it."""

    begin_unix_s: Moment
    end_unix_s: Moment
    num_attempts: Count
    num_steps: Count
    """Made for the first time."""
    num_redone_steps: Count
    num_tokens: Count
    """Of steps made for the first time."""
    devices: Count
    """Of the newest attempt, of this flow run or an earlier one."""
    device_s: Amount
    parts_s: dict[State, Amount]
    """Wall seconds by state, the largest first; they sum to the wall time."""
    parts_device_s: dict[State, Amount]
    """The same times devices; before an attempt those that it has."""
    recoveries: list[Recovery]
    """That came to an end here, wherever they began."""
    open_recovery: Recovery | None
    """What has failed, so far; also of a flow run that failed for good."""
    wasted_device_s: dict[Text, dict[State, Amount]]
    """Of this flow run's device-seconds those that were part of a recovery, by its cause and by state."""
    reached_step: Step
    """The furthest of the run's life so far; -1 before its first."""
    reached_unix_s: Moment
    """When that was made."""
    stopped_for: Text
    """Why it stopped in order, such as `window closed`; empty: it did not."""

    @property
    def wall_s(self) -> float:
        return self.end_unix_s - self.begin_unix_s

    @property
    def ettr(self) -> float:
        """Effective training time ratio: device-seconds of new steps, whole, over all."""
        forward_s = sum(self.parts_device_s.get(state, 0.0) for state in FORWARD)
        return forward_s / self.device_s if self.device_s else 0.0

    def epoch_s(self, steps_per_epoch: float | None) -> float | None:
        """Seconds of an epoch's steps; None where that is not known, or no step was made."""
        return _epoch_s(self.parts_s, self.num_steps, steps_per_epoch)


def _epoch_s(parts_s: Mapping[State, float], num_steps: int, steps_per_epoch: float | None) -> float | None:
    if not (steps_per_epoch and num_steps):
        return None
    return sum(parts_s.get(state, 0.0) for state in OF_STEPS) / num_steps * steps_per_epoch


def goodput_of(flow: FlowTrace, attempts: Sequence[AttemptTrace], before: Goodput | None) -> Goodput:
    """The account of one flow run.

    Args:
        attempts: its own at training, oldest first.
        before: of the run's flow run before it, whose reach it starts from.
    """
    begin_unix_s = flow.begin_unix_s if before is None else before.end_unix_s
    end_unix_s = max(begin_unix_s, flow.end_unix_s, *(attempt.end_unix_s for attempt in attempts))
    reached_step = -1 if before is None else before.reached_step
    steps = _steps(attempts)
    is_new = _is_new(steps[:, 0], reached_step)
    gap: State = "down" if before is None else _GAPS.get(before.stopped_for, "stopped")
    spans = itertools.chain(_flow_spans(flow), _attempt_spans(attempts, is_new))
    painted: Painted[State] = paint(spans, begin_unix_s, end_unix_s, ground=gap)
    devices = _devices(attempts, painted, 1 if before is None else before.devices)
    found = _Recoveries(painted, devices, steps[~is_new, 1], before)
    for attempt, of_attempt in _each(attempts, is_new):
        found.take(attempt, attempt.steps[of_attempt])
    return Goodput(
        begin_unix_s=begin_unix_s,
        end_unix_s=end_unix_s,
        num_attempts=len(attempts),
        num_steps=int(is_new.sum()),
        num_redone_steps=int((~is_new).sum()),
        num_tokens=int(steps[is_new, COLUMNS.index("tokens")].sum()),
        devices=int(devices[-1]) if len(devices) else 1,
        device_s=float(np.diff(painted.edges) @ devices),
        parts_s=painted.seconds(),
        parts_device_s=painted.seconds(devices),
        open_recovery=found.so_far(),
        recoveries=found.closed,
        wasted_device_s=found.wasted_device_s,
        reached_step=found.reached_step,
        reached_unix_s=found.reached_unix_s,
        stopped_for=flow.stopped_for,
    )


def goodput_of_trials(flow: FlowTrace, runs: Sequence[Sequence[AttemptTrace]]) -> Goodput:
    """The account of a flow run that was at several runs, as trials are, in turn or beside each other.

    Each run's devices are its own from its first attempt to its last, or until it pauses at a rung; before, between and
    after them the flow run holds as many as the largest had. Of wall time, which passes once, an instant of several
    runs has the state of one.

    Args:
        runs: attempts of each, oldest first.
    """
    runs = [stretch for attempts in runs for stretch in _stretches(attempts)]
    own = [goodput_of(_while_trained(flow, attempts), attempts, None) for attempts in runs if attempts]
    if not own:
        return goodput_of(flow, (), None)
    end_unix_s = max(flow.end_unix_s, *(each.end_unix_s for each in own))
    spans = itertools.chain(
        _flow_spans(flow),
        *(_attempt_spans(attempts, _is_new(_steps(attempts)[:, 0], -1)) for attempts in runs),
    )
    painted: Painted[State] = paint(spans, flow.begin_unix_s, end_unix_s, ground="down")
    devices = max(each.devices for each in own)
    middles = (painted.edges[:-1] + painted.edges[1:]) / 2
    is_own = np.logical_or.reduce([(each.begin_unix_s <= middles) & (middles < each.end_unix_s) for each in own])
    between = np.where(is_own, 0.0, float(devices))
    wasted: dict[str, dict[State, float]] = {}
    for each in own:
        for cause, parts in each.wasted_device_s.items():
            wasted[cause] = added(wasted.get(cause, {}), parts)
    return Goodput(
        begin_unix_s=flow.begin_unix_s,
        end_unix_s=end_unix_s,
        num_attempts=sum(each.num_attempts for each in own),
        num_steps=sum(each.num_steps for each in own),
        num_redone_steps=sum(each.num_redone_steps for each in own),
        num_tokens=sum(each.num_tokens for each in own),
        devices=devices,
        device_s=sum(each.device_s for each in own) + float(np.diff(painted.edges) @ between),
        parts_s=painted.seconds(),
        parts_device_s=functools.reduce(added, (each.parts_device_s for each in own), painted.seconds(between)),
        open_recovery=None,
        recoveries=[recovery for each in own for recovery in each.recoveries],
        wasted_device_s=wasted,
        reached_step=max(each.reached_step for each in own),
        reached_unix_s=max(each.reached_unix_s for each in own),
        stopped_for=flow.stopped_for,
    )


def _stretches(attempts: Sequence[AttemptTrace]) -> list[Sequence[AttemptTrace]]:
    """Those between two pauses at rungs, while others of the flow run's runs train."""
    ends = [
        place
        for place, attempt in enumerate(attempts, 1)
        if attempt.record.state == "stopped" and attempt.record.failure.reason == "step reached"
    ]
    bounds = [0, *(end for end in ends if end < len(attempts)), len(attempts)]
    return [attempts[begin:end] for begin, end in itertools.pairwise(bounds)]


def _while_trained(flow: FlowTrace, attempts: Sequence[AttemptTrace]) -> FlowTrace:
    return replace(flow, begin_unix_s=attempts[0].begin_unix_s, end_unix_s=attempts[-1].end_unix_s, stopped_for="")


def _steps(attempts: Sequence[AttemptTrace]) -> NDArray[np.float64]:
    return np.concatenate([attempt.steps for attempt in attempts]) if attempts else np.empty((0, len(COLUMNS)))


def _is_new(steps: NDArray[np.float64], reached_step: int) -> NDArray[np.bool_]:
    """Whether each step, in order of time, is further than all before it."""
    furthest_before = np.maximum.accumulate(np.append(float(reached_step), steps))[:-1]
    found: NDArray[np.bool_] = steps > furthest_before
    return found


def _flow_spans(flow: FlowTrace) -> Iterator[Span[State]]:
    yield "orchestration", flow.begin_unix_s, flow.end_unix_s
    yield from _of_ledger(flow.events)


def _attempt_spans(attempts: Sequence[AttemptTrace], is_new: NDArray[np.bool_]) -> Iterator[Span[State]]:
    for attempt, of_attempt in _each(attempts, is_new):
        yield from _of_attempt(attempt, of_attempt)


def _each(
    attempts: Sequence[AttemptTrace], is_new: NDArray[np.bool_]
) -> Iterator[tuple[AttemptTrace, NDArray[np.bool_]]]:
    done = 0
    for attempt in attempts:
        yield attempt, is_new[done : done + len(attempt.steps)]
        done += len(attempt.steps)


def _of_ledger(events: Sequence[Event]) -> Iterator[Span[State]]:
    for event in events:
        name = str(event["event"])
        if event.get("duration_s") is None or "outcome" not in event:
            continue
        stage = str(event.get("task", "")) if name == "task" else name.partition("stage.")[2]
        state = _OF_STAGES.get(stage) if stage else _OF_EVENTS.get(name)
        if state is not None:
            yield state, float(event["unix_s"]), float(event["unix_s"]) + float(event["duration_s"])


def _of_attempt(attempt: AttemptTrace, is_new: NDArray[np.bool_]) -> Iterator[Span[State]]:
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
    for row, is_first in zip(attempt.steps, is_new, strict=True):
        step_begin_s, step_end_s = row[1], row[1] + row[2]
        yield ("productive" if is_first else "redone"), step_begin_s, step_end_s
        if is_first:
            at_s = step_begin_s
            for place, part in enumerate(PARTS, start=len(COLUMNS) - len(PARTS)):
                yield _OF_PARTS.get(part, "productive"), at_s, min(at_s + row[place], step_end_s)
                at_s += row[place]


def _devices(attempts: Sequence[AttemptTrace], painted: Painted[State], before: int) -> NDArray[np.float64]:
    """How many devices each stretch has: the attempt's that goes on, or that comes next, or that was the last."""
    sizes = np.array([attempt.world_size or 0 for attempt in attempts] or [before], np.float64)
    # An attempt that came to no model had as many as the next that did.
    for place in reversed(range(len(sizes) - 1)):
        sizes[place] = sizes[place] or sizes[place + 1]
    sizes = np.where(sizes > 0, sizes, sizes.max() or before)
    ends = np.array([attempt.end_unix_s for attempt in attempts] or [painted.edges[-1]])
    found: NDArray[np.float64] = sizes[np.minimum(np.searchsorted(ends, painted.edges[1:]), len(sizes) - 1)]
    return found


class _Recoveries:
    """Follows the attempts of a flow run: how far they came, and what failed and has not been made good."""

    def __init__(
        self,
        painted: Painted[State],
        devices: NDArray[np.float64],
        redone_unix_s: NDArray[np.float64],
        before: Goodput | None,
    ) -> None:
        self._painted, self._devices, self._redone_unix_s = painted, devices, redone_unix_s
        self.reached_step = -1 if before is None else before.reached_step
        self.reached_unix_s = painted.edges[0] if before is None else before.reached_unix_s
        self.closed: list[Recovery] = []
        self.wasted_device_s: dict[str, dict[State, float]] = {}
        self._open = None if before is None else before.open_recovery
        self._since_unix_s = float(painted.edges[0])
        """From when on time is still to be added to the one that is open."""

    def take(self, attempt: AttemptTrace, new: NDArray[np.float64]) -> None:
        """Args:
        new: its steps that had not been made before.
        """
        if len(new):
            if self._open is not None:
                self.closed.append(self._with_time_until(self._open, float(new[0, 1])))
                self._open = None
            self.reached_step = int(new[-1, 0])
            self.reached_unix_s = float(new[-1, 1] + new[-1, 2])
        # An attempt that came no further than the one before is a part of that one's recovery.
        if attempt.record.state == "failed" and self._open is None:
            begin_unix_s = self.reached_unix_s if self.reached_step >= 0 else attempt.begin_unix_s
            self._since_unix_s = max(begin_unix_s, float(self._painted.edges[0]))
            failure = attempt.record.failure
            self._open = Recovery(
                attempt=attempt.record.attempt,
                cause=failure.cause,
                what=failure.what,
                begin_unix_s=begin_unix_s,
                lost_steps=0,
                total_s=0.0,
                device_s=0.0,
                parts_s={},
            )

    def so_far(self) -> Recovery | None:
        """What is open at the end."""
        return None if self._open is None else self._with_time_until(self._open, float(self._painted.edges[-1]))

    def _with_time_until(self, recovery: Recovery, end_unix_s: float) -> Recovery:
        begin_unix_s = self._since_unix_s
        part = self._painted._replace(edges=np.clip(self._painted.edges, begin_unix_s, end_unix_s))
        again = (self._redone_unix_s >= begin_unix_s) & (self._redone_unix_s < end_unix_s)
        wasted = added(self.wasted_device_s.get(recovery.cause, {}), part.seconds(self._devices))
        self.wasted_device_s[recovery.cause] = wasted
        return recovery.model_copy(
            update={
                "lost_steps": recovery.lost_steps + int(again.sum()),
                "total_s": recovery.total_s + end_unix_s - begin_unix_s,
                "device_s": recovery.device_s + float(np.diff(part.edges) @ self._devices),
                "parts_s": added(recovery.parts_s, part.seconds()),
            }
        )


def added(*parts: Mapping[State, float]) -> dict[State, float]:
    """Seconds by state, summed, the largest first."""
    total: dict[State, float] = {}
    for part in parts:
        for state, seconds in part.items():
            total[state] = total.get(state, 0.0) + seconds
    return dict(sorted(total.items(), key=lambda part: -part[1]))


class RunGoodput(BaseModel):
    """Of one run's whole life, up to its registration, or so far."""

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
    """The same times devices."""
    ettr: float
    """Effective training time ratio: device-seconds of steps that count, whole, over all."""
    productive_ratio: float
    """Of them forward, backward and update alone."""
    tokens_per_s: float
    """Effective: over the wall time of the whole life."""
    num_epochs: float | None
    """That its steps came to; None: nobody knows how many steps are one, or datasets are mixed."""
    epoch_s: float | None
    """Seconds of an epoch's steps, with what checkpoints kept them waiting."""
    epoch_wall_s: float | None
    """Effective: wall time of the whole life over its epochs."""
    waste_device_s: dict[str, float]
    """By cause of a failed attempt: what it took to be where it had been, so far."""
    recoveries: list[Recovery]
    open_recovery: Recovery | None
    """What failed last, if the run is no further since."""


class Life(NamedTuple):
    """The flow runs of a run, oldest first, up to the first that registered its model: later ones found it."""

    run: str
    pipeline: str
    is_over: bool
    flows: Sequence[Goodput]
    steps_per_epoch: float | None = None


def run_goodput(life: Life) -> RunGoodput:
    """The account of a run: the sum of its flow runs'."""
    flows = life.flows
    begin_unix_s, end_unix_s = flows[0].begin_unix_s, flows[-1].end_unix_s
    parts_device_s = added(*(flow.parts_device_s for flow in flows))
    device_s, wall_s = sum(flow.device_s for flow in flows), end_unix_s - begin_unix_s
    num_tokens = sum(flow.num_tokens for flow in flows)
    recoveries = [recovery for flow in flows for recovery in flow.recoveries]
    waste: dict[str, float] = {}
    for flow in flows:
        for cause, wasted in flow.wasted_device_s.items():
            waste[cause] = waste.get(cause, 0.0) + sum(wasted.values())
    num_steps, parts_s = sum(flow.num_steps for flow in flows), added(*(flow.parts_s for flow in flows))
    per_epoch = life.steps_per_epoch if num_steps else None
    return RunGoodput(
        run=life.run,
        pipeline=life.pipeline,
        begin_unix_s=begin_unix_s,
        end_unix_s=end_unix_s,
        is_over=life.is_over,
        num_flow_runs=len(flows),
        num_attempts=sum(flow.num_attempts for flow in flows),
        num_steps=num_steps,
        num_redone_steps=sum(flow.num_redone_steps for flow in flows),
        num_tokens=num_tokens,
        devices=flows[-1].devices,
        wall_s=wall_s,
        device_s=device_s,
        parts_s=parts_s,
        parts_device_s=parts_device_s,
        ettr=sum(parts_device_s.get(state, 0.0) for state in FORWARD) / device_s if device_s else 0.0,
        productive_ratio=parts_device_s.get("productive", 0.0) / device_s if device_s else 0.0,
        tokens_per_s=num_tokens / wall_s if wall_s else 0.0,
        num_epochs=num_steps / per_epoch if per_epoch else None,
        epoch_s=_epoch_s(parts_s, num_steps, per_epoch),
        epoch_wall_s=wall_s / num_steps * per_epoch if per_epoch else None,
        waste_device_s=dict(sorted(waste.items(), key=lambda part: -part[1])),
        recoveries=recoveries,
        open_recovery=flows[-1].open_recovery,
    )
