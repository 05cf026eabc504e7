"""Which settings are tried, before anything is spent on one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.space import Varied
from headway.tasks.search.trials_spec import TrialsSpec
from headway.training.config.recipe_specs import GRADIENT_BOOSTING
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec

TRAINING = TrainingSpec(recipe=RecipeSpec(model={"width": 16}), max_steps=50)
BASE = Configuration(training=TRAINING, shards=ShardSpec())
LR = {"log_uniform": [1e-4, 1e-1]}


def spec(vary: dict[str, Any], **fields: Any) -> TrialsSpec:
    return TrialsSpec.model_validate({"vary": vary, **fields})


def settings(vary: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [trial.settings for trial in spec(vary, **fields).drawn(BASE)]


def test_lists_are_tried_in_every_combination_and_all_else_is_the_pipeline_files() -> None:
    trials = spec({"optimizer.lr": [0.1, 0.2], "recipe.model.width": [16, 32]}).drawn(BASE)
    assert [(trial.number, *trial.settings.values()) for trial in trials] == [
        *((1, 0.1, 16), (2, 0.1, 32), (3, 0.2, 16), (4, 0.2, 32))
    ]
    for trial in trials:
        lr, width = trial.settings.values()
        assert (trial.training.optimizer.lr, trial.training.recipe.model) == (lr, {"width": width})
        changed = {"optimizer": TRAINING.optimizer, "recipe": TRAINING.recipe}
        assert trial.training.model_copy(update=changed) == TRAINING


def test_a_number_with_an_exponent_is_one() -> None:
    assert settings({"optimizer.lr": ["1e-3", "2.5E+2"]}) == [{"optimizer.lr": 0.001}, {"optimizer.lr": 250.0}]
    assert settings({"recipe.model.norm": ["layer", "1e-3x"]})[1] == {"recipe.model.norm": "1e-3x"}


@pytest.mark.parametrize(("name", "value"), [("max_steps", True), ("optimizer.lr", True), ("seed", 2**60)])
def test_what_is_no_number_in_a_pipeline_file_is_none_in_a_trial(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}: a number"):
        settings({name: [value]})


def test_a_grid_is_of_different_settings() -> None:
    assert len(settings({"optimizer.lr": [0.1, 0.1, 0.2]})) == 2
    assert len(settings({"max_steps": [50, 50]})) == 1, "as the file has it"


@given(st.integers(0, 2**40), st.integers(1, 8))
def test_more_draws_keep_the_numbers_of_the_first_ones_though_settings_are_drawn_twice(seed: int, draws: int) -> None:
    fewer, more = (settings({"max_steps": [10, 20, 30]}, draws=number, seed=seed) for number in (draws, draws + 3))
    assert more[: len(fewer)] == fewer


@given(st.integers(0, 2**40), st.integers(3, 20))
def test_more_draws_keep_the_first_ones_and_another_seed_has_others(seed: int, draws: int) -> None:
    vary = {"optimizer.lr": LR, "recipe.model.width": [16, 32, 64]}
    fewer, more = (settings(vary, draws=number, seed=seed) for number in (draws, draws + 5))
    assert more[: len(fewer)] == fewer
    assert settings(vary, draws=draws, seed=seed + 1) != fewer


def test_a_setting_that_is_added_leaves_the_draws_of_the_others_alone() -> None:
    alone = settings({"optimizer.lr": LR}, draws=5)
    both = settings({"optimizer.lr": LR, "recipe.model.width": [16, 32]}, draws=5)
    assert [each["optimizer.lr"] for each in both] == [each["optimizer.lr"] for each in alone]


def test_draws_are_the_same_on_every_machine() -> None:
    assert settings({"optimizer.lr": LR, "recipe.model.width": [16, 32]}, draws=3, seed=7) == EXPECTED


@given(st.integers(0, 2**40))
def test_draws_lie_in_their_ranges(seed: int) -> None:
    vary = {"optimizer.lr": LR, "optimizer.beta2": {"uniform": [0.9, 0.99]}, "max_steps": {"integer": [3, 5]}}
    for drawn in settings(vary, draws=8, seed=seed):
        assert 1e-4 <= drawn["optimizer.lr"] <= 1e-1 and 0.9 <= drawn["optimizer.beta2"] <= 0.99
        assert drawn["max_steps"] in (3, 4, 5) and type(drawn["max_steps"]) is int


def test_a_logarithms_draws_are_as_many_in_each_decade() -> None:
    drawn = [each["optimizer.lr"] for each in settings({"optimizer.lr": LR}, draws=900, max_trials=900)]
    decades = [math.floor(math.log10(each)) for each in drawn]
    assert all(250 < decades.count(decade) < 350 for decade in (-4, -3, -2))


def test_an_integer_range_reaches_both_its_ends() -> None:
    assert {each["max_steps"] for each in settings({"max_steps": {"integer": [3, 5]}}, draws=40)} == {3, 4, 5}


@pytest.mark.parametrize(
    ("vary", "fields", "words"),
    [
        ({"optimizer.lrr": [0.1]}, {}, r"`training` has no setting `optimizer\.lrr`.*`lr`"),
        ({"optimiser.lr": [0.1]}, {}, "`optimizer`"),
        ({"optimizer.lr": LR}, {}, r"trials\.vary\.optimizer\.lr: a range has no end.*draws: 16"),
        ({"optimizer.lr": [-0.1]}, {}, r"optimizer\.lr: must be greater than 0.*lr -0\.1"),
        ({"global_batch_sequences": [12]}, {}, "power of two.*It is so with global_batch_sequences 12"),
        ({"max_steps.more": [1]}, {}, "`max_steps` is a single value, with no settings"),
        ({"batch_ramp.from_sequences": [4]}, {}, "has no `batch_ramp`: say it there, or vary it whole"),
        ({"checkpoints.every_steps": [1, 2]}, {}, "`checkpoints` decides no bit.*would be one run.*how often to save"),
        ({"bucket_bytes": [4096, 8192]}, {}, r"`bucket_bytes` decides no bit.*Leave it out\.$"),
        ({"optimizer.lr": [0.1, 0.2], "max_steps": [1, 2]}, {"max_trials": 3}, "4 combinations are more than"),
        ({"optimizer.lr": LR}, {"draws": 65}, "65 draws are more than max_trials, 64"),
        (
            {"optimizer.lr": [0.1, 0.2]},
            {"budget": {"steps": 99}},
            "takes 100 steps, more than its budget, 99",
        ),
        ({"optimizer.lr": LR}, {"draws": 4, "rungs": [10], "budget": {"steps": 79}}, "takes 80 steps.*an earlier rung"),
        ({"schedule.warmup_steps": [5, 20]}, {"rungs": [20]}, "within the warm-up of 20 steps"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_the_way_out(
    vary: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        spec(vary, **fields).drawn(BASE)


def test_at_rungs_a_batch_decides_no_length_unless_passes_over_rows_are_counted() -> None:
    wanted = spec({"global_batch_sequences": [8, 16]}, rungs=[40])
    assert len(wanted.drawn(BASE)) == 2
    with pytest.raises(ConfigError, match="of one length, and `global_batch_sequences` varies"):
        wanted.drawn(replace(BASE, training=TrainingSpec(max_epochs=2)))


def test_a_rung_beyond_the_iterations_of_trees_is_refused_before_rows_are_there() -> None:
    trees = TrainingSpec(recipe=RecipeSpec(name=GRADIENT_BOOSTING, model={"iterations": 40, "leaves": 8}))
    with pytest.raises(ConfigError, match="a rung at step 50 is none of a run of 40 steps"):
        spec({"recipe.model.leaves": [8, 16]}, rungs=[50]).drawn(replace(BASE, training=trees))


@pytest.mark.parametrize(
    "given",
    [
        *({}, {"uniform": [1, 1]}, {"log_uniform": [0, 1]}, {"uniform": [0, 1], "integer": [0, 1]}),
        *({"integer": [0.5, 2]}, {"uniform": [-1e308, 1e308]}, {"log_uniform": [1e-320, 1e308]}),
        *({"uniform": [5e-324, 1e-323]}, {"uniform": [0.12341, 0.12342]}),
    ],
)
def test_what_is_no_range_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Varied.model_validate(given)


EXPECTED: list[dict[str, Any]] = [
    {"optimizer.lr": 0.002683, "recipe.model.width": 32},
    {"optimizer.lr": 0.01739, "recipe.model.width": 32},
    {"optimizer.lr": 0.007469, "recipe.model.width": 16},
]
