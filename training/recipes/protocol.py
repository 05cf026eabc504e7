"""What a recipe brings: a model, its loss, and what an optimizer and an exporter need to know of it."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, get_args

from data_contracts.documents import Frozen
from data_contracts.errors import ConfigError
from training.data.shapes import DataShape
from training.parallel.spec import ParallelSpec
from training.recipes.built_in import BUILT_IN, CHOICE, model_fields

if TYPE_CHECKING:
    from torch import Tensor, nn


ADVICE = "What a recipe must bring stands in training/recipes/protocol.py."


class Losses(NamedTuple):
    """Loss of every target, in nats, (rows, targets) float32 with 0 where there is none; and which count, bool."""

    nats: Tensor
    valid: Tensor


class Recipe(Protocol):
    """Constructed as `Recipe(spec, shape)`, where `spec` is an instance of its `spec_type`."""

    spec_type: type[Frozen]
    shape_type: type[DataShape]
    """The kind of rows it reads."""

    def build(self) -> nn.Module:
        """A new model on the CPU; the draws come from torch's global generator, which the caller seeded."""

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        """Losses of one micro-batch of rows; columns are the manifest's, with integers widened to int64."""

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What evaluation adds up, (rows, targets) each: `nats`, for classifiers `correct` too; of a number, its
        `squared_error` alone."""

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        """Names of the matrices between hidden layers, which an orthogonalising optimizer may treat as such.

        Each is the name of a parameter of the built model, any of its names if it is tied; others are refused.
        """

    def example_input(self) -> Tensor:
        """A small input of the built model, for exporting it."""


class Divisible(Protocol):
    """What a recipe may bring besides, for models that one rank does not hold. Each method may be absent."""

    def blocks(self, model: nn.Module) -> Sequence[str]:
        """Names of the modules that the model is made of one after another: sharded, recomputed, compiled each alone.

        Absent: the model is one block.
        """

    def tensor_plan(self, parallel: ParallelSpec) -> Mapping[str, Any]:
        """By module name, where `*` is any number, how tensor-parallel ranks split it.

        Values are styles of `torch.distributed.tensor.parallel`. What all of them compute alike may be left out.
        """

    def stages(self, model: nn.Module, count: int) -> Sequence[nn.Module]:
        """The model cut into modules that feed one another, each of the model's own parts under the model's names.

        The first is called with `inputs(batch)`, the next with what the one before returned, a tensor.
        """

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        """What the model is called with; `losses` must call it with that, once. Needed for stages."""


class Measured(Protocol):
    """What a recipe may bring besides, for telling how much of a device its model uses."""

    def flops_per_token(self, num_parameters: int) -> float:
        """Model FLOPs of one target, forward and backward, of a model with so many parameters in all.

        Absent: 6 for each parameter, which is right where each is multiplied once a target, as in a matrix.
        """


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
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(f"cannot import the recipe ({_said(error, path)}).", where=where, advice=CHOICE) from error
    spec_type, shape_type = (getattr(recipe_type, named, None) for named in ("spec_type", "shape_type"))
    if not (isinstance(spec_type, type) and issubclass(spec_type, Frozen)):
        raise ConfigError("the class is not a recipe: its spec_type is no Frozen model.", where=where, advice=ADVICE)
    if shape_type is None or shape_type not in get_args(DataShape):
        known = ", ".join(each.__name__ for each in get_args(DataShape))
        raise ConfigError(f"the class is not a recipe: its shape_type is none of {known}.", where=where, advice=ADVICE)
    if not isinstance(shape, shape_type):
        raise ConfigError(
            f"the recipe reads {shape_type.content}, and the shards hold {shape.content}.",
            where=where,
            advice="Choose another recipe, or another shards.encoder.",
        )
    spec = model_fields(spec_type, model)
    if name in BUILT_IN:
        return cast(Recipe, recipe_type(spec, shape))
    from training.recipes.checked import CheckedRecipe

    return cast(Recipe, CheckedRecipe(lambda: recipe_type(spec, shape), path.partition(".")[0]))


def _said(error: Exception, module: str) -> str:
    """The error and, if the user's module raised it, the line it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    stem = "/".join(module.split("."))
    lines = [frame.lineno for frame in frames if stem in frame.filename]
    place = f", {stem}.py:{lines[-1]}" if lines else ""
    return f"{type(error).__name__}: {error}{place}" if lines or isinstance(error, SyntaxError) else f"{error}"


def named_blocks(recipe: Recipe, model: nn.Module) -> list[nn.Module]:
    """The parts that the recipe calls blocks; empty where it names none."""
    return [model.get_submodule(name) for name in getattr(recipe, "blocks", lambda _model: ())(model)]
