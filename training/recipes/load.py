"""From a recipe's name to the recipe."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping
from typing import Any, cast, get_args

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.training.config.shapes import DataShape
from headway.training.recipes.built_in import BUILT_IN, CHOICE, model_fields
from headway.training.recipes.protocol import ADVICE, Recipe, measures_of


def load_recipe(name: str, model: Mapping[str, Any], shape: DataShape) -> Recipe:
    """Import a recipe and hand it its model fields.

    Args:
        name: a built-in recipe, or `package.module:Class`.
        model: the recipe's own fields.

    Raises:
        ConfigError: no such recipe, not a recipe, fields that it does not accept, or another kind of data.
    """
    path, _, attribute = (BUILT_IN[name].place if name in BUILT_IN else name).partition(":")
    where = f"recipe.name {name!r}"
    try:
        recipe_type = getattr(importlib.import_module(path), attribute)
    except (Exception, SystemExit) as error:  # a user's module may raise anything, and may leave
        advice = _of_a_missing_module(error, path.partition(".")[0]) or CHOICE
        raise ConfigError(f"cannot import the recipe ({_message(error, path)}).", where=where, advice=advice) from error
    spec_type, shape_type = (getattr(recipe_type, named, None) for named in ("spec_type", "shape_type"))
    if not (isinstance(spec_type, type) and issubclass(spec_type, Frozen)):
        raise ConfigError("the class is not a recipe: its spec_type is no Frozen model.", where=where, advice=ADVICE)
    read = shape_type if isinstance(shape_type, tuple) else (shape_type,)
    if not all(each in get_args(DataShape) for each in read):
        known = ", ".join(each.__name__ for each in get_args(DataShape))
        raise ConfigError(f"the class is not a recipe: its shape_type is none of {known}.", where=where, advice=ADVICE)
    if not isinstance(shape, read):
        raise ConfigError(
            f"the recipe reads {' or '.join(each.content for each in read)}, and the shards hold {shape.content}.",
            where=where,
            advice="Choose another recipe, or another shards.encoder.",
        )
    spec = model_fields(spec_type, model)
    if name in BUILT_IN:
        return cast(Recipe, recipe_type(spec, shape))
    from headway.training.recipes.checked import CheckedRecipe

    return cast(Recipe, CheckedRecipe(lambda: recipe_type(spec, shape), path.partition(".")[0], measures_of(shape)))


def _of_a_missing_module(error: BaseException, package: str) -> str:
    """Empty where the recipe's own module is missing, or nothing is."""
    missing = ((error.name or "") if isinstance(error, ModuleNotFoundError) else "").partition(".")[0]
    if missing in ("", package):
        return ""
    # The package is all that a run takes along: what lies beside it is found in the project's folder alone, if at all.
    return f"Install {missing}, or put it into the recipe's package and import it from there."


def _message(error: BaseException, module: str) -> str:
    """The error and, if the user's module raised it, the line it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    stem = "/".join(module.split("."))
    lines = [frame.lineno for frame in frames if stem in frame.filename]
    place = f", {stem}.py:{lines[-1]}" if lines else ""
    return f"{type(error).__name__}: {error}{place}" if lines or isinstance(error, SyntaxError) else f"{error}"
