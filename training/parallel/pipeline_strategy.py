"""A model cut into stages that ranks run one after another, several micro-batches at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.checkpoint.proof import use_training_mode
from headway.training.config.training_spec import TrainingSpec
from headway.training.parallel.mesh_strategy import MeshStrategy, sums_of
from headway.training.parallel.stage_link import StageLink
from headway.training.parallel.strategy import Batch
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Recipe


@dataclass(frozen=True, slots=True)
class _MicroBatchTensors:
    """What a forward pass leaves for its backward pass."""

    taken: Tensor
    given: Tensor
    """Activations; the loss in the last stage."""


class PipelineStrategy(MeshStrategy):
    """Raises:
    ConfigError: the recipe does not say how its model is cut.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> None:
        super().__init__(recipe, spec, process_group)
        self._link = StageLink(self._mesh, process_group, self.clock)
        # Shapes are sent with the first activation of each kind, and known from then on.
        self._shape_known = False

    def backward(
        self, step: int, micro_batches: Sequence[Batch], *, num_replicas: int, loss_scale: float = 1.0
    ) -> Tensor:
        use_training_mode(self.model)
        self._begin(len(micro_batches))
        rows = torch.zeros((len(micro_batches), 2), dtype=torch.float64, device=self._process_group.device)
        replicas = self.share.replicas(num_replicas)
        pending: dict[int, _MicroBatchTensors] = {}
        order = passes(
            self._spec.parallel.schedule,
            num_micro_batches=len(micro_batches),
            stage=self._mesh.place.pipeline,
            num_stages=self._mesh.shape.pipeline,
        )
        with self._split_loss():
            for is_forward, index in order:
                if is_forward:
                    self._seed(step, replicas[index])
                    pending[index], rows[index] = self._forward(micro_batches[index])
                else:
                    # The last backward pass of a step is where gradients may travel, whatever the schedule's order.
                    self._before_backward(is_last=index == len(micro_batches) - 1)
                    # Popped: the activations are freed as soon as their backward pass is over.
                    self._backward(pending.pop(index), loss_scale)
        self._link.finish()
        own = rows.cpu()
        return own if self._mesh.place.tensor == 0 else torch.zeros_like(own)

    def proof_loss(self, batch: Batch) -> float:
        self.model.eval()
        # The proof batch may have other shapes than a micro-batch.
        self._shape_known = False
        with torch.no_grad(), self._split_loss():
            _, own = self._forward(batch)
        self._shape_known = False  # a micro-batch may have another
        self._link.finish()
        self._reshard()
        if self._mesh.share or self._mesh.place.tensor:
            own = torch.zeros_like(own)  # other pipelines computed the same
        nats, num_tokens = self._gather(own.reshape(1, 2)).sum(dim=0).tolist()
        return float(nats / max(1.0, num_tokens))

    def measures(self, batch: Batch) -> Mapping[str, Tensor]:
        # The last block has fewer rows.
        self._shape_known = False
        with self._split_loss():
            _, given = self._stage_output(batch)
            with self._autocast():
                measured = self._measures(cast(nn.Module, lambda _: given), batch) if self._link.is_last else {}
        self._shape_known = False
        self._link.finish()
        self._reshard()
        return measured

    def _part(self, model: nn.Module) -> nn.Module:
        stages = getattr(self._recipe, "stages", None)
        if stages is None or not hasattr(self._recipe, "inputs"):
            raise ConfigError(
                f"the recipe {self._spec.recipe.name} does not say how its model is cut.",
                where="training.parallel.pipeline",
                advice="Give the recipe `stages` and `inputs`, or shard the model instead.",
            )
        parts: list[nn.Module] = list(stages(model, self._mesh.shape.pipeline))
        # A parameter in two stages would be trained twice, and differently.
        _require_partition(model, parts)
        return parts[self._mesh.place.pipeline]

    def _forward(self, batch: Batch) -> tuple[_MicroBatchTensors, Tensor]:
        taken, given = self._stage_output(batch)
        if not self._link.is_last:
            return _MicroBatchTensors(taken, given), torch.zeros(2, dtype=torch.float64)
        with self.clock.part("forward"), self._autocast():
            # The recipe's own loss, of a model that has already run.
            losses = self._losses(cast(nn.Module, lambda _inputs: given), batch)
            return _MicroBatchTensors(taken, losses.nats.sum()), sums_of(losses)

    def _stage_output(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What this stage takes, and what it makes of it, which the next one is sent."""
        known, self._shape_known = self._shape_known, True
        if self._link.is_first:
            taken: Tensor = self._recipe.inputs(batch)  # type: ignore[attr-defined]
        else:
            # A received tensor is a leaf; its gradient is what the stage before waits for.
            taken = self._link.receive_activation(shape_known=known).requires_grad_(torch.is_grad_enabled())
        with self.clock.part("forward"), self._autocast():
            given: Tensor = self.model(taken)
        if not self._link.is_last:
            self._link.send_activation(given, shape_known=known)
        return taken, given

    def _backward(self, passed: _MicroBatchTensors, loss_scale: float) -> None:
        if self._link.is_last:
            (passed.given * loss_scale).backward()  # type: ignore[no-untyped-call]
        else:
            gradient = self._link.receive_gradient(passed.given)
            if passed.given.requires_grad:  # else all of this stage is frozen, and the ones before it
                torch.autograd.backward(passed.given, gradient)
        if not self._link.is_first:
            assert passed.taken.grad is not None
            self._link.send_gradient(passed.taken.grad)


def _require_partition(model: nn.Module, parts: Sequence[nn.Module]) -> None:
    """Raises `ConfigError`: a parameter lies in no stage, in two, or under another name than the model's."""
    names = [name for part in parts for name, _ in part.named_parameters()]
    whole = [name for name, _ in model.named_parameters()]
    for name in sorted({*names, *whole}):
        if names.count(name) != 1 or name not in whole:
            raise ConfigError(
                f"{name} lies in {names.count(name)} of {len(parts)} stages; every parameter belongs to one.",
                where="training.parallel.pipeline",
                advice="Look at the recipe's `stages`; a tied parameter allows one stage only.",
            )


class Pass(NamedTuple):
    is_forward: bool
    micro_batch: int


def passes(kind: Literal["gpipe", "1f1b"], *, num_micro_batches: int, stage: int, num_stages: int) -> Iterator[Pass]:
    """Every micro-batch once forward and once back.

    `gpipe` (Huang et al., 2019) runs all forward first, and holds the activations of all. `1f1b` (Narayanan et al.,
    PipeDream-Flush, 2021) runs one back as soon as there is one, and holds those of at most `num_stages - stage`.
    """
    ahead = num_micro_batches if kind == "gpipe" else min(num_micro_batches, num_stages - stage - 1)
    for index in range(ahead):
        yield Pass(True, index)
    for index in range(num_micro_batches):
        if ahead + index < num_micro_batches:
            yield Pass(True, ahead + index)
        yield Pass(False, index)
