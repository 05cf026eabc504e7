"""A value is taken only where the measurements leave no doubt, and saves are as far apart as their stall asks for."""

from __future__ import annotations

import math
import random

import pytest

from headway.tasks.tuning.choice import (
    DAY_S,
    SHARE_THAT_COUNTS,
    FailureRecord,
    Measured,
    best_interval_s,
    choose,
    choose_interval,
    share_lost,
)

DEFAULT = (10.0, 10.2, 9.9, 10.1, 10.0)


def measured(*rounds: tuple[float, ...]) -> list[Measured]:
    return [Measured(shown=str(number), settings={}, rounds_s=each) for number, each in enumerate(rounds)]


@pytest.mark.parametrize(
    ("others", "index", "why"),
    [
        ([], 0, "no other value to try"),
        ([(11.0, 11.0, 11.0, 11.0, 11.0)], 0, "no other value is faster"),
        ([(9.0, 9.1, 8.9, 9.0, 9.1)], 1, "1 is 10.0 % faster"),
        ([(9.5, 9.6, 9.5, 9.4, 9.5), (9.0, 9.1, 8.9, 9.0, 9.1)], 2, "2 is 10.0 % faster"),
        ([(7.0, 13.0, 8.0, 9.0, 9.5)], 0, "rounds spread by"),
        ([(9.0, 9.0, 10.0, 9.1, 9.0)], 0, "not in every round"),
        ([(9.85, 10.05, 9.75, 9.9, 9.85)], 0, "less than 2 %"),
    ],
)
def test_a_value_is_taken_that_wins_each_round_by_more_than_they_spread(
    others: list[tuple[float, ...]], index: int, why: str
) -> None:
    made = choose(measured(DEFAULT, *others))
    assert (made.place, why in made.why) == (index, True), made


@pytest.mark.parametrize(
    ("ranks_s", "index", "why"),
    [
        ({1: 10.0, 2: 9.5}, 0, "1 is 5.0 % faster, less than 10 % for each doubling"),
        ({1: 10.0, 2: 8.8}, 1, "1 is 12.0 % faster"),
        ({1: 10.0, 2: 8.0, 4: 7.9}, 1, "1 is 20.0 % faster"),
        ({1: 10.0, 2: 8.0, 4: 6.0}, 2, "2 is 40.0 % faster"),
        ({2: 10.0, 1: 9.6, 4: 9.2}, 1, "1 is 4.0 % faster"),
    ],
)
def test_more_ranks_have_to_win_in_proportion_to_what_they_take(
    ranks_s: dict[int, float], index: int, why: str
) -> None:
    now = next(iter(ranks_s))
    rounds = measured(*((each, each, each) for each in ranks_s.values()))
    made = choose(rounds, [math.log2(ranks / now) for ranks in ranks_s])
    assert (made.place, why in made.why) == (index, True), made


def test_among_equal_values_hardly_ever_is_one_taken_and_a_tenth_faster_one_nearly_always() -> None:
    draws = random.Random(7)

    def rounds(mean: float) -> tuple[float, ...]:
        return tuple(mean * draws.gauss(1, 0.03) for _ in range(5))

    false_alarms = sum(choose(measured(*(rounds(10.0) for _ in range(4)))).place > 0 for _ in range(400))
    found = sum(choose(measured(rounds(10.0), rounds(8.8))).place > 0 for _ in range(400))
    assert false_alarms <= 0.08 * 400 and found >= 0.8 * 400, (false_alarms, found)


@pytest.mark.parametrize("stall_s", [0.0, 0.005, 0.4, 20.0])
@pytest.mark.parametrize("days", [0.1, 10.0, 150.0])
def test_the_interval_loses_no_more_than_a_thousandth_more_than_the_best_and_is_no_longer(
    stall_s: float, days: float
) -> None:
    between_s = days * DAY_S
    made_s = best_interval_s(stall_s, 0.0, between_s)
    youngs_s = math.sqrt(2 * stall_s * between_s)
    assert made_s <= max(1.0, 1.05 * youngs_s)
    if stall_s and made_s > 1:
        least = share_lost(youngs_s, stall_s, between_s)
        rounding = 0.05 * least  # to two digits
        assert least <= share_lost(made_s, stall_s, between_s) <= 1.06 * (least + SHARE_THAT_COUNTS) + rounding


def test_saves_are_not_nearer_than_one_takes_until_it_is_safe() -> None:
    assert best_interval_s(0.001, 30.0, DAY_S) == 60.0


def test_the_interval_stays_where_another_saves_next_to_nothing_or_noise_would_decide() -> None:
    between_s = 150 * DAY_S
    rare, _ = choose_interval([0.005] * 5, 0.1, 60.0, between_s)
    assert rare is None, "5 ms in a minute"
    noisy, why = choose_interval([0.0, 0.0, 0.05, 0.4, 0.5], 0.1, 3.0, between_s)
    assert noisy is None and "0.0 to 400.0" in why
    often, why = choose_interval([0.04, 0.05, 0.05, 0.05, 0.06], 0.1, 2.0, between_s)
    assert often is not None and 40 <= often <= 60 and "saves 2." in why


def test_own_failures_soon_outweigh_those_of_others() -> None:
    assert FailureRecord().mean_s(1) == 154 * DAY_S
    assert FailureRecord(num_failures=9, node_days=1.0).mean_s(1) == pytest.approx(15.5 * DAY_S)
    assert FailureRecord(num_failures=9, node_days=1.0).mean_s(2) == pytest.approx(7.75 * DAY_S)
