"""The loop: when it saves, when it stops, what it records."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from headway.data_contracts.store.errors import RunStopped, TrainingFailed
from headway.training.config.guards import GuardSpec, NonFinitePolicy
from headway.training.engine.island_learner import ApartStep, IslandLearner
from headway.training.engine.learner import Sums
from headway.training.engine.loop import train
from headway.training.guards.step_guard import RollBack, StepGuard
from headway.training.guards.stop import StopConditions
from headway.training.launch.base.stop_request import StopRequest
from headway.training.observe.traffic import TrafficMeter


class NoValidation:
    has_converged = False

    def is_due(self, step):
        return False

    def wants_checkpoint(self, step):
        return False


NEVER = NoValidation()


class EverySecond(NoValidation):
    """Converged after the validation of one step, and wants the checkpoint of another."""

    def __init__(self, *, ends_at=None, best=None, broken_off=()):
        self.validated, self._broken_off = [], [*broken_off]
        self._ends_at, self._best = ends_at, best

    @property
    def has_converged(self):
        return self._ends_at in self.validated

    def is_due(self, step):
        return step > 0 and step % 2 == 0 and step not in self.validated

    def run(self, step):
        if step in self._broken_off:
            self._broken_off.remove(step)
            return True
        self.validated.append(step)
        return False

    def wants_checkpoint(self, step):
        return step == self._best


class Recorder:
    """Stands in for a learner: notes what it is asked to do.

    Args:
        bad: windows without a finite gradient.
        overflowing: windows whose gradient overflows in fp16 alone.
    """

    def __init__(
        self, *, stop_at: int | None = None, bad: tuple[int, ...] = (), overflowing: tuple[int, ...] = ()
    ) -> None:
        self.steps: list[int] = []
        self.updated: list[tuple[int, int]] = []
        self.discarded: list[int] = []
        self._bad, self._overflowing = bad, overflowing
        self.saved: list[int] = []
        self.asked: list[int] = []
        self.records, self.laps = [], []
        self.reported: list[int] = []
        self.traffic = TrafficMeter()
        self.has_converged = False
        self._stop_at = stop_at

    def backward(self, step, window, num_replicas):
        self.steps.append(step)
        self._window = window
        return torch.zeros(1, 2)

    def exchange(self, own, *, stop, save):
        return Sums(nats=20.0, num_tokens=10, stop=stop or len(self.steps) == self._stop_at, save=save)

    def gradient_norm(self, sums):
        return math.inf if self._window in self._bad else 0.5

    def update(self, step, sums, gradient_norm):
        self.updated.append((step, self._window))
        return 0.1

    def overflowed(self, sums, gradient_norm):
        return self._window in self._overflowing

    def discard(self):
        self.discarded.append(self._window)

    def _record(self, step, times):
        self.records.append(step)
        self.laps.append((times.started_unix_s, dict(times.laps_s)))

    def run(
        self,
        first_step,
        max_steps,
        stop_is_due=lambda: False,
        action="stop",
        validation=NEVER,
        ends_with=lambda _: False,
    ):
        self.guard = StepGuard(GuardSpec(non_finite=NonFinitePolicy(action=action)))
        train(
            self,
            ((window, 1, window) for window in itertools.count(first_step)),
            self.guard,
            validation,
            first_step=first_step,
            max_steps=max_steps,
            stop_is_due=stop_is_due,
            ends_with=ends_with,
            save_is_due=lambda step: step % 4 == 0,
            on_step=self._record,
            on_step_apart=self.reported.append,
            save=self.saved.append,
            before_update=lambda: self.asked.append(len(self.updated)),
        )


def test_it_saves_every_so_many_steps_and_at_the_end():
    loop = Recorder()
    loop.run(0, 10)
    assert loop.steps == list(range(10))
    assert loop.saved == [4, 8, 10]


def test_a_run_that_has_converged_ends_with_a_checkpoint_and_the_best_one_is_kept_when_it_comes():
    loop, validation = Recorder(), EverySecond(ends_at=6, best=2)
    loop.run(0, 10, validation=validation)
    assert loop.steps == list(range(6))
    assert validation.validated == [2, 4, 6]
    assert loop.saved == [2, 4, 6]


def test_whoever_is_asked_to_stop_validates_later_and_the_next_attempt_does_it_first():
    loop, validation = Recorder(stop_at=4), EverySecond(ends_at=4)
    with pytest.raises(RunStopped):
        loop.run(0, 10, validation=validation)
    assert (loop.saved, validation.validated) == ([4], [2])
    again = Recorder()
    again.run(4, 10, validation=validation)
    assert validation.validated == [2, 4]
    assert again.steps == [], "it had converged"


def test_a_stop_at_the_last_step_leaves_its_validation_to_the_next_attempt_and_so_the_end():
    loop, validation = Recorder(stop_at=4), EverySecond()
    with pytest.raises(RunStopped, match="step 4 of 4; a checkpoint was kept"):
        loop.run(0, 4, validation=validation)
    assert (loop.saved, validation.validated) == ([4], [2])
    Recorder().run(4, 4, validation=validation)
    assert validation.validated == [2, 4]


def test_a_stop_in_the_midst_of_a_validation_keeps_a_checkpoint_and_the_next_attempt_begins_with_it():
    loop, validation = Recorder(), EverySecond(broken_off=(2, 2))
    with pytest.raises(RunStopped, match="step 2 of 4; a checkpoint was kept"):
        loop.run(0, 4, validation=validation)
    assert (loop.saved, validation.validated) == ([2], [])
    with pytest.raises(RunStopped, match="its checkpoint was kept before"):
        Recorder().run(2, 4, validation=validation)
    again = Recorder()
    again.run(2, 4, validation=validation)
    assert (again.steps, validation.validated) == ([2, 3], [2, 4])


def test_it_goes_on_where_the_checkpoint_left_off():
    loop = Recorder()
    loop.run(8, 10)
    assert loop.steps == [8, 9]
    assert [record.number for record in loop.records] == [9, 10]


def test_a_finished_run_takes_no_step():
    loop = Recorder()
    loop.run(10, 10)
    assert (loop.steps, loop.saved) == ([], [])


def test_a_stop_that_any_rank_asked_for_keeps_a_checkpoint_and_says_where():
    loop = Recorder(stop_at=3)
    with pytest.raises(RunStopped, match="at step 3 of 10"):
        loop.run(0, 10)
    assert loop.saved == [3]


@pytest.mark.parametrize("ends_at", [3, 4])
def test_a_run_that_is_to_end_after_a_step_makes_it_though_a_guard_leaves_out_its_batch(ends_at):
    stop = StopConditions(lambda: False, StopRequest(at_step=ends_at))
    loop = Recorder(bad=(2, 3))
    with pytest.raises(RunStopped, match=f"at step {ends_at} of 10"):
        loop.run(0, 10, stop_is_due=stop, ends_with=stop.ends_with, action="skip")
    assert [step for step, _ in loop.updated] == list(range(ends_at))
    assert (loop.saved[-1], stop.reason) == (ends_at, "step reached")


def test_a_roll_back_from_the_step_that_was_to_be_the_last_is_none_to_end_with():
    stop = StopConditions(lambda: False, StopRequest(at_step=3))
    with pytest.raises(RollBack):
        Recorder(bad=(2,)).run(0, 10, stop_is_due=stop, ends_with=stop.ends_with, action="roll_back")
    assert stop.reason is None


def test_a_stop_before_any_step_moved_a_weight_does_not_speak_of_a_checkpoint():
    loop = Recorder(stop_at=1, bad=(0,))
    with pytest.raises(RunStopped, match="at step 0 of 10; there was nothing to keep yet"):
        loop.run(0, 10, action="skip")


def test_a_stop_during_the_last_step_is_an_end():
    loop = Recorder()
    loop.run(9, 10, stop_is_due=lambda: True)
    assert loop.saved == [10]


def test_steps_follow_each_other_without_a_gap():
    loop = Recorder()
    loop.run(0, 4)
    assert {record.sums.loss for record in loop.records} == {2.0}
    for (started, laps), (next_began, _) in itertools.pairwise(loop.laps):
        assert next_began == pytest.approx(started + sum(laps.values()), abs=1e-6)


def test_a_gradient_that_is_not_finite_never_reaches_the_weights():
    loop = Recorder(bad=(3,))
    with pytest.raises(TrainingFailed, match="step 4"):
        loop.run(0, 10)
    assert [step for step, _ in loop.updated] == [0, 1, 2]
    assert [record.number for record in loop.records] == [1, 2, 3]


def test_a_skipped_batch_is_undone_and_its_step_is_taken_on_the_next_one():
    loop = Recorder(bad=(4, 5))
    loop.run(0, 6, action="skip")
    assert loop.updated == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 6), (5, 7)]
    assert loop.discarded == [4, 5]
    assert loop.saved == [4, 6], "a step that is tried again is not saved again"
    assert [(record.number, record.window, record.outcome) for record in loop.records[4:7]] == [
        (5, 4, "excluded"),
        (5, 5, "excluded"),
        (5, 6, "taken"),
    ]


def test_an_overflow_in_fp16_passes_its_step_over_and_alarms_no_guard():
    loop = Recorder(bad=(2,), overflowing=(2,))
    loop.run(0, 4)
    assert loop.updated == [(0, 0), (1, 1), (3, 3)]
    assert loop.discarded == [2]
    assert [(record.number, record.outcome) for record in loop.records] == [
        (1, "taken"),
        (2, "taken"),
        (3, "overflowed"),
        (4, "taken"),
    ]


def test_no_validation_begins_before_it_is_asked_that_either_also_after_a_step_without_an_update():
    loop, validation = Recorder(overflowing=(1,)), EverySecond()
    asked_before = []
    validation.run = lambda step: asked_before.append(list(loop.asked)) or validation.validated.append(step)
    loop.run(0, 2, validation=validation)
    assert (loop.updated, asked_before) == ([(0, 0)], [[0, 1]])


def test_no_update_begins_before_it_is_asked_whether_anybody_still_reads_the_state():
    loop = Recorder(bad=(2,), overflowing=(2,))
    loop.run(0, 4)
    assert loop.asked == [0, 1, 2], "once before each of the three that were taken"


class Apart(Recorder, IslandLearner):
    """Whose islands meet every third step, after two."""

    def __init__(self, *arguments, **words):
        super().__init__(*arguments, **words)
        self.save_wishes: list[tuple[int, bool]] = []

    def is_apart(self, step):
        return step >= 2

    def round_end(self, step, is_due):
        return next(done for done in range(step + 1, step + 4) if done % 3 == 2 or is_due(done))

    def begin_round(self, step):
        self._taken = []
        assert self.asked[-1] == len(self.updated), "asked whether anybody still reads what islands move"

    def train_apart(self, step, micro_batches, num_replicas):
        self.steps.append(step)
        self._taken.append(micro_batches)
        return 0.1

    def meet(self, *, stop, save):
        found = [ApartStep(Sums(20.0, 10, False), math.inf if each in self._bad else 0.5) for each in self._taken]
        self.save_wishes.append((len(self.steps), save))
        last = Sums(20.0, 10, stop or len(self.steps) == self._stop_at, save)
        return [*found[:-1], found[-1]._replace(sums=last)]

    def move_together(self, done):
        self.updated.append((done, self._taken[-1]))


def test_steps_of_a_round_are_reported_as_they_come_and_recorded_when_ranks_meet():
    loop = Apart()
    loop.run(0, 8)
    assert loop.steps == list(range(8)) and loop.reported == [3, 4, 6, 7]
    assert loop.save_wishes == [(5, True), (8, True)], "one that is due in mid-round waits for its end"
    assert [(step.number, step.window, step.ends_round) for step in loop.records] == [
        (number, number - 1, number in (1, 2, 5, 8)) for number in range(1, 9)
    ]
    for step, ((started, laps), (next_began, _)) in enumerate(itertools.pairwise(loop.laps), 1):
        if step not in loop.saved:  # a save is no step's
            assert next_began == pytest.approx(started + sum(laps.values()), abs=1e-6)


def test_a_round_ends_early_for_a_validation_and_a_stop_waits_for_its_end():
    loop, validation = Apart(), EverySecond()
    loop.run(0, 8, validation=validation)
    assert [done for done, _ in loop.updated if done > 2] == [4, 5, 6, 8]
    loop = Apart(stop_at=5)
    stop = StopConditions(lambda: False, StopRequest(at_step=4))
    with pytest.raises(RunStopped, match="at step 5 of 8"):
        loop.run(0, 8, ends_with=stop.ends_with)
    assert loop.saved == [5]


def test_a_bad_step_in_a_round_takes_the_whole_round_back():
    loop = Apart(bad=(3,))
    with pytest.raises(RollBack) as wanted:
        loop.run(0, 8, action="skip")
    assert wanted.value.step == 2 and [number for number, _ in loop.updated] == [0, 1]
    assert [window for window in range(8) if loop.guard.plan.excludes(window)] == [3], "its own window alone"
