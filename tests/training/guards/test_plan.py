"""The data plan: steps train on the windows that are not left out, in order, each exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.training.guards.plan import DataPlan, ExcludedSpan

STRETCHES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=6)


def plan_of(stretches) -> DataPlan:
    return DataPlan().without(*(ExcludedSpan(first, first + length, "spike") for first, length in stretches))


@given(STRETCHES)
def test_steps_train_on_the_windows_that_are_left_in_order(stretches):
    plan = plan_of(stretches)
    left = [window for window in range(200) if not plan.excludes(window)]
    assert [plan.window(step) for step in range(100)] == left[:100]


@given(STRETCHES, st.integers(0, 100))
def test_steps_before_a_window_count_the_windows_left(stretches, window):
    plan = plan_of(stretches)
    assert plan.steps_before(window) == sum(not plan.excludes(each) for each in range(window))


@given(STRETCHES, STRETCHES)
def test_what_is_left_out_adds_up_in_any_order(some, others):
    assert plan_of(some + others) == plan_of(others).without(*plan_of(some).excluded)


def test_what_was_left_out_is_counted_by_its_cause():
    plan = DataPlan().without(
        ExcludedSpan(3, 4, "spike"), ExcludedSpan(7, 9, "non-finite"), ExcludedSpan(3, 4, "spike")
    )
    assert (plan.count("spike"), plan.count("non-finite")) == (1, 1)
