"""What training came to, counted event by event: steps, tokens, collectives, checkpoints.

Of rank 0, and of the flow around it. Figures of earlier and later events add up, so that a run that goes on is followed
by its new events alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from headway.training.guards.step_guard import NON_FINITE
from headway.training.observe.ledger import Event
from headway.training.observe.ledger_lines import LARGEST, LATEST_UNIX_S
from headway.training.observe.step_summary import PARTS, finite

WHOLE = "step"
"""The name of whole steps among their parts."""
_OPERATIONS = {"checkpoint": "save", "restore": "restore", "stage.verify": "verify"}

Count = Annotated[int, Field(ge=0, lt=LARGEST)]
Step = Annotated[int, Field(ge=-1, lt=LARGEST)]
"""-1: none."""
Moment = Annotated[float, Field(ge=0.0, lt=LATEST_UNIX_S)]
"""In seconds since 1970, and in a calendar's reach."""
Amount = Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]
"""Of seconds, or of seconds times devices: whatever adds them up has a finite sum."""
Text = Annotated[str, AfterValidator(lambda text: text.encode(errors="backslashreplace").decode())]
"""Such as can be written: half a surrogate, which the name of a file may hold, is spelled out."""
Scale = Literal["step", "long", "run"]
BOUNDS_S: Mapping[Scale, tuple[float, ...]] = {
    "step": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "long": (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0),
    "run": (60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0, 604800.0),
}
"""Of histograms: of steps and their parts, of checkpoints and recoveries, and of whole flow runs."""


class AddedUp(BaseModel):
    """What is added up in place is looked at again once it becomes part of an account: a sum may be past all bounds."""

    model_config = ConfigDict(allow_inf_nan=False, revalidate_instances="always")


class Histogram(AddedUp):
    """Counts of durations, each up to its bound and over the one before; the last is of all that are longer."""

    scale: Scale
    counts: list[Count]
    sum_s: Amount = 0.0

    @model_validator(mode="after")
    def _has_a_count_for_each_bound(self) -> Self:
        if len(self.counts) != len(self.bounds_s) + 1:
            raise ValueError("a histogram has a count for each bound, and one more")
        return self

    @property
    def bounds_s(self) -> tuple[float, ...]:
        return BOUNDS_S[self.scale]

    @classmethod
    def empty(cls, scale: Scale) -> Self:
        return cls(scale=scale, counts=[0] * (len(BOUNDS_S[scale]) + 1))

    def take(self, value_s: float) -> None:
        self.counts[bisect_left(self.bounds_s, value_s)] += 1
        self.sum_s += value_s

    def add(self, other: Histogram) -> None:
        """Of the same scale."""
        self.counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s


def take_into(histograms: dict[str, Histogram], name: str, value_s: float, scale: Scale) -> None:
    if name not in histograms:
        histograms[name] = Histogram.empty(scale)
    histograms[name].take(value_s)


def add_into(histograms: dict[str, Histogram], others: Mapping[str, Histogram], scale: Scale) -> None:
    for name, other in others.items():
        histograms.setdefault(name, Histogram.empty(scale)).add(other)


def _of_scale(scale: Scale) -> AfterValidator:
    def check(histograms: dict[str, Histogram]) -> dict[str, Histogram]:
        if any(histogram.scale != scale for histogram in histograms.values()):
            raise ValueError(f"these are histograms of scale {scale}")
        return histograms

    return AfterValidator(check)


class TrafficTotals(AddedUp):
    """Collectives of one kind."""

    num_calls: Count = 0
    sent_bytes: Count = 0
    busy_s: Amount = 0.0


OF_NEWEST_STEP = ("loss", "grad_norm", "mfu")


class StepFigures(AddedUp):
    """Of all steps that were made, those that were made again among them."""

    num_steps: Count = 0
    num_excluded: Count = 0
    """Batches that a guard left out."""
    num_nonfinite: Count = 0
    """Steps whose loss or gradient was not finite, whatever followed."""
    num_tokens: Count = 0
    durations_s: Annotated[dict[Text, Histogram], _of_scale("step")] = Field(default_factory=dict)
    """By part, and of whole steps as `step`."""
    traffic: dict[Text, TrafficTotals] = Field(default_factory=dict)
    loss: float | None = None
    grad_norm: float | None = None
    gradient_noise_scale: float | None = None
    """In rows."""
    mfu: float | None = None
    """Of the newest step that has one; model FLOPs utilisation where the device's peak is known."""

    def take(self, event: Event) -> None:
        """Count an event, if it is of a step."""
        if event["event"] == "step":
            self._take_step(event)
        elif event["event"] == "step.excluded":
            self.num_excluded += 1
        # A guard takes no such step: it is left out, gone back before, or the last of its run.
        elif event["event"] == "guard" and event.get("alarm") == NON_FINITE:
            self.num_nonfinite += 1

    def _take_step(self, step: Event) -> None:
        self.num_steps += 1
        self.num_tokens += int(step.get("tokens") or 0)
        self.num_nonfinite += finite(step.get("loss")) is None
        for name in OF_NEWEST_STEP:
            if (value := finite(step.get(name))) is not None:
                setattr(self, name, value)
        # What is not known any more is not what it was.
        self.gradient_noise_scale = finite(step.get("gradient_noise_scale"))
        take_into(self.durations_s, WHOLE, float(step.get("duration_s") or 0.0), "step")
        for part in PARTS:
            take_into(self.durations_s, part, float(step.get(f"{part}_s") or 0.0), "step")
        for kind, cost in (step.get("traffic") or {}).items():
            total = self.traffic.setdefault(str(kind), TrafficTotals())
            total.num_calls += int(cost.get("num_calls") or 0)
            total.sent_bytes += int(cost.get("sent_bytes") or 0)
            total.busy_s += float(cost.get("busy_s") or 0.0)

    def add(self, later: StepFigures) -> None:
        """Those of later steps."""
        self.num_steps += later.num_steps
        self.num_excluded += later.num_excluded
        self.num_nonfinite += later.num_nonfinite
        self.num_tokens += later.num_tokens
        add_into(self.durations_s, later.durations_s, "step")
        for kind, cost in later.traffic.items():
            total = self.traffic.setdefault(kind, TrafficTotals())
            total.num_calls += cost.num_calls
            total.sent_bytes += cost.sent_bytes
            total.busy_s += cost.busy_s
        for name in OF_NEWEST_STEP:
            if (value := getattr(later, name)) is not None:
                setattr(self, name, value)
        if later.num_steps:
            self.gradient_noise_scale = later.gradient_noise_scale


class CheckpointFigures(AddedUp):
    """Of checkpoints that were saved, restored and verified."""

    counts: dict[Text, dict[Text, Count]] = Field(default_factory=dict)
    """By `save`, `restore` and `verify`, and by outcome: `ok`, `failed` or `corrupt`."""
    durations_s: Annotated[dict[Text, Histogram], _of_scale("long")] = Field(default_factory=dict)
    """By the same; `save` is what steps waited, and `durable` goes on beside them."""

    def take(self, event: Event) -> None:
        """Count an event, if it is of a checkpoint."""
        name = str(event["event"])
        if name == "checkpoint.quarantined":
            self._count("verify", "corrupt")
        elif name == "checkpoint.durable":
            take_into(self.durations_s, "durable", float(event.get("durable_s") or 0.0), "long")
        elif name in _OPERATIONS and event.get("duration_s") is not None:
            self._count(_OPERATIONS[name], "ok" if event.get("outcome") == "ok" else "failed")
            take_into(self.durations_s, _OPERATIONS[name], float(event["duration_s"]), "long")

    def _count(self, operation: str, outcome: str, number: int = 1) -> None:
        of = self.counts.setdefault(operation, {})
        of[outcome] = of.get(outcome, 0) + number

    def add(self, later: CheckpointFigures) -> None:
        for operation, outcomes in later.counts.items():
            for outcome, number in outcomes.items():
                self._count(operation, outcome, number)
        add_into(self.durations_s, later.durations_s, "long")


class TrainingFigures(AddedUp):
    """All of them."""

    steps: StepFigures = Field(default_factory=StepFigures)
    checkpoints: CheckpointFigures = Field(default_factory=CheckpointFigures)

    def take(self, event: Event) -> None:
        self.steps.take(event)
        self.checkpoints.take(event)

    def add(self, later: TrainingFigures) -> None:
        self.steps.add(later.steps)
        self.checkpoints.add(later.checkpoints)
