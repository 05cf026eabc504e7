"""When a run is to end: asked, out of steps, or early enough before a time that its checkpoint is kept by then."""

from __future__ import annotations

import pytest

from data_contracts.errors import ConfigError
from training.guards.stop import LEAST_MARGIN_S, STOP_AFTER_S, STOP_AFTER_STEPS, STOP_AT_UNIX_S, StopConditions


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def steps_until_stop(stop: StopConditions, clock: Clock, *, step_s: float, save_s: float = 0.0) -> int:
    for step in range(1, 1000):
        clock.now_s += step_s
        if stop():
            return step
        if save_s and step == 1:
            clock.now_s += save_s
            stop.saved(save_s)
    return 0


def test_nothing_stops_a_run_that_nobody_bounds():
    clock = Clock()
    assert steps_until_stop(StopConditions(lambda: False, {}, clock=clock), clock, step_s=1e6) == 0


def test_whoever_asks_is_heard_at_the_next_step():
    asked = []
    stop = StopConditions(lambda: bool(asked), {})
    assert not stop()
    asked.append(1)
    assert stop()


def test_a_budget_of_steps_is_spent_to_the_last():
    clock = Clock()
    assert steps_until_stop(StopConditions(lambda: False, {STOP_AFTER_STEPS: "7"}, clock=clock), clock, step_s=1) == 7


@pytest.mark.parametrize("bound", [{STOP_AT_UNIX_S: "1100"}, {STOP_AFTER_S: "100"}])
def test_before_the_end_there_is_time_for_another_step_and_for_the_checkpoint(bound):
    clock = Clock()
    steps_until_stop(StopConditions(lambda: False, bound, clock=clock), clock, step_s=2, save_s=10)
    left_s = 1100 - clock.now_s
    assert 10 + 2 < left_s <= 2 * 10 + 2 * 2 + LEAST_MARGIN_S


def test_a_bound_that_is_no_number_is_refused_by_name():
    with pytest.raises(ConfigError, match=f"{STOP_AFTER_S}: 'soon'"):
        StopConditions(lambda: False, {STOP_AFTER_S: "soon"})
