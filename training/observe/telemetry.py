"""What a rank writes down about each step: where its time went, and what came of it.

Costs tens of microseconds a step: clocks are read, the ledger gets one line, nothing is asked of a device that the step
does not wait for anyway.
"""

from __future__ import annotations

import contextlib
import math
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from headway.training.observe.traffic import Traffic, TrafficMeter, as_fields

LAPS = ("data", "compute", "sync", "staging", "optimizer")
Outcome = Literal["taken", "overflowed", "excluded"]
"""Of a step: the weights moved; a gradient overflowed in fp16 and the step is lost; or a guard left its batch out, and
the same step is tried on the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One optimizer step; its parts make up its duration. `step` counts from 1."""

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
    """What the step waited for its rows, and what it took to write down the step before."""
    forward_s: float
    backward_s: float
    """What communication runs beside it does not show."""
    sync_s: float
    """What the step waited for its peers: exposed communication, inside of passes too, and the bubble of a pipeline. On
    CUDA, what FSDP2 and tensor-parallel layers wait for inside a pass is part of that pass."""
    staging_s: float
    """What the update waited for a checkpoint that was still copied."""
    optimizer_s: float
    memory_bytes: int
    """The most so far that was allocated on the GPU, or resident where there is none."""
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    """Of the step's collectives, by kind."""
    mfu: float | None = None
    """Model FLOPs utilisation (Chowdhery et al., PaLM, 2022), where the device's peak is known."""
    gradient_noise_scale: float | None = None
    """In rows, over the last steps (McCandlish et al., 2018), where it is measured."""

    batch_rows: int | None = None
    """Of the global batch, where it grows over the run."""
    relative_share: float | None = None
    """Of the rank, beside what it would have if all had as much; None: it is that."""
    staleness: int | None = None
    """Updates between its weights and itself, where ranks do not wait for each other."""
    ends_round: bool | None = None
    """Whether ranks met after it, where islands train apart for some steps; None: they do after each."""

    def as_event(self) -> tuple[str, dict[str, Any]]:
        """Name and fields for the ledger; a number that is not finite is left out, since JSON has no word for it."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        for name in ("loss", "grad_norm"):
            if not math.isfinite(fields[name]):
                del fields[name]
        for name in ("mfu", "gradient_noise_scale", "batch_rows", "relative_share", "staleness", "ends_round"):
            if fields[name] is None:
                del fields[name]
        fields |= as_fields(fields.pop("traffic"))
        return "step.excluded" if self.outcome == "excluded" else "step", fields


class StepTimes(NamedTuple):
    """Where the time of a step went."""

    started_unix_s: float
    laps_s: Mapping[str, float]

    @property
    def duration_s(self) -> float:
        return sum(self.laps_s.values())

    def shared_out(self, count: int, *, data_s: float) -> list[StepTimes]:
        """Of so many steps that were made side by side, as if one after another.

        Args:
            data_s: of what is counted as computation so far, what rows were waited for.
        """
        read_s = min(data_s, self.laps_s["compute"])
        moved = {"compute": self.laps_s["compute"] - read_s, "data": self.laps_s["data"] + read_s}
        laps_s = {part: lap_s / count for part, lap_s in {**self.laps_s, **moved}.items()}
        each_s = self.duration_s / count
        return [StepTimes(self.started_unix_s + place * each_s, laps_s) for place in range(count)]


class Stopwatch:
    """Laps without gaps: each begins where the last one ended.

    Args:
        traffic: knows what this process stood still for, which is `sync` in whatever lap it was.
    """

    def __init__(self, traffic: TrafficMeter) -> None:
        self._traffic = traffic
        self.skip()

    def restart(self) -> None:
        """Begin a step where the last lap ended."""
        self._started_unix_s, self._laps_s = self._last_unix_s, dict.fromkeys(LAPS, 0.0)

    @property
    def times(self) -> StepTimes:
        """Of the step that has begun last, so far."""
        return StepTimes(self._started_unix_s, self._laps_s)

    def skip(self) -> None:
        """Leave out what happened since the last lap, which somebody else accounts for."""
        self._last_s, self._last_unix_s = time.perf_counter(), time.time()
        # What was waited for before this moment belongs to nobody's step.
        self._stood_still_s = self._traffic.stood_still_s
        self.restart()

    def lap(self, part: str) -> None:
        """What happened since the last lap was this part of the step."""
        lap_s = time.perf_counter() - self._last_s
        # By the measured lap, not by the clock, so that laps leave no gap.
        self._last_s += lap_s
        self._last_unix_s += lap_s
        waited_s = self._traffic.stood_still_s - self._stood_still_s
        self._stood_still_s += waited_s
        # Waits for peers inside a lap belong to `sync`, whichever part they interrupted.
        self._laps_s[part] += lap_s - waited_s
        self._laps_s["sync"] += waited_s


class PartClock:
    """Times what the host only asks a device for: forward passes, and waits for the ranks that share a model.

    On CUDA by events, which are read once the device has passed them.

    Args:
        traffic: knows what this process stood still for, which the stopwatch has already.
    """

    def __init__(self, device: torch.device, traffic: TrafficMeter) -> None:
        self._read: Callable[[], _Reading] = _cuda_reading if device.type == "cuda" else time.perf_counter
        self._traffic = traffic
        self._steps: list[list[tuple[str, _Reading, _Reading, float]]] = [[]]
        """Spans of steps, the one that goes on last."""

    def begin_step(self) -> None:
        """Further parts belong to the next step, whose seconds are taken after those of the one before."""
        self._steps.append([])

    @contextlib.contextmanager
    def part(self, name: Literal["forward", "sync"]) -> Iterator[None]:
        """Not one within another."""
        started, stood_still_s = self._read(), self._traffic.stood_still_s
        yield
        self._steps[-1].append((name, started, self._read(), self._traffic.stood_still_s - stood_still_s))

    def take_s(self) -> dict[str, float]:
        """Seconds of the first step that was not taken, by name, of finished work, beside waits on the host."""
        # Taken at the end of a step, when the device has passed the events anyway.
        spans = self._steps.pop(0)
        self._steps = self._steps or [[]]
        taken_s = {"forward": 0.0, "sync": 0.0}
        for name, started, ended, waited_s in spans:
            taken_s[name] += _between_s(started, ended) - waited_s
        return taken_s


_Reading = Any
"""Seconds, or a CUDA event."""


def _cuda_reading() -> _Reading:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between_s(started: _Reading, ended: _Reading) -> float:
    # CUDA gives milliseconds.
    return float(ended - started) if isinstance(ended, float) else float(started.elapsed_time(ended)) / 1000


def peak_memory_bytes(device: torch.device) -> int:
    """The most so far: allocated on the GPU, or resident where there is none."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux gives kilobytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
