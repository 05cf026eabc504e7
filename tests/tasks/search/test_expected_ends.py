"""What trials are expected to come to: early figures mislead, and trials that came further say where."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.tasks.search import proposals
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.earlier_trials import Outcome
from headway.tasks.search.expected_ends import ExpectedEnd, expected_ends
from headway.tasks.search.proposals import PastTrial, next_round, prospects
from headway.tasks.search.space import Space
from headway.tasks.search.trials_spec import Trial, TrialsSpec
from headway.tasks.search.values import Settings
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec

STEPS = (20, 60, 180, 540)
TRAINING = TrainingSpec(recipe=RecipeSpec(model={"width": 16}), max_steps=STEPS[-1])
BASE = Configuration(training=TRAINING, shards=ShardSpec())
LR = "optimizer.lr"
RATES: dict[str, Any] = {LR: {"log_uniform": [1e-4, 1.0]}}


def spec(search: str = "tpe", vary: dict[str, Any] | None = None, **fields: Any) -> TrialsSpec:
    return TrialsSpec.model_validate({"vary": vary or RATES, "search": search, "draws": 9, "rounds": 4, **fields})


def ends(outcomes: list[Outcome], vary: dict[str, Any] | None = None) -> list[float | None]:
    found = expected_ends(spec(vary=vary).space, outcomes, STEPS[-1])
    return [None if each is None else each.mean for each in found]


def ranked(outcomes: list[Outcome]) -> list[int]:
    known = [end for end in ends(outcomes) if end is not None]
    assert len(known) == len(outcomes)
    return [int(place) for place in np.argsort(known)]


def crossing(rate: float, step: int) -> float:
    """Large rates lead early; at the end 0.003 is best."""
    exponent = math.log10(rate)
    early = -0.5 * exponent
    late = abs(exponent - math.log10(3e-3))
    share = math.log(step / STEPS[0]) / math.log(STEPS[-1] / STEPS[0])
    return (1 - share) * early + share * late


def outcome(rate: float, steps: tuple[int, ...] = STEPS, **others: Any) -> Outcome:
    return Outcome(settings={LR: rate, **others}, values={step: crossing(rate, step) for step in steps})


def test_a_trial_that_leads_early_is_expected_to_lose_where_its_like_lost() -> None:
    came_further = [outcome(rate) for rate in (0.5, 0.02, 2e-3)]
    # At the first rung the larger rate leads.
    large, small = outcome(0.3, STEPS[:1]), outcome(3.5e-3, STEPS[:1])
    assert large.values[20] < small.values[20]
    *_, of_large, of_small = ends([*came_further, large, small])
    assert of_large is not None and of_small is not None and of_small < of_large


def test_while_none_has_come_further_the_order_is_that_of_the_figures() -> None:
    rates = [10.0**-each for each in np.linspace(0.2, 3.8, 9)]
    assert ranked([outcome(rate, STEPS[:1]) for rate in rates]) == list(range(9))


def test_what_a_whole_run_came_to_is_what_it_is_expected_to_come_to() -> None:
    rates = [10.0**-each for each in np.linspace(0.2, 3.8, 9)]
    by_end = sorted(range(9), key=lambda place: crossing(rates[place], STEPS[-1]))
    assert ranked([outcome(rate) for rate in rates])[:4] == by_end[:4]


@given(scale=st.sampled_from([1e-12, 1e-3, 1.0, 1e9, 1e200]))
@settings(max_examples=5)
def test_the_unit_of_a_metric_changes_no_order(scale: float) -> None:
    outcomes = [outcome(10.0**-each, STEPS[: 1 + place % 4]) for place, each in enumerate(np.linspace(0.3, 3.7, 12))]
    moved = [
        Outcome(settings=each.settings, values={step: scale * value for step, value in each.values.items()})
        for each in outcomes
    ]
    assert ranked(moved) == ranked(outcomes)


def recorded(number: int, settings: Settings, values: dict[int, float]) -> PastTrial:
    trial = Trial(number=number, settings=settings, training=TRAINING, shards=ShardSpec())
    return PastTrial(trial=trial, values=values)


def test_among_few_at_a_late_rung_the_one_that_is_far_ahead_goes_on() -> None:
    """Seen on digits: of two at step 180, one had less than half of the other's loss."""
    vary = {LR: {"log_uniform": [5e-4, 5e-2]}, "recipe.model.width": [8, 16, 32]}
    seen: list[tuple[float, int, dict[int, float]]] = [
        (8.323e-4, 16, {60: 2.1505}),
        (0.01287, 32, {60: 0.4127, 180: 0.1014, 540: 0.0072}),
        (0.01934, 32, {60: 0.4523}),
        (0.007167, 32, {60: 0.4626}),
        (0.04902, 32, {60: 0.3519, 180: 0.1901}),
        (0.001306, 16, {60: 1.9954}),
        (0.004317, 8, {60: 1.8631}),
        (8.361e-4, 32, {60: 1.8785}),
        (0.04759, 16, {60: 0.4052, 180: 0.181}),
        (0.006426, 16, {60: 0.8521, 180: 0.074}),
        (0.002783, 32, {60: 0.9424}),
        (0.01882, 8, {60: 0.8445}),
    ]
    records = [
        recorded(number, {LR: rate, "recipe.model.width": width}, values)
        for number, (rate, width, values) in enumerate(seen, 1)
    ]
    standing = prospects(spec(vary=vary), records, {9: 0.181, 10: 0.074}, STEPS[-1])
    assert standing[10] < standing[9]


def test_of_two_that_are_expected_to_come_to_much_the_same_the_one_goes_on_of_which_less_is_known() -> None:
    outcomes = [outcome(rate) for rate in (0.3, 0.03, 3e-3)] + [outcome(rate, STEPS[:1]) for rate in (0.01, 1e-4)]
    *_, near, far = expected_ends(spec().space, outcomes, STEPS[-1])
    assert near is not None and far is not None and near.mean < far.mean < near.mean + near.deviation
    records = [recorded(number, each.settings, dict(each.values)) for number, each in enumerate(outcomes, 1)]
    standing = prospects(spec(), records, {4: outcomes[3].values[20], 5: outcomes[4].values[20]}, STEPS[-1])
    assert standing[5] < standing[4]


@pytest.mark.process
def test_later_rounds_are_proposed_by_what_trials_are_expected_to_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are played here, which is not what the figures say."""
    records = [
        PastTrial(trial=each, values={20: float(each.number)})
        for each in next_round(spec(draws=20, rounds=2), BASE, 0, [], STEPS[-1])
    ]

    def proposed(sign: float) -> float:
        def played(space: Space, outcomes: Sequence[Outcome], end_step: int) -> list[ExpectedEnd]:
            return [ExpectedEnd(mean=sign * float(each.settings[LR] or 0), deviation=0.0) for each in outcomes]

        monkeypatch.setattr(proposals, "expected_ends", played)
        trials = next_round(spec(draws=20, rounds=2), BASE, 1, records, STEPS[-1])
        return sum(math.log10(float(each.settings[LR] or 0)) for each in trials) / len(trials)

    assert proposed(1.0) < proposed(-1.0) - 1


def test_how_badly_a_trial_diverged_is_of_no_matter() -> None:
    others = [outcome(10.0**-each, STEPS[: 1 + place % 4]) for place, each in enumerate(np.linspace(0.3, 3.7, 12))]
    mild, wild = ([*others, Outcome(settings={LR: 0.9}, values={20: value})] for value in (1e3, 1e30))
    assert ends(mild) == pytest.approx(ends(wild))
    assert ranked(mild)[-1] == 12


@pytest.mark.parametrize("whole", [(), (0.01,)])
def test_nor_is_it_where_one_or_two_alone_came_so_far(whole: tuple[float, ...]) -> None:
    early = [outcome(rate, STEPS[:1]) for rate in (0.5, 0.2, 0.05, 1e-3, 2e-4)]
    others = [*early, *(outcome(rate, STEPS[:2]) for rate in whole)]
    begun = outcome(0.1, STEPS[:1])
    mild, wild = (
        ends([*others, Outcome(settings=begun.settings, values={**begun.values, 60: value})]) for value in (1e3, 1e30)
    )
    assert mild == pytest.approx(wild)


@pytest.mark.parametrize("level", [0.0, 1e6])
def test_one_early_figure_alone_tells_no_spread(level: float) -> None:
    rates = [10.0**-each for each in np.linspace(0.2, 3.8, 9)]
    by_end = sorted(rates, key=lambda rate: crossing(rate, STEPS[-1]))
    whole = [Outcome(settings={LR: rate}, values={540: level + crossing(rate, 540)}) for rate in rates]
    early = Outcome(settings={LR: 0.05}, values={20: level + 1.0})
    records = [
        PastTrial(
            trial=Trial(number=number, settings=each.settings, training=TRAINING, shards=ShardSpec()),
            values=each.values,
        )
        for number, each in enumerate([*whole, early])
    ]
    standing = prospects(spec(), records, dict.fromkeys(range(9), 0.0), STEPS[-1])
    assert [rates[number] for number in sorted(standing, key=standing.__getitem__)][:4] == by_end[:4]


def test_a_figure_from_before_the_first_step_is_taken() -> None:
    """Who writes a study of Optuna's may count steps from 0."""
    earlier = [Outcome(settings={LR: rate}, values={0: 3.0, 540: crossing(rate, 540)}) for rate in (0.3, 3e-3, 1e-3)]
    assert all(end is not None and math.isfinite(end) for end in ends(earlier))
    assert next_round(spec(warm_start="study.log"), BASE, 0, [], STEPS[-1], earlier=earlier)


def test_distances_by_a_hundred_settings_are_in_memory_once() -> None:
    names = [f"recipe.model.width{each}" for each in range(100)]
    vary = {name: {"uniform": [0.0, 1.0]} for name in names}
    draw, num_trials = np.random.default_rng(0), 120
    outcomes = [
        Outcome(settings=dict(zip(names, draw.random(100).tolist(), strict=True)), values={20: float(number)})
        for number in range(num_trials)
    ]
    ends(outcomes[:2], vary)  # which imports
    tracemalloc.start()
    try:
        ends(outcomes, vary)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1.5 * 8 * len(names) * num_trials**2


def test_less_is_known_of_a_trial_the_earlier_it_stands_and_the_fewer_are_like_it() -> None:
    outcomes = [*(outcome(rate) for rate in (0.3, 0.1, 0.03)), outcome(0.1, STEPS[:2]), outcome(2e-4, STEPS[:2])]
    found = expected_ends(spec().space, outcomes, STEPS[-1])
    whole, near, far = (found[place].deviation for place in (1, 3, 4))  # type: ignore[union-attr]
    assert whole < near < far


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_failed_trials_and_figures_that_are_no_numbers_have_no_expected_end(value: float) -> None:
    failed = Outcome(settings={LR: 0.1}, values={20: 1.0}, has_failed=True)
    unscored, odd = Outcome(settings={LR: 0.1}), Outcome(settings={LR: 0.1}, values={20: value})
    whole = outcome(0.01)
    found = ends([failed, unscored, odd, whole])
    assert found[:3] == [None] * 3 and found[3] is not None
    assert ends([failed]) == [None] and ends([]) == []
    trial = Trial(number=1, settings=odd.settings, training=TRAINING, shards=ShardSpec())
    assert prospects(spec(), [PastTrial(trial=trial, values=odd.values)], {1: value}, STEPS[-1]) == {1: math.inf}


def test_equal_figures_and_a_single_trial_are_no_trouble() -> None:
    same = [Outcome(settings={LR: 0.1}, values={20: 1.0, 900: 1.0})] * 3
    assert all(end is not None and math.isfinite(end) for end in [*ends(same), *ends(same[:1])])
    zero = [Outcome(settings={LR: 0.1}, values={20: 0.0})] * 2
    assert all(end is not None and math.isfinite(end) for end in ends(zero))


def test_a_setting_that_varies_beside_another_alone_tells_only_those_apart_that_have_it() -> None:
    vary = {
        "optimizer.kind": ["adamw", "sgd"],
        "optimizer.momentum": {"uniform": [0.0, 0.99], "when": {"optimizer.kind": "sgd"}},
    }
    good = [({"optimizer.kind": "sgd", "optimizer.momentum": each}, 1 - each) for each in (0.1, 0.5, 0.9)]
    bad = ({"optimizer.kind": "adamw"}, 3.0)
    outcomes = [
        Outcome(settings=chosen, values={step: value + 10 / step for step in STEPS})  # type: ignore[arg-type]
        for chosen, value in (*good, bad, bad)
    ]
    early = Outcome(settings={"optimizer.kind": "sgd", "optimizer.momentum": 0.95}, values={20: 0.7})
    *_, one, other, of_early = ends([*outcomes, early], vary)
    assert one == pytest.approx(other) and of_early is not None and one is not None and of_early < one
