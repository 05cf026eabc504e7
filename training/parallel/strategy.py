"""How a model in training lies over the ranks of a gang, and how its gradients meet: the seam of the engine.

`ExactReplicas` gives the same bits for any number of ranks, and so does `ExactShards`, whose ranks keep slices of the
model; `MeshStrategy` lays a model over a mesh of ranks. All stand behind the same calls, so that loop, optimizer,
guards and checkpoints know nothing of ranks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from headway.training.checkpoint.pieces import Piece, State, pieces_of
from headway.training.checkpoint.proof import proof_loss
from headway.training.config.parallel import replica_shares
from headway.training.observe.telemetry import PartClock
from headway.training.optimizers.muon import UnshardedMatrices
from headway.training.ranks.utilisation import parameters_of
from headway.training.recipes.protocol import Recipe

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Which part of every global batch a rank reads. Ranks that split one model read the same."""

    index: int
    count: int
    stride: int = 1
    """From one of its replicas to the next: so many shares next to each other take replicas in turn."""
    has_answers: bool = True
    """Whether what `measures` returns counts: of ranks that split one model exactly one's does."""
    islands: int | None = None
    """Equal parts of the global batch of which a share has whole ones; None: it has whole replicas."""
    speeds: tuple[float, ...] = ()
    """Of all shares, how many replicas each does in some time; empty: all as many."""

    def bounds(self, num_replicas: int) -> tuple[int, ...]:
        """At which replica of a global batch each share begins, and at last how many there are."""
        return _bounds(num_replicas, self.islands, self.count, self.speeds)

    def num_replicas(self, of_one: int) -> int:
        """How many replicas a global batch has of which one rank runs so many, where all run as many."""
        return of_one * self.count

    def replicas(self, num_replicas: int) -> range:
        """Which replicas of a global batch it is made of, in the order in which a rank runs them."""
        # Contiguous where the stride is 1: rank order is then replica order, and the tree stays one.
        if self.stride == 1:
            return range(*self.bounds(num_replicas)[self.index : self.index + 2])
        length = num_replicas // self.count * self.stride
        turn, place = divmod(self.index, self.stride)
        return range(turn * length + place, (turn + 1) * length, self.stride)


@functools.lru_cache(maxsize=32)  # several times a step
def _bounds(num_replicas: int, islands: int | None, count: int, speeds: tuple[float, ...]) -> tuple[int, ...]:
    shares = replica_shares(num_replicas, count, islands=islands, speeds=speeds)
    return tuple(itertools.accumulate(shares, initial=0))


class ParallelStrategy(Protocol):
    model: nn.Module
    """This rank's part of the model, on its device, under the recipe's names."""
    share: BatchShare
    clock: PartClock

    @property
    def num_parameters(self) -> int:
        """Of the whole model, those that lie on other ranks included."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """What the optimizer updates: plain tensors, which are the model's own or this rank's slices of them."""

    def backward(
        self, step: int, micro_batches: Sequence[Batch], *, num_replicas: int, loss_scale: float = 1.0
    ) -> Tensor:
        """Gradients of `loss_scale` times the loss of this rank's share of a step, counted from 0.

        Args:
            num_replicas: of the global batch.

        Returns nats and number of tokens of each micro-batch, float64 (micro-batches, 2), on the CPU.
        """

    def share_by(self, speeds: tuple[float, ...]) -> None:
        """Let faster ranks have more replicas of the next batches; all ranks call it, between two steps.

        Not where ranks split a model, whose shares are equal.

        Args:
            speeds: of all ranks, as `BatchShare` has them.
        """

    def replica_squares(self) -> Tensor | None:
        """The squared norm of the gradient of the global batch's first micro-batch, in the last `backward`.

        Float64 (micro-batches, 1) on the CPU, 0 for all others; None on every rank where it was not measured.
        """

    def exchange(self, own: Tensor) -> Tensor:
        """Wait until `parameter.grad` is summed over the global batch.

        Args:
            own: rows (micro-batches, n) of this rank's share, n of the caller's choice. Ranks of one share add up.

        Returns those of the whole global batch, (all micro-batches, n), in its order, on every rank.
        """

    def discard(self) -> None:
        """Take back what the last exchange left for the next: its step is not taken."""

    def exchange_state(self) -> Mapping[str, Piece]:
        """What the next exchange adds to gradients, by name; of a step that is over."""

    def gradient_norm(self) -> float:
        """Euclidean norm of the whole model's gradient, the same on every rank."""

    def scale_gradients(self, factor: float) -> None: ...

    def proof_loss(self, batch: Batch) -> float:
        """Mean loss a token in nats, in evaluation mode, the same on every rank; all ranks call it."""

    def measures(self, batch: Batch) -> Mapping[str, Tensor]:
        """What the recipe measures of a batch of this rank's own, called in `evaluation_mode`; of all, equally often.

        Ranks of one share give it the same batch; nothing it returns counts but where the share `has_answers`.
        """

    def whole_matrix(self, name: str, values: Tensor) -> Tensor | None:
        """The whole of a matrix whose slice is laid out as that parameter; None if this rank has it whole already.

        All ranks that share it call it.
        """

    def slice_of(self, name: str, whole: Tensor) -> Tensor:
        """This rank's slice of a whole matrix that belongs to that parameter."""

    def piece(self, like: str, values: Tensor) -> Tensor | Piece:
        """Where values lie that are laid out as the parameter or buffer `like`; whole values are themselves."""

    def full_tensors(self, state: State) -> Iterator[tuple[str, Tensor]]:
        """The state of all ranks, one whole tensor after another, sorted by name; all ranks take all of them."""


class UnshardedModel(UnshardedMatrices):
    """What is trivial where every rank holds the whole model."""

    model: nn.Module
    _recipe: Recipe

    @property
    def num_parameters(self) -> int:
        return parameters_of(self.model)

    def discard(self) -> None: ...

    def exchange_state(self) -> Mapping[str, Piece]:
        return {}

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        return dict(self.model.named_parameters())

    def proof_loss(self, batch: Batch) -> float:
        return proof_loss(self._recipe, self.model, batch)

    def measures(self, batch: Batch) -> Mapping[str, Tensor]:
        return self._recipe.measures(self.model, batch)

    def piece(self, like: str, values: Tensor) -> Tensor | Piece:
        return values

    def full_tensors(self, state: State) -> Iterator[tuple[str, Tensor]]:
        for name, piece in sorted(pieces_of(state).items()):
            yield name, piece.local
