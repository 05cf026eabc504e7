"""Settings that go together: conditions, what follows from others, and what is required."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.proposals import PastTrial, next_round
from headway.tasks.search.trials_spec import TrialsSpec
from headway.tasks.search.values import Settings
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec

pytest.importorskip("optuna")  # here, so that its import is no test's time

TRAINING = TrainingSpec(recipe=RecipeSpec(model={"width": 16, "heads": 2, "hidden": 64}), max_steps=540)
BASE = Configuration(training=TRAINING, shards=ShardSpec())
WIDTH, HEADS, HIDDEN = "recipe.model.width", "recipe.model.heads", "recipe.model.hidden"
KINDS = {
    "optimizer.matrix_momentum": {"uniform": [0.8, 0.99], "when": {"optimizer.kind": "muon"}},
    "optimizer.nesterov": {"values": [True, False], "when": {"optimizer.kind": ["sgd"]}},
    "optimizer.momentum": {"values": [0, 0.9], "when": {"optimizer.nesterov": False}},
    "optimizer.kind": ["muon", "sgd", "adamw"],
}


def spec(vary: dict[str, Any], **fields: Any) -> TrialsSpec:
    return TrialsSpec.model_validate({"vary": vary, **fields})


def drawn(vary: dict[str, Any], **fields: Any) -> list[Settings]:
    return [trial.settings for trial in spec(vary, **fields).drawn(BASE)]


def is_whole(settings: Settings) -> bool:
    """Whether those that vary are those whose conditions hold."""
    kind = settings["optimizer.kind"]
    wanted = {"optimizer.kind"}
    wanted |= {"optimizer.matrix_momentum"} if kind == "muon" else set()
    wanted |= {"optimizer.nesterov"} if kind == "sgd" else set()
    wanted |= {"optimizer.momentum"} if settings.get("optimizer.nesterov") is False else set()
    return set(settings) == wanted


@given(st.integers(0, 2**40))
def test_a_setting_varies_beside_the_values_that_its_condition_names_and_else_is_the_files(seed: int) -> None:
    for trial in spec(KINDS, draws=12, seed=seed).drawn(BASE):
        assert is_whole(trial.settings)
        if "optimizer.momentum" not in trial.settings:
            assert trial.training.optimizer.momentum == TRAINING.optimizer.momentum


def test_a_grid_has_what_a_condition_leaves_out_once() -> None:
    vary = {
        "optimizer.kind": ["sgd", "adamw"],
        "optimizer.momentum": {"values": [0, 0.5, 0.9], "when": {"optimizer.kind": "sgd"}},
    }
    assert drawn(vary) == [
        *({"optimizer.kind": "sgd", "optimizer.momentum": momentum} for momentum in (0, 0.5, 0.9)),
        {"optimizer.kind": "adamw"},
    ]


def test_what_follows_from_other_settings_is_a_setting_of_the_trial() -> None:
    derive = {HIDDEN: f"4 * {WIDTH}", "schedule.warmup_steps": f"max_steps // {HIDDEN}"}
    trials = spec({WIDTH: [16, 32]}, derive=derive).drawn(BASE)
    assert [trial.settings for trial in trials] == [
        {WIDTH: 16, HIDDEN: 64, "schedule.warmup_steps": 8},
        {WIDTH: 32, HIDDEN: 128, "schedule.warmup_steps": 4},
    ]
    assert [trial.training.recipe.model[HIDDEN.rsplit(".", 1)[1]] for trial in trials] == [64, 128]


def test_what_follows_from_what_follows_is_of_the_trial_wherever_it_stands_in_the_file() -> None:
    derive = {HIDDEN: f"{HEADS} * 2", HEADS: f"{WIDTH} // 4", "max_steps": "max_steps // 2"}
    (trial,) = spec({WIDTH: [32]}, derive=derive).drawn(BASE)
    assert trial.settings == {WIDTH: 32, HEADS: 8, HIDDEN: 16, "max_steps": 270}


def test_settings_that_each_depend_on_all_before_are_read_at_once() -> None:
    vary: dict[str, Any] = {f"recipe.model.a{each}": [0, 1] for each in range(60)}
    for each in range(1, 60):
        vary[f"recipe.model.a{each}"] = {
            "values": [0, 1],
            "when": {f"recipe.model.a{before}": 0 for before in range(each)},
        }
    assert len(drawn(vary, draws=4)) > 1


def test_a_grid_leaves_out_and_a_draw_is_drawn_again_where_settings_do_not_go_together() -> None:
    vary, require = {WIDTH: [16, 24, 32], HEADS: [2, 3, 4]}, [f"{WIDTH} % {HEADS} == 0"]
    of_grid = drawn(vary, require=require)
    assert [tuple(each.values()) for each in of_grid] == [(16, 2), (16, 4), (24, 2), (24, 3), (24, 4), (32, 2), (32, 4)]
    free = drawn(vary, draws=9)
    kept = drawn(vary, draws=9, require=require)
    assert all(each in of_grid for each in kept)
    # Distinct, so that numbers differ: what may stay is what was drawn before anything was required.
    assert next(each for each in free if each in of_grid) == kept[0]


def test_what_a_sampler_proposes_is_held_to_all_of_it_and_is_the_same_again() -> None:
    vary = {**KINDS, WIDTH: [16, 24, 32], HEADS: {"integer": [1, 4]}}
    derive, require = {HIDDEN: f"{WIDTH} * 2"}, [f"{WIDTH} % {HEADS} == 0"]
    wanted = spec(vary, derive=derive, require=require, search="tpe", draws=3, rounds=3)

    def searched() -> list[PastTrial]:
        records: list[PastTrial] = []
        for number in range(3):
            for trial in next_round(wanted, BASE, number, records, 540):
                width = float(str(trial.settings[WIDTH]))
                records.append(PastTrial(trial=trial, values={540: abs(width - 24) + trial.training.optimizer.lr}))
        return records

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = searched()
    assert len(records) > 6 and records == searched()
    for record in records:
        settings = record.trial.settings
        assert settings[HIDDEN] == 2 * int(str(settings[WIDTH]))
        assert int(str(settings[WIDTH])) % int(str(settings[HEADS])) == 0
        assert is_whole({name: settings[name] for name in settings if name in KINDS})


@pytest.mark.parametrize(
    ("vary", "fields", "words"),
    [
        ({WIDTH: {"values": [1], "when": {"optimizer.knd": 1}}}, {}, "`optimizer.knd`, which does not vary"),
        ({WIDTH: {"values": [1], "when": {WIDTH: 1}}}, {}, "comes back to itself"),
        ({**KINDS, WIDTH: {"values": [1], "when": {"optimizer.kind": "mun"}}}, {}, "to be mun, and it is one of muon"),
        ({HEADS: {"integer": [1, 4]}, WIDTH: {"values": [1], "when": {HEADS: 2}}}, {}, "which is a range"),
        ({WIDTH: [1]}, {"derive": {WIDTH: "3"}}, "is derived, so it does not vary"),
        ({WIDTH: [1]}, {"derive": {HIDDEN: "4 x width"}}, "is no expression"),
        ({WIDTH: [1]}, {"derive": {HIDDEN: f"{HEADS}", HEADS: f"{HIDDEN} + 1"}}, "the expression of .* comes back"),
        ({WIDTH: [1]}, {"derive": {"seed": WIDTH}, "finalist_seeds": 2}, "a seed that varies is no setting"),
        ({f"recipe.model.a{n}": [1] for n in range(101)}, {}, "at most 100"),
        ({WIDTH: [1]}, {"require": ["import os"]}, "is no expression"),
        ({**KINDS}, {"search": "gp", "draws": 3, "rounds": 2}, "search with tpe"),
        ({WIDTH: {"values": [1], "uniform": [1, 2]}}, {}, "a range is one of"),
        ({WIDTH: {"values": []}}, {}, "at least 1"),
    ],
)
def test_a_space_that_says_nothing_is_refused_as_it_is_read(
    vary: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        spec(vary, **fields)


def test_a_length_that_is_counted_later_is_none_that_an_expression_could_name() -> None:
    epochs = TrainingSpec(recipe=RecipeSpec(model={"width": 16}), max_epochs=3)
    with pytest.raises(ConfigError, match="`max_steps` follows from `max_epochs`"):
        spec({WIDTH: [16]}, derive={"schedule.warmup_steps": "max_steps // 20"}).drawn(replace(BASE, training=epochs))


@pytest.mark.parametrize(
    ("vary", "fields", "words"),
    [
        ({WIDTH: [16]}, {"require": [f"{WIDTH} > 99"]}, "none of 1 combinations meets what trials.require says"),
        ({WIDTH: [16, 17]}, {"draws": 2, "require": [f"{WIDTH} > 99"]}, "none of 1,000 draws"),
        ({WIDTH: [16]}, {"require": ["recipe.model.depth > 1"]}, "`recipe.model.depth` is not said in `training`"),
        ({WIDTH: [16]}, {"derive": {HIDDEN: f"1 / ({WIDTH} - 16)"}}, "has no value there.*width 16"),
        ({WIDTH: [16]}, {"derive": {HIDDEN: "recipe.model"}}, "no single value"),
        ({WIDTH: [16]}, {"require": [f"{WIDTH} * 2"]}, "is 32, which is neither true nor false"),
        ({WIDTH: [16]}, {"derive": {"optimizer.kind": "sgd"}}, "words stand in quotes"),
        ({WIDTH: [16]}, {"derive": {"optimizer.lrr": 1}}, "has no setting `optimizer.lrr`"),
        ({WIDTH: [16]}, {"derive": {"max_steps": 9}, "rungs": [5]}, "are to be of one length, and `max_steps` varies"),
        ({f"recipe.model.a{n}": list(range(50)) for n in range(4)}, {}, "6,250,000 combinations, more than 100,000"),
    ],
)
def test_a_space_of_which_nothing_can_be_tried_is_refused_with_the_way_out(
    vary: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        spec(vary, **fields).drawn(BASE)
