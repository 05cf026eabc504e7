"""The batch grows by what is measured alone: the same over resumes and roll-backs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.batch_growth import BatchGrowth

SIZES = {"global_batch_sequences": 32, "micro_batch_sequences": 4}
BY_NOISE = TrainingSpec.model_validate(
    {"batch_ramp": {"from_sequences": 8, "by": "noise_scale", "min_measurements": 3}, **SIZES}
)


def windows(growth: BatchGrowth) -> list[int]:
    return [phase.first_window for phase in growth.phases.phases[1:]]


def test_the_batch_doubles_behind_the_first_measured_step_whose_scale_is_large_enough():
    growth = BatchGrowth(BY_NOISE)
    for window in range(40):
        # Every second step is measured; twice the batch is reached at window 9.
        growth.take(window, is_measured=window % 2 == 1, noise_scale=16.0 if window >= 8 else 15.9)
    assert windows(growth) == [10], "of 16 rows the scale is not twice as many"
    growth.take(41, is_measured=True, noise_scale=1e9)
    growth.take(42, is_measured=True, noise_scale=1e9)
    assert windows(growth) == [10, 42]
    assert growth.phases.row(42) == 80 + 32 * 16


def test_each_size_is_measured_often_enough_and_the_last_one_stays():
    growth = BatchGrowth(BY_NOISE)
    for window in range(40):
        growth.take(window, is_measured=True, noise_scale=1e9)
    assert windows(growth) == [3, 6]


def test_an_unknown_scale_and_a_step_that_was_not_measured_decide_nothing():
    growth = BatchGrowth(BY_NOISE)
    for window in range(40):
        growth.take(window, is_measured=True, noise_scale=None)
        growth.take(window, is_measured=False, noise_scale=1e9)
    assert windows(growth) == []


scales = st.lists(st.none() | st.floats(1, 200), min_size=1, max_size=30)


@given(scales, st.data())
def test_resumed_at_any_step_it_decides_as_if_it_had_never_stopped(scales, data):
    whole, cut = BatchGrowth(BY_NOISE), data.draw(st.integers(0, len(scales)))
    kept: dict[str, str] = whole.scalars()
    for window, scale in enumerate(scales):
        if window == cut:
            kept = whole.scalars()
        whole.take(window, is_measured=True, noise_scale=scale)
    again = BatchGrowth(BY_NOISE)
    if cut < len(scales):
        again.load(kept)
        for window, scale in enumerate(scales[cut:], cut):
            again.take(window, is_measured=True, noise_scale=scale)
        assert (again.phases, again.scalars()) == (whole.phases, whole.scalars())


def test_what_was_decided_stays_when_a_guard_goes_back_before_it():
    growth = BatchGrowth(BY_NOISE)
    growth.take(0, is_measured=True, noise_scale=1.0)
    early = growth.scalars()
    for window in (1, 2, 3):
        growth.take(window, is_measured=True, noise_scale=100.0)
    decided = growth.phases
    assert windows(growth) == [3]
    for go_back in (lambda: growth.load(early), growth.restart):
        go_back()
        for window in (1, 2):
            growth.take(window, is_measured=True, noise_scale=100.0)
        assert growth.phases == decided, "windows that were left out are numbered by it"


def test_a_schedule_needs_no_state_and_a_damaged_one_is_no_state():
    ramp = {"from_sequences": 8, "at_steps": [5, 9]}
    growth = BatchGrowth(TrainingSpec.model_validate({"batch_ramp": ramp, **SIZES}))
    growth.take(4, is_measured=True, noise_scale=1e9)
    growth.load({})
    assert growth.scalars() == BatchGrowth(TrainingSpec()).scalars() == {}
    assert windows(growth) == [5, 9]
    for damaged in ({}, {"batch_growth": "7"}, {"batch_growth": '{"windows": [1]}'}):
        with pytest.raises(IntegrityError, match="sizes of its batches"):
            BatchGrowth(BY_NOISE).load(damaged)


def test_a_batch_may_grow_until_a_step_of_the_largest_was_taken():
    by_schedule = TrainingSpec.model_validate({"batch_ramp": {"from_sequences": 8, "at_steps": [2, 4]}, **SIZES})
    growth, may = BatchGrowth(by_schedule), []
    for window in range(6):
        may.append(growth.may_grow)
        growth.take(window, is_measured=False, noise_scale=None)
    assert may == [True] * 5 + [False]
    assert not BatchGrowth(TrainingSpec()).may_grow
