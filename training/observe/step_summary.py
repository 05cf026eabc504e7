"""What the steps of a run came to: percentiles, where their time went, how fast, how full. Pure; no torch."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable
from typing import Any, Self

from headway.data_contracts.store.documents import Frozen
from headway.training.observe.ledger import Event

PARTS = ("data", "forward", "backward", "sync", "staging", "optimizer")


def finite(value: Any) -> float | None:
    """None: it is no number, or none that can be counted with."""
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


class Percentiles(Frozen):
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        ordered = sorted(values)
        return cls(**{name: quantile(ordered, int(name[1:]) / 100) for name in cls.model_fields})


class TrafficSummary(Frozen):
    """What one kind of collective cost a rank in all steps."""

    num_calls: int
    sent_bytes: int
    busy_s: float


class StepSummary(Frozen):
    num_steps: int
    """Steps on record; one that was done again after a kill counts again."""
    num_excluded: int
    """Batches that a guard left out."""
    p50_s: float
    p95_s: float
    p99_s: float
    num_tokens: int
    """That were trained on."""
    tokens_per_s: float
    """Over the steps and what checkpoints kept them waiting."""
    shares: dict[str, float]
    """Of the steps' time, by part."""
    parts_s: dict[str, Percentiles]
    """Of each part of a step, and of `checkpoint`: what one kept the steps waiting."""
    loss: float | None
    """Of the last step that has one."""
    grad_norm: Percentiles | None
    checkpoint_stall_s: float
    """With what updates waited for their copies."""
    peak_memory_bytes: int
    sent_bytes: int
    traffic: dict[str, TrafficSummary]
    """By kind of collective."""
    mfu: float | None
    """Median model FLOPs utilisation, where the device's peak is known."""
    gradient_noise_scale: float | None
    """In rows, after the last step where it was known."""

    def line(self, targets: str = "targets") -> str:
        """For a person.

        Args:
            targets: what steps are counted in: tokens, or examples.
        """
        shares = ", ".join(f"{part} {100 * share:.0f} %" for part, share in self.shares.items())
        mfu = "" if self.mfu is None else f", MFU {100 * self.mfu:.1f} %"
        scale = self.gradient_noise_scale
        noise = "" if scale is None else f"; gradient noise scale {scale:,.3g} rows"
        return (
            f"{self.num_steps} steps, p50 {1000 * self.p50_s:.0f} ms, p95 {1000 * self.p95_s:.0f} ms, "
            f"p99 {1000 * self.p99_s:.0f} ms; {self.tokens_per_s:,.0f} {targets}/s{mfu}; {shares}; "
            f"{self.peak_memory_bytes / (1 << 20):,.0f} MiB at most{noise}"
        )


def summarise_steps(events: Iterable[Event]) -> StepSummary | None:
    """Of one rank's events, over all its attempts; None without a step."""
    figures = _Figures()
    for event in events:
        figures.take(event)
    return figures.summary() if len(figures.durations_s) else None


class _Figures:
    """Of each step only what percentiles want: a run may have millions of them."""

    def __init__(self) -> None:
        # Arrays of doubles: eight bytes a step instead of a Python object each.
        self.durations_s, self._stalls_s = array("d"), array("d")
        self._parts_s = {part: array("d") for part in PARTS}
        self._mfus, self._norms = array("d"), array("d")
        self._num_excluded = self._num_tokens = self._sent_bytes = self._peak_memory_bytes = 0
        self._loss: float | None = None
        self._noise_scale: float | None = None
        self._traffic: dict[str, dict[str, float]] = {}

    def take(self, event: Event) -> None:
        if event["event"] == "step":
            self._take_step(event)
        elif event["event"] == "step.excluded":
            self._num_excluded += 1
        elif event["event"] == "checkpoint":
            self._stalls_s.append(float(event.get("duration_s") or 0.0))

    def _take_step(self, step: Event) -> None:
        self.durations_s.append(float(step.get("duration_s") or 0.0))
        for part, values in self._parts_s.items():
            values.append(float(step.get(f"{part}_s") or 0.0))
        for name, found in (("mfu", self._mfus), ("grad_norm", self._norms)):
            if (value := finite(step.get(name))) is not None:
                found.append(value)
        self._num_tokens += int(step.get("tokens") or 0)
        self._sent_bytes += int(step.get("sent_bytes") or 0)
        self._peak_memory_bytes = max(self._peak_memory_bytes, int(step.get("memory_bytes") or 0))
        loss = finite(step.get("loss"))
        self._loss = self._loss if loss is None else loss
        # What is not known any more is not what it was.
        self._noise_scale = finite(step.get("gradient_noise_scale"))
        for kind, cost in (step.get("traffic") or {}).items():
            total = self._traffic.setdefault(kind, dict.fromkeys(TrafficSummary.model_fields, 0))
            for name in total:
                total[name] += cost.get(name) or 0

    def summary(self) -> StepSummary:
        total_s, stalls_s = sum(self.durations_s), sum(self._stalls_s)
        of_parts = {**self._parts_s, "checkpoint": self._stalls_s}
        steps = Percentiles.of(self.durations_s)
        return StepSummary(
            num_steps=len(self.durations_s),
            num_excluded=self._num_excluded,
            p50_s=steps.p50,
            p95_s=steps.p95,
            p99_s=steps.p99,
            num_tokens=self._num_tokens,
            # With what checkpoints kept the steps waiting, so the figure is of the time that really passed.
            tokens_per_s=self._num_tokens / max(total_s + stalls_s, 1e-9),
            shares={part: sum(values) / max(total_s, 1e-9) for part, values in self._parts_s.items()},
            parts_s={part: Percentiles.of(values) for part, values in of_parts.items() if values},
            loss=self._loss,
            grad_norm=Percentiles.of(self._norms) if self._norms else None,
            checkpoint_stall_s=stalls_s + sum(self._parts_s["staging"]),
            peak_memory_bytes=self._peak_memory_bytes,
            sent_bytes=self._sent_bytes,
            traffic={kind: TrafficSummary.model_validate(total) for kind, total in sorted(self._traffic.items())},
            mfu=statistics.median(self._mfus) if self._mfus else None,
            gradient_noise_scale=self._noise_scale,
        )


def quantile(values: Iterable[float], fraction: float) -> float:
    """The smallest value that this fraction of all does not exceed (nearest rank)."""
    ordered = sorted(values)
    # The nearest rank is a ceiling: the negated floor of the negative.
    return ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)]
