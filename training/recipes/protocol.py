"""What a recipe brings: a model, its loss, and what an optimizer and an exporter need to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headway.data_contracts.store.documents import Frozen
from headway.training.config.parallel import ParallelSpec
from headway.training.config.shapes import CustomShape, DataShape, TabularNumberShape, TokenShape

if TYPE_CHECKING:
    from torch import Tensor, nn


ADVICE = "In Python `help(headway.Recipe)` says what a recipe must bring."


class Losses(NamedTuple):
    """Loss of every target, in nats, (rows, targets) float32 with 0 where there is none; and which count, bool."""

    nats: Tensor
    """(rows, targets) float32, 0 where there is no target."""
    valid: Tensor
    """(rows, targets) bool: which of them count."""


def measures_of(shape: DataShape) -> tuple[str, ...]:
    """Names of what a recipe's `measures` must give of such rows."""
    match shape:
        case TokenShape():
            return ("nats",)
        case TabularNumberShape() | CustomShape(num_classes=0):
            return ("squared_error",)
    return ("nats", "correct")


class Recipe(Protocol):
    """Constructed as `Recipe(spec, shape)`, where `spec` is an instance of its `spec_type`."""

    spec_type: type[Frozen]
    """The pipeline file's `training.recipe.model`."""
    shape_type: type[DataShape] | tuple[type[DataShape], ...]
    """The kind of rows it reads, or the kinds."""

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


class Parallelizable(Protocol):
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


class FlopCounter(Protocol):
    """What a recipe may bring besides, for telling how much of a device its model uses."""

    def flops_per_token(self, num_parameters: int) -> float:
        """Model FLOPs of one target, forward and backward, of a model with so many parameters in all.

        Absent: 6 for each parameter, which is right where each is multiplied once a target, as in a matrix.
        """


def named_blocks(recipe: Recipe, model: nn.Module) -> list[nn.Module]:
    """The parts that the recipe calls blocks; empty where it names none."""
    return [model.get_submodule(name) for name in getattr(recipe, "blocks", lambda _model: ())(model)]
