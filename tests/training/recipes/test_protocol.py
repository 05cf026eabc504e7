"""Recipes by name: what cannot be built is refused with what would work."""

from __future__ import annotations

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.shapes import TokenShape
from headway.training.recipes.language_model import LanguageModel
from headway.training.recipes.load import load_recipe

SHAPE = TokenShape(vocab_size=300, context_tokens=16)


def test_a_built_in_recipe_and_a_users_own_load_alike():
    assert isinstance(load_recipe("language-model", {"width": 32}, SHAPE), LanguageModel)
    own = load_recipe("headway.training.recipes.language_model:LanguageModel", {"width": 32}, SHAPE)
    assert own.spec.width == 32


@pytest.mark.parametrize(
    "name", ["langage-model", "no.such.module:Recipe", "headway.training.config.training_spec:Nothing", ""]
)
def test_an_unknown_recipe_is_refused_with_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"language-model, .*or package\.module:Class"):
        load_recipe(name, {}, SHAPE)


def test_a_class_that_is_no_recipe_is_refused():
    with pytest.raises(ConfigError, match="not a recipe"):
        load_recipe("pathlib:Path", {}, SHAPE)


def test_an_unknown_or_impossible_model_field_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"recipe\.model\.widht.*width, depth, heads"):
        load_recipe("language-model", {"widht": 3}, SHAPE)
    with pytest.raises(ConfigError, match="width 20 is not a multiple of 2 x heads = 6"):
        load_recipe("language-model", {"width": 20, "heads": 3}, SHAPE)
