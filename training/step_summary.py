"""What the steps of a run came to: percentiles, where their time went, how fast, how full. Pure; no torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from data_contracts.documents import Frozen
from training.ledger import Event

PARTS = ("data", "forward", "backward", "sync", "staging", "optimizer")


class Percentiles(Frozen):
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        ordered = sorted(values)
        return cls(**{name: quantile(ordered, int(name[1:]) / 100) for name in cls.model_fields})


class KindOfTraffic(Frozen):
    """What one kind of collective cost a rank in all steps."""

    num_calls: int
    sent_bytes: int
    busy_s: float


class StepSummary(Frozen):
    num_steps: int
    """Steps on record; one that was done again after a kill counts again."""
    num_left_out: int
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
    traffic: dict[str, KindOfTraffic]
    """By kind of collective."""
    mfu: float | None
    """Median model FLOPs utilisation, where the device's peak is known."""

    def line(self) -> str:
        """For a person."""
        shares = ", ".join(f"{part} {100 * share:.0f} %" for part, share in self.shares.items())
        mfu = "" if self.mfu is None else f", MFU {100 * self.mfu:.1f} %"
        return (
            f"{self.num_steps} steps, p50 {1000 * self.p50_s:.0f} ms, p95 {1000 * self.p95_s:.0f} ms, "
            f"p99 {1000 * self.p99_s:.0f} ms; {self.tokens_per_s:,.0f} targets/s{mfu}; {shares}; "
            f"{self.peak_memory_bytes / (1 << 20):,.0f} MiB at most"
        )


def summarise_steps(events: Iterable[Event]) -> StepSummary | None:
    """Of one rank's events, over all its attempts; None without a step."""
    steps: list[Event] = []
    num_left_out = 0
    stalls_s: list[float] = []
    for event in events:
        if event["event"] == "step":
            steps.append(event)
        elif event["event"] == "step.left_out":
            num_left_out += 1
        elif event["event"] == "checkpoint":
            stalls_s.append(float(event["duration_s"]))
    if not steps:
        return None
    durations_s = [float(step["duration_s"]) for step in steps]
    total_s = sum(durations_s)
    num_tokens = sum(int(step["tokens"]) for step in steps)
    parts_s = {part: [float(step.get(f"{part}_s", 0.0)) for step in steps] for part in PARTS}
    mfus, norms, losses = (_values(steps, name) for name in ("mfu", "grad_norm", "loss"))
    return StepSummary(
        num_steps=len(steps),
        num_left_out=num_left_out,
        p50_s=quantile(durations_s, 0.50),
        p95_s=quantile(durations_s, 0.95),
        p99_s=quantile(durations_s, 0.99),
        num_tokens=num_tokens,
        tokens_per_s=num_tokens / max(total_s + sum(stalls_s), 1e-9),
        shares={part: sum(values) / max(total_s, 1e-9) for part, values in parts_s.items()},
        parts_s={
            part: Percentiles.of(values) for part, values in {**parts_s, "checkpoint": stalls_s}.items() if values
        },
        loss=losses[-1] if losses else None,
        grad_norm=Percentiles.of(norms) if norms else None,
        checkpoint_stall_s=sum(stalls_s) + sum(parts_s["staging"]),
        peak_memory_bytes=max(int(step.get("memory_bytes", 0)) for step in steps),
        sent_bytes=sum(int(step.get("sent_bytes", 0)) for step in steps),
        traffic=_traffic(steps),
        mfu=statistics.median(mfus) if mfus else None,
    )


def _values(steps: Sequence[Event], name: str) -> list[float]:
    return [float(step[name]) for step in steps if name in step]


def _traffic(steps: Sequence[Event]) -> dict[str, KindOfTraffic]:
    found: dict[str, list[Mapping[str, float]]] = {}
    for step in steps:
        for kind, cost in step.get("traffic", {}).items():
            found.setdefault(kind, []).append(cost)
    return {
        kind: KindOfTraffic(
            num_calls=sum(int(cost["num_calls"]) for cost in costs),
            sent_bytes=sum(int(cost["sent_bytes"]) for cost in costs),
            busy_s=sum(cost["busy_s"] for cost in costs),
        )
        for kind, costs in sorted(found.items())
    }


def quantile(values: Iterable[float], fraction: float) -> float:
    """The smallest value that this fraction of all does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)]
