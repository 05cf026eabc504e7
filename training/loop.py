"""The training loop, one screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from data_contracts.errors import RunStopped
from training.arrangement import Batch
from training.guards.guard import Guard
from training.learner import Learner
from training.telemetry import Outcome, StepRecord, Stopwatch


def train(
    learner: Learner,
    batches: Iterator[tuple[int, Sequence[Batch]]],
    guard: Guard,
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
        batches: windows of the sample order with the micro-batches of this rank, as the guard's plan has them.
        save: keeps a checkpoint after that many steps; called on all ranks at once.

    Raises:
        RunStopped: a rank was asked to stop; a checkpoint was kept.
        RollBack: the guard wants the steps after an earlier one done again, on other windows.
        TrainingFailed: the guard stops the run.
    """
    watch, done = Stopwatch(), first_step
    while done < max_steps:
        started_unix_s = watch.last_unix_s
        window, micro_batches = next(batches)
        data_s = watch.lap()
        own_sums = learner.backward(done, micro_batches)
        compute_s = watch.lap()
        sums = learner.exchange(own_sums, stop=stop_requested())
        sync_s = watch.lap()
        grad_norm = learner.gradient_norm(sums)
        outcome: Outcome = "taken"
        if learner.overflowed(sums, grad_norm):
            outcome = "overflowed"
        elif not guard.judge(done, sums.loss, grad_norm):
            outcome = "left out"
        if outcome == "taken":
            lr = learner.update(done, sums, grad_norm)
        else:
            lr = 0.0
            learner.discard()
        optimizer_s = watch.lap()
        on_step(
            StepRecord(
                step=done + 1,
                window=window,
                outcome=outcome,
                loss=sums.loss,
                lr=lr,
                grad_norm=grad_norm,
                tokens=sums.num_tokens,
                unix_s=started_unix_s,
                duration_s=data_s + compute_s + sync_s + optimizer_s,
                data_s=data_s,
                compute_s=compute_s,
                sync_s=sync_s,
                optimizer_s=optimizer_s,
            )
        )
        moved = outcome != "left out"
        done += moved
        if sums.stop or (moved and (done == max_steps or done % checkpoint_every_steps == 0)):
            save(done)
            watch = Stopwatch()
        if sums.stop and done < max_steps:
            raise RunStopped(f"stopped as asked, at step {done} of {max_steps}; a checkpoint was kept.")
