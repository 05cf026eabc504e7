"""The training loop, one screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from data_contracts.errors import RunStopped
from training.arrangement import Batch
from training.learner import Learner


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One optimizer step; its parts make up its duration. `step` counts from 1.

    `data_s` is what the step waited for its rows, and what it took to write down the step before.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    skipped: bool
    """The gradient overflowed in fp16, and the weights are those of the step before."""
    tokens: int
    unix_s: float
    duration_s: float
    data_s: float
    compute_s: float
    sync_s: float
    optimizer_s: float


def train(
    learner: Learner,
    batches: Iterator[Sequence[Batch]],
    *,
    first_step: int,
    max_steps: int,
    checkpoint_every_steps: int,
    stop_requested: Callable[[], bool],
    on_step: Callable[[StepRecord], None],
    save: Callable[[int], None],
) -> None:
    """Train until `max_steps` steps are done, `first_step` of which are done already.

    Args:
        batches: per step, the micro-batches of this rank.
        save: keeps a checkpoint after that many steps; called on all ranks at once.

    Raises:
        RunStopped: a rank was asked to stop; a checkpoint was kept.
        TrainingFailed: the loss or gradient is not finite.
    """
    watch = _Stopwatch()
    for done in range(first_step + 1, max_steps + 1):
        started_unix_s = watch.last_unix_s
        replicas = next(batches)
        data_s = watch.lap()
        own_sums = learner.backward(done - 1, replicas)
        compute_s = watch.lap()
        sums = learner.exchange(own_sums, stop=stop_requested())
        sync_s = watch.lap()
        update = learner.update(done - 1, sums)
        optimizer_s = watch.lap()
        on_step(
            StepRecord(
                step=done,
                loss=sums.nats / max(1, sums.num_tokens),
                lr=update.lr,
                grad_norm=update.grad_norm,
                skipped=update.skipped,
                tokens=sums.num_tokens,
                unix_s=started_unix_s,
                duration_s=data_s + compute_s + sync_s + optimizer_s,
                data_s=data_s,
                compute_s=compute_s,
                sync_s=sync_s,
                optimizer_s=optimizer_s,
            )
        )
        if sums.stop or done == max_steps or done % checkpoint_every_steps == 0:
            save(done)
            watch = _Stopwatch()
        if sums.stop and done < max_steps:
            raise RunStopped(f"stopped as asked, at step {done} of {max_steps}; a checkpoint was kept.")


class _Stopwatch:
    """Laps without gaps: each begins where the last one ended."""

    def __init__(self) -> None:
        self._last_s, self.last_unix_s = time.perf_counter(), time.time()

    def lap(self) -> float:
        """Seconds since the last lap, or since the start."""
        lap_s = time.perf_counter() - self._last_s
        self._last_s += lap_s
        self.last_unix_s += lap_s
        return lap_s
