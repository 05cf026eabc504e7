"""The training loop, one screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from headway.data_contracts.store.errors import RunStopped
from headway.training.engine.asynchronous_learner import AsynchronousLearner
from headway.training.engine.island_learner import IslandLearner
from headway.training.engine.learner import Learner
from headway.training.engine.turns import Hooks, LazyWindows, Step, Windows, take_asynchronous, take_round, take_step
from headway.training.guards.step_guard import StepGuard
from headway.training.observe.telemetry import StepTimes, Stopwatch

if TYPE_CHECKING:
    from headway.training.engine.boosted_learner import BoostedLearner


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
    windows: Windows | LazyWindows,
    guard: StepGuard,
    validation: Validator,
    *,
    first_step: int,
    max_steps: int,
    stop_is_due: Callable[[], bool],
    ends_with: Callable[[int], bool],
    save_is_due: Callable[[int], bool],
    on_step: Callable[[Step, StepTimes], None],
    on_step_apart: Callable[[int], None],
    save: Callable[[int], None],
    before_update: Callable[[], None],
) -> None:
    """Train until `max_steps` steps are done, `first_step` of which are done already, or no further one helps.

    Args:
        windows: with the batches of this rank.
        stop_is_due, save_is_due: whether this rank wants to end, or a checkpoint, after this step; what one wants all
            do.
        ends_with: whether all are to end once so many steps are made.
        on_step: told of every step, and where its time went.
        on_step_apart: told at once how many steps are done in the midst of a round, of which `on_step` is told later.
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
    hooks = Hooks(stop_is_due, save_is_due, on_step, on_step_apart, before_update)
    watch, done = Stopwatch(learner.traffic), first_step
    while done < max_steps and not has_converged():
        if isinstance(learner, IslandLearner) and learner.is_apart(done):
            due = validation.is_due
            turn = take_round(learner, cast(Windows, windows), guard, watch, done, hooks, validation_is_due=due)
        elif isinstance(learner, AsynchronousLearner):
            due = validation.is_due
            turn = take_asynchronous(
                learner, cast(LazyWindows, windows), guard, watch, done, hooks, validation_is_due=due
            )
        else:
            turn = take_step(learner, cast(Windows, windows), guard, watch, done, hooks)
        watch.restart()
        done, moved, sums = turn
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
