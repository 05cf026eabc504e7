"""What a recipe brings: a model, its loss, and what an optimizer and an exporter need to know of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from data_contracts.documents import Frozen
from data_contracts.errors import ConfigError
from training.data.shapes import DataShape
from training.parallel.spec import ParallelSpec
from training.recipes.built_in import BUILT_IN, CHOICE, model_fields

if TYPE_CHECKING:
    from torch import Tensor, nn


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
        """Names of the matrices between hidden layers, which an orthogonalising optimizer may treat as such."""

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


def load_recipe(name: str, model: Mapping[str, Any], shape: DataShape) -> Recipe:
    """Import a recipe and hand it its model fields.

    Args:
        name: a built-in recipe, or `package.module:Class`.
        model: the recipe's own fields.

    Raises:
        ConfigError: no such recipe, not a recipe, fields that it does not accept, or another kind of data.
    """
    path, _, attribute = (BUILT_IN[name].place if name in BUILT_IN else name).partition(":")
    try:
        recipe_type = getattr(importlib.import_module(path), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"cannot import the recipe ({error}).",
            where=f"recipe.name {name!r}",
            advice=CHOICE,
        ) from error
    try:
        spec_type, shape_type = recipe_type.spec_type, recipe_type.shape_type
    except AttributeError as error:
        raise ConfigError(f"the class is not a recipe ({error}).", where=f"recipe.name {name!r}") from error
    if not isinstance(shape, shape_type):
        raise ConfigError(
            f"the recipe reads {shape_type.content}, and the shards hold {shape.content}.",
            where=f"recipe.name {name!r}",
            advice="Choose another recipe, or another shards.encoder.",
        )
    return cast(Recipe, recipe_type(model_fields(spec_type, model), shape))
