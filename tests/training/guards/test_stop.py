"""When a run is to end: asked, at its step, or early enough before a time that its checkpoint is kept by then."""

from __future__ import annotations

import pytest

from headway.training.guards.stop import MIN_MARGIN_S, StopConditions
from headway.training.launch.base.stop_request import NEVER, StopRequest


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def steps_until_stop(
    bound: StopRequest, clock: Clock, *, step_s: float, save_s: float = 0.0, restore_s: float = 0.0
) -> tuple[int, str | None]:
    stop = StopConditions(lambda: False, bound, clock=clock)
    clock.now_s += restore_s
    stop.begin()
    for step in range(1, 1000):
        clock.now_s += step_s
        if stop() or stop.ends_with(step):
            return step, stop.reason
        if save_s and step == 1:
            clock.now_s += save_s
            stop.saved(save_s)
    return 0, stop.reason


def test_nothing_stops_a_run_that_nobody_bounds():
    assert steps_until_stop(NEVER, Clock(), step_s=1e6) == (0, None)


def test_whoever_asks_is_heard_at_the_next_step():
    asked = []
    stop = StopConditions(lambda: bool(asked), NEVER)
    assert not stop()
    asked.append(1)
    assert stop() and stop.reason == "requested"


def test_a_run_ends_at_its_step_and_does_none_when_it_is_there_already():
    bound = StopRequest(at_step=7)
    assert steps_until_stop(bound, Clock(), step_s=1) == (7, "step reached")
    stop = StopConditions(lambda: False, bound)
    assert [stop.is_reached(step) for step in (6, 7, 8)] == [False, True, True]
    asked = StopConditions(lambda: True, bound)
    assert asked() and asked.ends_with(7) and asked.reason == "requested"


def test_before_the_end_there_is_time_for_another_step_and_for_the_checkpoint():
    clock, bound = Clock(), StopRequest(at_unix_s=1100, reason="window closed")
    _, reason = steps_until_stop(bound, clock, step_s=2, save_s=10)
    assert reason == "window closed"
    assert 10 + 2 < 1100 - clock.now_s <= 2 * 10 + 2 * 2 + MIN_MARGIN_S


def test_other_work_is_broken_off_in_time_and_makes_no_step_look_long():
    clock, bound = Clock(), StopRequest(at_unix_s=2000, reason="window closed")
    stop = StopConditions(lambda: False, bound, clock=clock)
    clock.now_s += 2
    assert not stop()
    for _ in range(50):
        clock.now_s += 10
        assert not stop.in_between()
    clock.now_s += 2
    assert not stop()
    clock.now_s = 2000 - MIN_MARGIN_S - 1.9
    assert stop.in_between() and stop.reason == "window closed"


def test_a_long_restore_takes_nothing_from_the_time_for_steps():
    clock = Clock()
    steps_until_stop(StopRequest(at_unix_s=1100), clock, step_s=2, restore_s=40)
    assert 1100 - clock.now_s <= 2 * 2 + MIN_MARGIN_S


@pytest.mark.parametrize(("may_double", "num_steps"), [(True, 2), (False, 3)])
def test_where_a_batch_may_grow_no_step_begins_without_time_for_twice_as_long_a_one(may_double, num_steps):
    clock, bound = Clock(), StopRequest(at_unix_s=1100)
    stop, ends = StopConditions(lambda: False, bound, may_double=lambda: may_double, clock=clock), []
    while not ends or not stop():
        clock.now_s += 30
        ends.append(clock.now_s)
    assert len(ends) == num_steps
