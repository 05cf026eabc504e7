"""Replicated training that gives the same bits for 1, 2, 4, ... ranks: exact elasticity.

A global batch is V logical replicas, each one micro-batch with random streams and a backward pass of its own; what
they make is summed in one fixed tree (after EasyScale, Li et al., SC '23).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from data_contracts.errors import ConfigError
from training.arrangement import Batch, Share, WholeModel
from training.batch_statistics import BatchStatistics
from training.communication import Collectives
from training.config import TrainingSpec, replicas_per_rank
from training.distributed import Gang
from training.gradients import GradientTree
from training.precision import DTYPES, autocast
from training.recipes.protocol import Recipe
from training.seeds import derive, seed_everything
from training.telemetry import PartClock

NORM_ELEMENTS = 1 << 12


class ExactReplicas(WholeModel):
    """Raises:
    ConfigError: the model has SyncBatchNorm, or weights that are not fp32.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, gang: Gang) -> None:
        self._recipe, self._spec, self._gang = recipe, spec, gang
        self._replicas_per_rank = replicas_per_rank(spec, gang.world_size)
        self.share, self.clock = Share(gang.rank, gang.world_size), PartClock(gang.device)
        seed_everything(derive(spec.seed, "weights"))
        self.model = recipe.build().to(gang.device)
        # Not `self.model.compile()`: evaluation and the proof batch would go through it too, and get other bits.
        self._callable = cast(nn.Module, torch.compile(self.model)) if spec.compile else self.model
        self._collectives = Collectives(gang)
        self._statistics = BatchStatistics(self.model, self._collectives)
        self._trained = _trained_parameters(self.model)
        self._gradients = GradientTree(
            self._trained,
            collectives=self._collectives,
            num_replicas=spec.num_replicas,
            node_dtype=DTYPES[spec.gradient_compression],
        )

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        return self._trained

    def backward(self, step: int, micro_batches: Sequence[Batch], *, loss_scale: float = 1.0) -> Tensor:
        self.model.train()
        self._statistics.begin_step()
        rows = []
        for index, batch in enumerate(micro_batches):
            replica = self.share.index * self._replicas_per_rank + index
            seed_everything(derive(self._spec.seed, "replica", step, replica))
            self._statistics.begin_replica()
            self._gradients.begin_replica()
            with self.clock.part("forward"), autocast(self._spec.precision, self._gang.device):
                losses = self._recipe.losses(self._callable, batch)
            self._statistics.end_replica()
            (losses.nats.sum() * loss_scale).backward()  # type: ignore[no-untyped-call]
            self._gradients.end_replica()
            rows.append(torch.stack((losses.nats.detach().double().sum(), losses.valid.sum().double())))
        return torch.stack(rows).cpu()

    def exchange(self, own: Tensor) -> Tensor:
        self._total = self._gradients.total()
        self._statistics.end_step()
        return self._collectives.gather(own.to(self._gang.device)).cpu()

    def gradient_norm(self) -> float:
        # In pieces, whose squares are added up in float64: over millions of elements fp32 alone is 1e-4 off.
        norms = torch._foreach_norm(torch.split(self._total, NORM_ELEMENTS))
        return float(torch.linalg.vector_norm(torch.stack(norms), dtype=torch.float64))

    def scale_gradients(self, factor: float) -> None:
        self._total.mul_(factor)


def _trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name, those that are not frozen.

    Raises:
        ConfigError: one is not fp32.
    """
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    for name, value in trained.items():
        if value.dtype != torch.float32:
            raise ConfigError(
                f"it is {str(value.dtype).removeprefix('torch.')}, and weights are fp32 in every precision.",
                where=f"model.{name}",
                advice="Choose training.precision instead of converting the model.",
            )
    return trained
