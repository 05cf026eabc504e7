"""A model laid over a mesh of ranks: replicated, sharded, split by tensors, and combinations.

Gradients are sums over the global batch, never means: the loss counts every token alike, so a sum is divided once, by
the number of tokens that turned out valid, whatever rank and micro-batch they were in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from training.arrangement import Batch, Share
from training.checkpoint.pieces import Piece, State
from training.checkpoint.proof import proof_loss
from training.communication import Traffic
from training.config import TrainingSpec
from training.distributed import Gang
from training.parallel.mesh import make_mesh
from training.parallel.replica_sum import ReplicaSum
from training.parallel.slices import LocalParameter
from training.parallel.spec import mesh_shape
from training.parallel.wholes import wholes
from training.precision import autocast
from training.recipes.protocol import Losses, Recipe
from training.seeds import derive, seed_everything


class MeshArrangement:
    """Raises:
    ConfigError: the recipe does not say how its model can be split.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, gang: Gang) -> None:
        self._recipe, self._spec, self._gang = recipe, spec, gang
        shape = mesh_shape(spec.parallel, gang.world_size)
        self._mesh = make_mesh(shape, gang)
        self.share = Share(self._mesh.share, shape.num_shares)
        seed_everything(derive(spec.seed, "weights"))
        self.model = recipe.build().to(gang.device)
        self._locals = {
            name: LocalParameter(parameter, speaks=self._mesh.speaks)
            for name, parameter in self.model.named_parameters()
        }
        self._replicas = ReplicaSum(list(self._locals.values()), self._mesh.group("replicate"))

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        return {name: parameter.local for name, parameter in self._locals.items()}

    def backward(self, step: int, micro_batches: Sequence[Batch], *, loss_scale: float = 1.0) -> Tensor:
        self.model.train()
        self._replicas.begin(len(micro_batches))
        rows = []
        for index, batch in enumerate(micro_batches):
            replica = self.share.index * len(micro_batches) + index
            seed_everything(derive(self._spec.seed, "replica", step, replica))
            with autocast(self._spec.precision, self._gang.device):
                losses = self._recipe.losses(self.model, batch)
            (losses.nats.sum() * loss_scale).backward()  # type: ignore[no-untyped-call]
            rows.append(_sums(losses))
        own = torch.stack(rows).cpu()
        # The other ranks of a tensor-parallel group computed the same.
        return own if self._mesh.place.tensor == 0 else torch.zeros_like(own)

    def exchange(self, own: Tensor) -> Tensor:
        self._replicas.finish()
        shape, num_rows = self._mesh.shape, own.shape[0]
        rows = self._gang.gather(own).view(shape.pipeline, shape.num_shares, shape.tensor, num_rows, -1)
        return rows.sum(dim=(0, 2)).flatten(0, 1)

    def gradient_norm(self) -> float:
        """Of squares that the owner of each slice adds up, in float64."""
        owned = [value.local.grad for value in self._locals.values() if value.owned and value.local.grad is not None]
        norms = torch._foreach_norm(owned) if owned else ()
        square = torch.stack([torch.zeros((), device=self._gang.device), *norms]).double().square().sum()
        return math.sqrt(math.fsum(self._gang.gather(square.reshape(1).cpu()).tolist()))

    def scale_gradients(self, factor: float) -> None:
        gradients = [value.local.grad for value in self._locals.values() if value.local.grad is not None]
        torch._foreach_mul_(gradients, factor)

    def traffic(self) -> Mapping[str, Traffic]:
        return {}

    def proof_loss(self, batch: Batch) -> float:
        return proof_loss(self._recipe, self.model, batch)

    def whole_matrix(self, name: str, values: Tensor) -> Tensor:
        return values

    def slice_of(self, name: str, whole: Tensor) -> Tensor:
        return whole

    def piece(self, like: str, values: Tensor) -> Tensor | Piece:
        return self._locals[like].piece(values) if like in self._locals else values

    def wholes(self, state: State) -> Iterator[tuple[str, Tensor]]:
        return wholes(state, self._gang)


def _sums(losses: Losses) -> Tensor:
    """Nats and number of tokens of a micro-batch, float64 (2,)."""
    return torch.stack((losses.nats.detach().double().sum(), losses.valid.sum().double()))
