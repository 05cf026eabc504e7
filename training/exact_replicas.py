"""Replicated training that gives the same bits for 1, 2, 4, ... ranks: exact elasticity.

A global batch is V logical replicas, each one micro-batch with random streams and a backward pass of its own; what
they make is summed in one fixed tree (after EasyScale, Li et al., SC '23).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from data_contracts.errors import ConfigError
from training.arrangement import Batch, Share, WholeModel
from training.config import TrainingSpec, replicas_per_rank
from training.distributed import Gang
from training.gradients import GradientTree
from training.precision import autocast
from training.recipes.protocol import Recipe
from training.seeds import derive, seed_everything


class ExactReplicas(WholeModel):
    """Raises:
    ConfigError: the model keeps batch statistics, which depend on how a batch is cut.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, gang: Gang) -> None:
        self._recipe, self._spec, self._gang = recipe, spec, gang
        self._replicas_per_rank = replicas_per_rank(spec, gang.world_size)
        self.share = Share(gang.rank, gang.world_size)
        seed_everything(derive(spec.seed, "weights"))
        self.model = recipe.build().to(gang.device)
        # Not `self.model.compile()`: evaluation and the proof batch would go through it too, and get other bits.
        self._callable = cast(nn.Module, torch.compile(self.model)) if spec.compile else self.model
        _refuse_batch_statistics(self.model)
        self._gradients = GradientTree(list(self.model.parameters()), gang=gang, num_replicas=spec.num_replicas)

    def backward(self, step: int, micro_batches: Sequence[Batch], *, loss_scale: float = 1.0) -> Tensor:
        self.model.train()
        rows = []
        for index, batch in enumerate(micro_batches):
            replica = self.share.index * self._replicas_per_rank + index
            seed_everything(derive(self._spec.seed, "replica", step, replica))
            self._gradients.begin_replica()
            with autocast(self._spec.precision, self._gang.device):
                losses = self._recipe.losses(self._callable, batch)
            (losses.nats.sum() * loss_scale).backward()  # type: ignore[no-untyped-call]
            self._gradients.end_replica()
            rows.append(torch.stack((losses.nats.detach().double().sum(), losses.valid.sum().double())))
        return torch.stack(rows).cpu()

    def exchange(self, own: Tensor) -> Tensor:
        self._total = self._gradients.total()
        return self._gang.gather(own)

    def gradient_norm(self) -> float:
        return float(torch.linalg.vector_norm(self._total))

    def scale_gradients(self, factor: float) -> None:
        self._total.mul_(factor)


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigError(
                "batch normalisation's running statistics would depend on the number of ranks.",
                where=f"model.{name}",
                advice="Use group or layer normalisation.",
            )
