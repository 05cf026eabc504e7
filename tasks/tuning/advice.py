"""What changes the model, and so is a person's to change: learning rates and the micro-batch, as measured. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from headway.data_contracts.store.documents import Frozen
from headway.tasks.tuning.choice import Measured, choose
from headway.tasks.tuning.machine import Machine

NUM_RATES = 120
FACTORS = (1e-3, 1e3)
"""Of the file's learning rate: where a range test begins and ends."""
SMOOTHED_OVER = 7
"""Steps, around each: one batch is harder than another."""
FALLEN = 0.1
"""Of the whole fall of the loss: where rates begin to move it."""
DIGITS = 2
DIGEST_CHARS = 16


class Compiled(Frozen):
    """Steps with `torch.compile` beside steps without."""

    measured: tuple[Measured, ...] = ()
    """Without, then with; empty: it was not tried, or could not run."""
    tensors_sha256: tuple[str, ...] = ()
    """Of all state after those steps: without, then with."""
    losses_sha256: tuple[str, ...] = ()
    num_steps: int = 0
    """That were compared."""
    compiling_s: float | None = None
    """By how much the first steps took longer. What an earlier trial left in torch's cache makes it less."""
    is_better: bool = False
    """Whether it came to the same bits, and saves a run more than compiling takes."""
    why: str


def evaluate_compiled(
    measured: Sequence[Measured],
    tensors_sha256: Sequence[str],
    losses_sha256: Sequence[str],
    *,
    num_steps: int,
    compiling_s: float,
    run_steps: int,
) -> Compiled:
    """Args:
    measured, tensors_sha256, losses_sha256: without, then with.
    num_steps: that were compared.
    run_steps: of a whole run, which compiles once.
    """
    bits = f"the same bits after {num_steps} steps"
    for what, (without, compiled) in (("state", tensors_sha256), ("losses", losses_sha256)):
        if without != compiled:
            came_to = f"{what} {without[:DIGEST_CHARS]} without and {compiled[:DIGEST_CHARS]} with it"
            bits = f"it moves bits: {num_steps} steps come to {came_to}"
            break
    choice, saved_s = choose(measured), run_steps * (measured[0].median_s - measured[1].median_s)
    why = f"{bits}; {choice.why}"
    if choice.place:
        why += f"; compiling takes {compiling_s:.3g} s, a run's {run_steps:,} steps save {saved_s:.3g} s"
    is_same = (tensors_sha256[0], losses_sha256[0]) == (tensors_sha256[1], losses_sha256[1])
    return Compiled(
        measured=tuple(measured),
        tensors_sha256=tuple(tensors_sha256),
        losses_sha256=tuple(losses_sha256),
        num_steps=num_steps,
        compiling_s=compiling_s,
        is_better=is_same and choice.place > 0 and saved_s > compiling_s,
        why=why,
    )


class LearningRates(Frozen):
    """A range test: one step at each rate, from fresh weights."""

    rates: tuple[float, ...]
    """As `optimizer.lr` would say them, ascending."""
    losses: tuple[float, ...]
    """Nats a token; up to the first that was not finite."""
    failure: str = ""
    """Why there are none."""

    @property
    def smoothed(self) -> list[float]:
        half = SMOOTHED_OVER // 2
        return [
            statistics.fmean(self.losses[max(0, place - half) : place + half + 1]) for place in range(len(self.losses))
        ]

    @property
    def _start(self) -> float:
        """The loss before training."""
        return statistics.fmean(self.losses[:SMOOTHED_OVER])

    @property
    def _noise(self) -> float:
        """By how much batches differ."""
        return 2 * statistics.stdev(self.losses[: 2 * SMOOTHED_OVER])

    @property
    def wanted(self) -> tuple[float, float] | None:
        """The range to search: from where the loss begins to fall to where it is lowest; None: it does not fall.

        The lowest is the last rate that still gains, and too high for a whole run; a search finds how much.
        """
        if len(self.losses) < 2 * SMOOTHED_OVER:
            return None
        smoothed, start = self.smoothed, self._start
        lowest = min(range(len(smoothed)), key=smoothed.__getitem__)
        if start - smoothed[lowest] <= self._noise:
            return None
        fallen = start - FALLEN * (start - smoothed[lowest])
        # Not the first that is so low: before the loss moves, an easy batch may be.
        begun = max((place + 1 for place in range(lowest) if smoothed[place] > fallen), default=0)
        return rounded(self.rates[begun]), rounded(self.rates[lowest])

    @property
    def diverges_at(self) -> float | None:
        """The first rate past the lowest loss at which it is above that before training, by more than batches differ,
        or not finite; None: none was."""
        if self.failure:
            return None
        if len(self.losses) < SMOOTHED_OVER:
            return rounded(self.rates[len(self.losses)]) if len(self.losses) < len(self.rates) else None
        smoothed, bound = self.smoothed, self._start + self._noise
        lowest = min(range(len(smoothed)), key=smoothed.__getitem__)
        past = next((place for place in range(lowest, len(smoothed)) if smoothed[place] > bound), len(smoothed))
        return rounded(self.rates[past]) if past < len(self.rates) else None


class MicroBatch(Frozen):
    """A micro-batch that was tried."""

    sequences: int
    step_s: float | None = None
    """None: it could not run."""
    peak_bytes: int = 0
    """Of a rank."""
    failure: str = ""


class Advice(Frozen):
    """What `headway tune --advise` measured beside what it takes."""

    pipeline: str
    machine: Machine
    measured_unix_s: float
    global_batch_sequences: int
    learning_rate: float
    """The file's."""
    matrix_lr: float | None = None
    """The file's for Muon's matrices, which a range test moves with it; None: no Muon."""
    learning_rates: LearningRates
    micro_batches: tuple[MicroBatch, ...]
    """That of now first, then larger ones."""
    compiled: Compiled
    is_cut_short: bool = False
    """Whether all that were tried ran, and larger ones would cut the batch as well."""

    @property
    def largest(self) -> MicroBatch:
        """That ran."""
        return [each for each in self.micro_batches if each.step_s is not None][-1]

    @property
    def fastest(self) -> MicroBatch:
        ran = [each for each in self.micro_batches if each.step_s is not None]
        return min(ran, key=lambda each: each.step_s or math.inf)


def factors() -> list[float]:
    """Of a range test's steps, in even ratios."""
    low, high = FACTORS
    return [low * (high / low) ** (number / (NUM_RATES - 1)) for number in range(NUM_RATES)]


def rounded(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")


def larger(now: int, whole: int, at_most: int) -> Sequence[int]:
    """Micro-batches to try: that of now and its doublings that cut the global batch evenly."""
    found = [now]
    while len(found) < at_most and found[-1] * 2 <= whole and whole % (found[-1] * 2) == 0:
        found.append(found[-1] * 2)
    return found
