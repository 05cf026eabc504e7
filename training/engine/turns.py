"""What the loop does in one turn: a step, or a round of steps that islands take apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headway.training.engine.asynchronous_learner import AsynchronousLearner, WorkItem
from headway.training.engine.island_learner import IslandLearner
from headway.training.engine.learner import Learner, Sums
from headway.training.guards.step_guard import RollBack, StepGuard
from headway.training.observe.telemetry import Outcome, StepTimes, Stopwatch
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
    ends_round: bool = True
    """Whether ranks met after it: islands that train apart do every few steps."""
    staleness: int | None = None
    """Updates between its weights and itself; None: there are none."""


class Turn(NamedTuple):
    """What the loop goes by, the same on every rank."""

    done: int
    """How many steps are done."""
    moved: bool
    """Whether more are than before: a step that a guard left out is tried again on the next window."""
    sums: Sums
    """Of the last step, with what ranks wish."""


class Hooks(NamedTuple):
    """See `headway.training.engine.loop.train`."""

    stop_is_due: Callable[[], bool]
    save_is_due: Callable[[int], bool]
    on_step: Callable[[Step, StepTimes], None]
    on_step_apart: Callable[[int], None]
    before_update: Callable[[], None]


Windows = Iterator[tuple[int, int, Sequence[Batch]]]
"""Of the sample order, as the guard's plan has them: window, micro-batches of the global batch, and this rank's."""


LazyWindows = Iterator[tuple[int, int, Callable[[], Sequence[Batch]]]]
"""The same where a rank trains on whole batches, and on those alone that nobody else has begun."""


def take_step(
    learner: Learner | BoostedLearner, windows: Windows, guard: StepGuard, watch: Stopwatch, done: int, hooks: Hooks
) -> Turn:
    window, num_replicas, micro_batches = next(windows)
    watch.lap("data")
    own_sums = learner.backward(done, micro_batches, num_replicas)
    watch.lap("compute")
    sums = learner.exchange(own_sums, stop=hooks.stop_is_due(), save=hooks.save_is_due(done + 1))
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
        hooks.before_update()
        watch.lap("staging")
        lr = learner.update(done, sums, grad_norm)
    else:
        learner.discard()
    watch.lap("optimizer")
    hooks.on_step(Step(done + 1, window, outcome, sums, grad_norm, lr, num_replicas), watch.times)
    # An excluded step is tried again on the next window; one that overflowed is lost and counts.
    moved = outcome != "excluded"
    return Turn(done + moved, moved, sums)


def take_round(
    learner: IslandLearner,
    windows: Windows,
    guard: StepGuard,
    watch: Stopwatch,
    done: int,
    hooks: Hooks,
    *,
    validation_is_due: Callable[[int], bool],
) -> Turn:
    """Ranks meet once, at its end: losses, wishes and alarms of all its steps are known then."""
    end = learner.round_end(done, validation_is_due)
    # Islands move from the first step on.
    hooks.before_update()
    watch.lap("staging")
    learner.begin_round(done)
    taken: list[tuple[int, int, float, StepTimes]] = []
    for step in range(done, end):
        if step > done:
            hooks.on_step_apart(step)
            watch.restart()
        window, num_replicas, micro_batches = next(windows)
        watch.lap("data")
        lr = learner.train_apart(step, micro_batches, num_replicas)
        watch.lap("compute")
        taken.append((window, num_replicas, lr, watch.times))
    # One that was due in mid-round waits for its end.
    save = any(hooks.save_is_due(number) for number in range(done + 1, end + 1))
    steps = learner.meet(stop=hooks.stop_is_due(), save=save)
    for step, (sums, grad_norm) in enumerate(steps, done):
        if not guard.check(step, sums.loss, grad_norm):
            # Later steps of the round stand on it: it is not left out by itself.
            raise RollBack(done)
    learner.move_together(end)
    watch.lap("sync")
    for number, ((sums, grad_norm), (window, num_replicas, lr, times)) in enumerate(
        zip(steps, taken, strict=True), done + 1
    ):
        step_taken = Step(number, window, "taken", sums, grad_norm, lr, num_replicas, ends_round=number == end)
        hooks.on_step(step_taken, times)
    return Turn(end, True, steps[-1].sums)


def take_asynchronous(
    learner: AsynchronousLearner,
    windows: LazyWindows,
    guard: StepGuard,
    watch: Stopwatch,
    done: int,
    hooks: Hooks,
    *,
    validation_is_due: Callable[[int], bool],
) -> Turn:
    """Ranks make updates without waiting for each other, and meet. Each writes down all of them, as its own worker's
    time is on the average."""
    end = learner.round_end(done, validation_is_due)
    hooks.before_update()
    watch.lap("staging")
    works = [WorkItem(*next(windows)) for _ in range(done, end)]
    updates = learner.train_round(done, works, lambda _number: hooks.on_step_apart(done))
    watch.lap("compute")
    save = any(hooks.save_is_due(number) for number in range(done + 1, end + 1))
    stop, save = learner.wishes(stop=hooks.stop_is_due(), save=save)
    watch.lap("sync")
    for step, update in enumerate(updates, done):
        guard.check(step, update.sums.loss, update.grad_norm, (update.work.window, update.worker))
    of_each = watch.times.shared_out(len(updates), data_s=learner.data_s)
    for number, (update, times) in enumerate(zip(updates, of_each, strict=True), done + 1):
        window, num_replicas, _ = update.work
        outcome = Step(number, window, "taken", update.sums, update.grad_norm, update.lr, num_replicas)
        hooks.on_step(outcome._replace(ends_round=number == end, staleness=update.staleness), times)
    return Turn(end, True, updates[-1].sums._replace(stop=stop, save=save))


def take_unguarded(learner: Learner, step: int, micro_batches: Sequence[Batch], num_replicas: int) -> Sums:
    """A step of a learner that is only tried out; where islands train apart, a round of one step."""
    if isinstance(learner, IslandLearner) and learner.is_apart(step):
        learner.begin_round(step)
        learner.train_apart(step, micro_batches, num_replicas)
        (taken,) = learner.meet(stop=False, save=False)
        learner.move_together(step + 1)
        return taken.sums
    sums = learner.exchange(learner.backward(step, micro_batches, num_replicas), stop=False)
    norm = learner.gradient_norm(sums)
    if not learner.overflowed(sums, norm):
        learner.update(step, sums, norm)
    return sums
