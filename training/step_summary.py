"""What the steps of a run came to: percentiles, where their time went, how fast, how full. Pure; no torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from data_contracts.documents import Frozen
from training.ledger import Event

PARTS = ("data", "forward", "backward", "sync", "optimizer")


class StepSummary(Frozen):
    num_steps: int
    """Steps on record; one that was done again after a kill counts again."""
    num_left_out: int
    """Batches that a guard left out."""
    p50_s: float
    p95_s: float
    p99_s: float
    tokens_per_s: float
    """Over the steps and what checkpoints kept them waiting."""
    shares: dict[str, float]
    """Of the steps' time, by part."""
    checkpoint_stall_s: float
    peak_memory_bytes: int
    sent_bytes: int
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
    num_left_out, stall_s = 0, 0.0
    for event in events:
        if event["event"] == "step":
            steps.append(event)
        elif event["event"] == "step.left_out":
            num_left_out += 1
        elif event["event"] == "checkpoint":
            stall_s += float(event["duration_s"])
    if not steps:
        return None
    durations_s = [float(step["duration_s"]) for step in steps]
    total_s = sum(durations_s)
    mfus = [float(step["mfu"]) for step in steps if "mfu" in step]
    return StepSummary(
        num_steps=len(steps),
        num_left_out=num_left_out,
        p50_s=quantile(durations_s, 0.50),
        p95_s=quantile(durations_s, 0.95),
        p99_s=quantile(durations_s, 0.99),
        tokens_per_s=sum(int(step["tokens"]) for step in steps) / max(total_s + stall_s, 1e-9),
        shares={part: sum(float(step.get(f"{part}_s", 0.0)) for step in steps) / max(total_s, 1e-9) for part in PARTS},
        checkpoint_stall_s=stall_s,
        peak_memory_bytes=max(int(step.get("memory_bytes", 0)) for step in steps),
        sent_bytes=sum(int(step.get("sent_bytes", 0)) for step in steps),
        mfu=statistics.median(mfus) if mfus else None,
    )


def quantile(values: Iterable[float], fraction: float) -> float:
    """The smallest value that this fraction of all does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)]
