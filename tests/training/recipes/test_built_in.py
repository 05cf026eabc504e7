"""The recipes that come with Headway are what is said of them where torch is not imported."""

from __future__ import annotations

import importlib

import pytest

from headway.training.config.shapes import DataShape, ImageShape, TabularNumberShape, TabularShape, TokenShape
from headway.training.recipes.built_in import BUILT_IN
from headway.training.recipes.load import load_recipe

SHAPES: tuple[DataShape, ...] = (
    TokenShape(vocab_size=300, context_tokens=16),
    ImageShape(channels=1, height=8, width=8, num_classes=10),
    TabularShape(num_numeric=2, cardinalities=(3,), num_classes=2),
    TabularNumberShape(num_numeric=2, cardinalities=(3,), mean=7.0, deviation=2.0),
)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_what_is_said_of_a_built_in_recipe_is_true_of_its_class(name):
    built_in = BUILT_IN[name]
    module, _, attribute = built_in.place.partition(":")
    recipe_type = getattr(importlib.import_module(module), attribute)
    assert recipe_type.spec_type is built_in.spec_type
    shapes = [shape for shape in SHAPES if isinstance(shape, recipe_type.shape_type)]
    assert len(shapes) == (len(recipe_type.shape_type) if isinstance(recipe_type.shape_type, tuple) else 1)
    for shape in shapes:
        assert isinstance(load_recipe(name, {}, shape), recipe_type)
