"""The training loop, one screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headway.data_contracts.store.errors import RunStopped
from headway.training.engine.learner import Learner, Sums
from headway.training.guards.step_guard import StepGuard
from headway.training.observe.telemetry import Outcome, Stopwatch
from headway.training.parallel.strategy import Batch

if TYPE_CHECKING:
    from headway.training.engine.boosted_learner import BoostedLearner


class Step(NamedTuple):
    """What came of a step, the same on every rank."""

    number: int
    """Counted from 1."""
    window: int
    outcome: Outcome
    sums: Sums
    grad_norm: float
    lr: float
    num_replicas: int
    """Micro-batches of the global batch."""


class Validator(Protocol):
    """What looks at other rows now and then, and may end the run. All answers are the same on every rank."""

    @property
    def has_converged(self) -> bool: ...

    def is_due(self, step: int) -> bool:
        """Whether the weights after so many steps are still to be looked at."""

    def run(self, step: int) -> bool:
        """Look, unless a stop breaks it off. Returns whether a rank wants to stop."""

    def wants_checkpoint(self, step: int) -> bool: ...


def train(
    learner: Learner | BoostedLearner,
    batches: Iterator[tuple[int, int, Sequence[Batch]]],
    guard: StepGuard,
    validation: Validator,
    *,
    first_step: int,
    max_steps: int,
    stop_is_due: Callable[[], bool],
    ends_with: Callable[[int], bool],
    save_is_due: Callable[[int], bool],
    on_step: Callable[[Step, Stopwatch], None],
    save: Callable[[int], None],
    before_update: Callable[[], None],
) -> None:
    """Train until `max_steps` steps are done, `first_step` of which are done already, or no further one helps.

    Args:
        batches: windows of the sample order, as the guard's plan has them, with the number of micro-batches of each and
            those of this rank.
        stop_is_due, save_is_due: whether this rank wants to end, or a checkpoint, after this step; what one wants all
            do.
        ends_with: whether all are to end once so many steps are made.
        on_step: told of every step, and where its time went.
        save: keeps a checkpoint after that many steps; called on all ranks at once.
        before_update: returns once nobody reads the state beside the steps that `learner.update` changes, and a
            validation of averaged weights.

    Raises:
        RunStopped: a rank was asked to stop; a checkpoint was kept where a step was done.
        RollBack: the guard wants the steps after an earlier one done again, on other windows.
        TrainingFailed: the guard stops the run.
    """

    def has_converged() -> bool:
        return learner.has_converged or validation.has_converged

    def is_last(step: int) -> bool:
        return has_converged() or (step == max_steps and not validation.is_due(step))

    # A stop may have come between the step and its validation.
    if validation.is_due(first_step) and validation.run(first_step) and not is_last(first_step):
        raise RunStopped(f"stopped at step {first_step} of {max_steps}; its checkpoint was kept before.")
    watch, done = Stopwatch(learner.traffic), first_step
    while done < max_steps and not has_converged():
        window, num_replicas, micro_batches = next(batches)
        watch.lap("data")
        own_sums = learner.backward(done, micro_batches, num_replicas)
        watch.lap("compute")
        sums = learner.exchange(own_sums, stop=stop_is_due(), save=save_is_due(done + 1))
        watch.lap("sync")
        grad_norm, lr = learner.gradient_norm(sums), 0.0
        outcome: Outcome = "taken"
        if learner.overflowed(sums, grad_norm):
            outcome = "overflowed"
        elif not guard.check(done, sums.loss, grad_norm):
            outcome = "excluded"
        if outcome == "taken":
            watch.lap("optimizer")
            # Staging of the last save may still read what the update changes.
            before_update()
            watch.lap("staging")
            lr = learner.update(done, sums, grad_norm)
        else:
            learner.discard()
        watch.lap("optimizer")
        on_step(Step(done + 1, window, outcome, sums, grad_norm, lr, num_replicas), watch)
        watch.restart()
        # An excluded step is tried again on the next window; one that overflowed is lost and counts.
        moved = outcome != "excluded"
        done += moved
        stop = sums.stop or (moved and ends_with(done))
        # Whoever is asked to stop has little time; the next attempt begins with the validation.
        if moved and not stop and validation.is_due(done):
            # A step that overflowed has not waited for it.
            before_update()
            stop = validation.run(done)
            watch.skip()
        if stop or (moved and (is_last(done) or sums.save or validation.wants_checkpoint(done))):
            save(done)
            watch.skip()
        if stop and not is_last(done):
            kept = "a checkpoint was kept" if done else "there was nothing to keep yet"
            raise RunStopped(f"stopped at step {done} of {max_steps}; {kept}.")
