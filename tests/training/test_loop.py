"""The loop: when it saves, when it stops, what it records."""

from __future__ import annotations

import itertools

import pytest
import torch

from data_contracts.errors import RunStopped
from training.learner import Sums, Update
from training.loop import train


class Recorder:
    """Stands in for a learner: notes what it is asked to do."""

    def __init__(self, *, stop_at: int | None = None) -> None:
        self.steps: list[int] = []
        self.saved: list[int] = []
        self.records = []
        self._stop_at = stop_at

    def backward(self, step, replicas):
        self.steps.append(step)
        return torch.zeros(1, 2)

    def exchange(self, own, *, stop):
        return Sums(nats=20.0, num_tokens=10, stop=stop or len(self.steps) == self._stop_at)

    def update(self, step, sums):
        return Update(lr=0.1, grad_norm=0.5)

    def run(self, first_step, max_steps, stop_requested=lambda: False):
        train(
            self,
            itertools.repeat([]),
            first_step=first_step,
            max_steps=max_steps,
            checkpoint_every_steps=4,
            stop_requested=stop_requested,
            on_step=self.records.append,
            save=self.saved.append,
        )


def test_it_saves_every_so_many_steps_and_at_the_end():
    loop = Recorder()
    loop.run(0, 10)
    assert loop.steps == list(range(10))
    assert loop.saved == [4, 8, 10]


def test_it_goes_on_where_the_checkpoint_left_off():
    loop = Recorder()
    loop.run(8, 10)
    assert loop.steps == [8, 9]
    assert [record.step for record in loop.records] == [9, 10]


def test_a_finished_run_takes_no_step():
    loop = Recorder()
    loop.run(10, 10)
    assert (loop.steps, loop.saved) == ([], [])


def test_a_stop_that_any_rank_asked_for_keeps_a_checkpoint_and_says_where():
    loop = Recorder(stop_at=3)
    with pytest.raises(RunStopped, match="at step 3 of 10"):
        loop.run(0, 10)
    assert loop.saved == [3]


def test_a_stop_during_the_last_step_is_an_end():
    loop = Recorder()
    loop.run(9, 10, stop_requested=lambda: True)
    assert loop.saved == [10]


def test_a_records_parts_make_up_its_duration_and_records_follow_each_other_without_a_gap():
    loop = Recorder()
    loop.run(0, 4)
    for record in loop.records:
        assert record.loss == 2.0
        assert record.data_s + record.compute_s + record.sync_s + record.optimizer_s == record.duration_s
    for before, after in itertools.pairwise(loop.records):
        assert after.unix_s == pytest.approx(before.unix_s + before.duration_s, abs=1e-6)
