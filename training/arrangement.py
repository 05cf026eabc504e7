"""How a model in training lies over the ranks of a gang, and how its gradients meet: the seam of the engine.

`ExactReplicas` gives the same bits for any number of ranks. Whatever else a configuration asks for stands behind the
same five calls, so that loop, optimizer, guards and checkpoints know nothing of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from training.config import TrainingSpec
from training.distributed import Gang
from training.recipes.protocol import Recipe

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Share:
    """Which of equally large parts of every global batch a rank reads. Ranks that split one model read the same."""

    index: int
    count: int


class Arrangement(Protocol):
    model: nn.Module
    """This rank's part of the model, on its device: what the optimizer updates, under the recipe's names."""
    share: Share

    def backward(self, step: int, micro_batches: Sequence[Batch], *, loss_scale: float = 1.0) -> Tensor:
        """Gradients of `loss_scale` times the loss of this rank's share of a step, counted from 0.

        Returns nats and number of tokens of each micro-batch, float64 (micro-batches, 2), on the CPU.
        """

    def exchange(self, own: Tensor) -> Tensor:
        """Wait until `parameter.grad` is summed over the global batch.

        Args:
            own: rows (micro-batches, n) of this rank's share, n of the caller's choice.

        Returns those of the whole global batch, (all micro-batches, n), in its order, on every rank.
        """

    def gradient_norm(self) -> float:
        """Euclidean norm of the whole model's gradient, the same on every rank."""

    def scale_gradients(self, factor: float) -> None: ...


def arrange(recipe: Recipe, spec: TrainingSpec, gang: Gang) -> Arrangement:
    """The arrangement that the configuration asks for, with fresh weights."""
    from training.exact_replicas import ExactReplicas

    return ExactReplicas(recipe, spec, gang)
