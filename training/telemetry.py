"""What a rank writes down about each step: where its time went, and what came of it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["taken", "overflowed", "left out"]
"""Of a step: the weights moved; a gradient overflowed in fp16 and the step is lost; or a guard left its batch out, and
the same step is tried on the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One optimizer step; its parts make up its duration. `step` counts from 1.

    `data_s` is what the step waited for its rows, and what it took to write down the step before.
    """

    step: int
    window: int
    """Which global batch of the sample order it was trained on, counted from 0."""
    outcome: Outcome
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    unix_s: float
    duration_s: float
    data_s: float
    compute_s: float
    sync_s: float
    optimizer_s: float

    def as_event(self) -> tuple[str, dict[str, Any]]:
        """Name and fields for the ledger; a number that is not finite is left out, since JSON has no word for it."""
        fields = asdict(self)
        for name in ("loss", "grad_norm"):
            if not math.isfinite(fields[name]):
                del fields[name]
        return "step.left_out" if self.outcome == "left out" else "step", fields


class Stopwatch:
    """Laps without gaps: each begins where the last one ended."""

    def __init__(self) -> None:
        self._last_s, self.last_unix_s = time.perf_counter(), time.time()

    def lap(self) -> float:
        """Seconds since the last lap, or since the start."""
        lap_s = time.perf_counter() - self._last_s
        self._last_s += lap_s
        self.last_unix_s += lap_s
        return lap_s
