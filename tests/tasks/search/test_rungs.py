"""Which trials go on from rung to rung, what that costs, and which rungs are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.errors import ConfigError
from headway.tasks.search.rungs import (
    AttemptPace,
    GeometricRungs,
    RungScore,
    levels,
    num_at_each,
    num_promoted,
    planned_steps,
    promoted,
    require_at_rungs,
    too_short,
)
from headway.training.config.optimizer import ScheduleSpec
from headway.training.config.training_spec import TrainingSpec

STEPS = st.lists(st.integers(1, 5000), min_size=1, max_size=5, unique=True).map(lambda steps: tuple(sorted(steps)))
VALUES = st.lists(st.floats(-10, 10), min_size=1, max_size=30)


def scores(values: list[float], ahead: frozenset[int] = frozenset()) -> list[RungScore]:
    return [RungScore(number=n, value=value, is_ahead=n in ahead) for n, value in enumerate(values, 1)]


def test_rungs_end_with_the_run_whether_it_is_named_or_not() -> None:
    assert levels(None, 540) == (540,)
    assert levels((60, 180, 540), 540) == levels((60, 180), 540) == levels(GeometricRungs(first=60), 540)
    assert levels(GeometricRungs(first=10, eta=3), 300) == (10, 30, 90, 300), "one at 270 is too close to the end"
    assert levels(GeometricRungs(first=90), 100) == (90, 100), "asked for by its number"
    assert levels(GeometricRungs(first=1, eta=3), 243) == (1, 3, 9, 27, 81, 243)


@given(st.integers(1, 10**6), st.integers(2, 9), st.integers(2, 10**7))
def test_geometric_rungs_grow_by_their_ratio_up_to_the_end(first: int, eta: int, max_steps: int) -> None:
    if first >= max_steps:
        with pytest.raises(ConfigError, match="is none of a run"):
            levels(GeometricRungs(first=first, eta=eta), max_steps)
        return
    *stops, last = levels(GeometricRungs(first=first, eta=eta), max_steps)
    assert last == max_steps and stops == [first * eta**each for each in range(len(stops))]
    assert stops[-1] < max_steps and max_steps**2 < stops[-1] ** 2 * eta**3
    assert stops == [first] or stops[-1] ** 2 * eta <= max_steps**2


def test_a_rung_beyond_the_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a rung at step 1,620 is none of a run of 540 steps"):
        levels((60, 1620), 540)


def test_of_nine_trials_three_go_on_and_of_these_one() -> None:
    assert num_at_each(9, (60, 180, 540)) == [9, 3, 1]
    assert planned_steps(9, (60, 180, 540)) == 9 * 60 + 3 * 120 + 1 * 360
    assert num_at_each(9, (10, 30, 90, 270)) == [9, 3, 1, 1]
    assert 9 * planned_steps(9, (10, 30, 90, 270)) == 3510, "as measured: 0.36 of the grid's 9,720"


@given(VALUES, STEPS)
def test_the_best_go_on_and_a_round_never_takes_more_than_all_of_it_trained(
    values: list[float], steps: tuple[int, ...]
):
    alive = scores(values)
    for step, following in pairwise(steps):
        on, staying = promoted(alive, num_promoted(len(alive), step, following))
        assert sorted([*on, *staying]) == [each.number for each in alive] and on
        place = {each.number: (each.value, each.number) for each in alive}
        assert max(place[number] for number in on) <= min((place[n] for n in staying), default=(99.0, 0))
        alive = [each for each in alive if each.number in on]
    spent = planned_steps(len(values), steps)
    assert steps[-1] <= spent <= len(values) * steps[-1]
    assert len(alive) == num_at_each(len(values), steps)[-1]


@given(VALUES.filter(lambda values: len(values) > 1), st.data())
def test_what_was_trained_further_before_takes_nobodys_place(values: list[float], data: st.DataObject) -> None:
    ahead = data.draw(st.frozensets(st.integers(1, len(values))))
    on, staying = promoted(scores(values, ahead), max(1, len(values) // 3))
    assert ahead <= set(on) and not ahead & set(staying)
    others = [each for each in scores(values) if each.number not in ahead]
    assert len(on) - len(ahead) == min(len(others), max(1, len(values) // 3))


def test_of_equal_trials_the_first_goes_on() -> None:
    assert promoted(scores([0.5, 0.5, 0.5]), 1) == ([1], [2, 3])


def test_a_rung_within_the_warm_up_is_refused_with_the_arithmetic() -> None:
    training = TrainingSpec(max_steps=540, schedule=ScheduleSpec(warmup_steps=60))
    with pytest.raises(ConfigError, match=r"step 30, lies within the warm-up of 60 steps.*30 / 60 = 50% of its peak"):
        require_at_rungs((30, 540), training)
    with pytest.raises(ConfigError, match="100%"):
        require_at_rungs((60, 540), training)
    require_at_rungs((61, 540), training)
    require_at_rungs((540,), training)


def test_a_rung_shorter_than_so_many_starts_is_named_with_the_arithmetic() -> None:
    pace = AttemptPace(start_s=3.0, step_s=0.1)
    said = too_short((60, 1000), pace, 20)
    assert "trains 60 steps x 100 ms = 6 s, and starting to takes 3 s: less than 20 starts, 60 s" in said
    assert said.endswith("Rungs pay that are 600 steps apart")
    assert not too_short((600, 1800), pace, 20) and not too_short((60, 1000), pace, 0)
    assert too_short((60, 1000), replace(pace, step_s=0.0), 20).endswith("steps apart")
    assert "from step 600 to 700" in too_short((600, 700, 2000), pace, 20), "going on is a start of its own"
    assert not too_short((60,), pace, 20), "without rungs each trial starts once, as any run does"
