"""What training came to, counted event by event: steps, tokens, collectives, checkpoints.

Of rank 0, and of the flow around it. Figures of earlier and later events add up, so that a run that goes on is followed
by its new events alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, Field

from headway.training.observe.ledger import Event
from headway.training.observe.step_summary import PARTS

STEP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
"""Of what is no step: checkpoints, recoveries."""
WHOLE = "step"
"""The name of whole steps among their parts."""
_OPERATIONS = {"checkpoint": "save", "restore": "restore", "stage.verify": "verify"}


class Histogram(BaseModel):
    """Counts of durations, each up to its bound and over the one before; the last is of all that are longer."""

    bounds_s: tuple[float, ...]
    counts: list[int]
    sum_s: float = 0.0

    @classmethod
    def empty(cls, bounds_s: Sequence[float]) -> Self:
        return cls(bounds_s=tuple(bounds_s), counts=[0] * (len(bounds_s) + 1))

    def take(self, value_s: float) -> None:
        self.counts[bisect_left(self.bounds_s, value_s)] += 1
        self.sum_s += value_s

    def add(self, other: Histogram) -> None:
        """Raises `ValueError`: it has other bounds."""
        if other.bounds_s != self.bounds_s:
            raise ValueError("histograms of other bounds do not add up")
        self.counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s


def take_into(histograms: dict[str, Histogram], name: str, value_s: float, bounds_s: Sequence[float]) -> None:
    if name not in histograms:
        histograms[name] = Histogram.empty(bounds_s)
    histograms[name].take(value_s)


def add_into(histograms: dict[str, Histogram], others: dict[str, Histogram]) -> None:
    for name, other in others.items():
        histograms.setdefault(name, Histogram.empty(other.bounds_s)).add(other)


class Traffic(BaseModel):
    """Collectives of one kind."""

    num_calls: int = 0
    sent_bytes: int = 0
    busy_s: float = 0.0


class StepFigures(BaseModel):
    """Of all steps that were made, those that were made again among them."""

    num_steps: int = 0
    num_excluded: int = 0
    """Batches that a guard left out."""
    num_nonfinite: int = 0
    """Steps whose loss was not finite."""
    num_tokens: int = 0
    durations_s: dict[str, Histogram] = Field(default_factory=dict)
    """By part, and of whole steps as `step`."""
    traffic: dict[str, Traffic] = Field(default_factory=dict)
    newest_step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    mfu: float | None = None
    """Of the newest step that has one; model FLOPs utilisation where the device's peak is known."""

    def take(self, event: Event) -> None:
        """Count an event, if it is a step's."""
        if event["event"] == "step":
            self._take_step(event)
        elif event["event"] == "step.excluded":
            self.num_excluded += 1

    def _take_step(self, step: Event) -> None:
        self.num_steps += 1
        self.newest_step = int(step["step"])
        self.num_tokens += int(step.get("tokens") or 0)
        self.num_nonfinite += finite(step.get("loss")) is None
        for name in ("loss", "grad_norm", "mfu"):
            if (value := finite(step.get(name))) is not None:
                setattr(self, name, value)
        take_into(self.durations_s, WHOLE, float(step.get("duration_s") or 0.0), STEP_BOUNDS_S)
        for part in PARTS:
            take_into(self.durations_s, part, float(step.get(f"{part}_s") or 0.0), STEP_BOUNDS_S)
        for kind, cost in (step.get("traffic") or {}).items():
            total = self.traffic.setdefault(str(kind), Traffic())
            total.num_calls += int(cost.get("num_calls") or 0)
            total.sent_bytes += int(cost.get("sent_bytes") or 0)
            total.busy_s += float(cost.get("busy_s") or 0.0)

    def add(self, later: StepFigures) -> None:
        """Those of later steps."""
        self.num_steps += later.num_steps
        self.num_excluded += later.num_excluded
        self.num_nonfinite += later.num_nonfinite
        self.num_tokens += later.num_tokens
        add_into(self.durations_s, later.durations_s)
        for kind, cost in later.traffic.items():
            total = self.traffic.setdefault(kind, Traffic())
            total.num_calls += cost.num_calls
            total.sent_bytes += cost.sent_bytes
            total.busy_s += cost.busy_s
        for name in ("newest_step", "loss", "grad_norm", "mfu"):
            if (value := getattr(later, name)) is not None:
                setattr(self, name, value)


class CheckpointFigures(BaseModel):
    """Of checkpoints that were saved, restored and verified."""

    counts: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By `save`, `restore` and `verify`, and by outcome: `ok`, `failed` or `corrupt`."""
    durations_s: dict[str, Histogram] = Field(default_factory=dict)
    """By the same; `save` is what steps waited, and `durable` goes on beside them."""
    durable_unix_s: float | None = None
    """When the newest was."""

    def take(self, event: Event) -> None:
        """Count an event, if it is of a checkpoint."""
        name = str(event["event"])
        if name == "checkpoint.quarantined":
            self._count("verify", "corrupt")
        elif name == "checkpoint.durable":
            self.durable_unix_s = float(event["unix_s"])
            take_into(self.durations_s, "durable", float(event.get("durable_s") or 0.0), LONG_BOUNDS_S)
        elif name in _OPERATIONS and "duration_s" in event:
            self._count(_OPERATIONS[name], "ok" if event.get("outcome") == "ok" else "failed")
            take_into(self.durations_s, _OPERATIONS[name], float(event["duration_s"]), LONG_BOUNDS_S)

    def _count(self, operation: str, outcome: str, number: int = 1) -> None:
        of = self.counts.setdefault(operation, {})
        of[outcome] = of.get(outcome, 0) + number

    def add(self, later: CheckpointFigures) -> None:
        for operation, outcomes in later.counts.items():
            for outcome, number in outcomes.items():
                self._count(operation, outcome, number)
        add_into(self.durations_s, later.durations_s)
        self.durable_unix_s = later.durable_unix_s or self.durable_unix_s


class TrainingFigures(BaseModel):
    """All of them."""

    steps: StepFigures = Field(default_factory=StepFigures)
    checkpoints: CheckpointFigures = Field(default_factory=CheckpointFigures)

    def take(self, event: Event) -> None:
        self.steps.take(event)
        self.checkpoints.take(event)

    def add(self, later: TrainingFigures) -> None:
        self.steps.add(later.steps)
        self.checkpoints.add(later.checkpoints)


def finite(value: Any) -> float | None:
    """None: it is no number, or none that can be counted with."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
