"""What learns: a model with its gradients and optimizer, and all of its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from data_contracts.errors import ConfigError, IntegrityError, TrainingFailed
from training.config import TrainingSpec
from training.distributed import Gang
from training.gradients import GradientTree, clip_factor, tree_sum
from training.optimizer import ScheduledOptimizer
from training.recipes.protocol import Recipe
from training.seeds import derive, seed_everything

Batch = Mapping[str, Tensor]


class Sums(NamedTuple):
    """Over all replicas of one step, the same on every rank."""

    nats: float
    num_tokens: int
    stop: bool


class Learner:
    """A model in training.

    Args:
        replicas_per_rank: how many logical replicas this rank runs in turn.

    Raises:
        ConfigError: the model keeps batch statistics, which depend on how a batch is cut.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, gang: Gang, *, replicas_per_rank: int) -> None:
        self._recipe, self._spec, self._gang, self._replicas_per_rank = recipe, spec, gang, replicas_per_rank
        seed_everything(derive(spec.seed, "weights"))
        self.model = recipe.build().to(gang.device)
        _refuse_batch_statistics(self.model)
        self._parameters = dict(self.model.named_parameters())
        self._gradients = GradientTree(list(self._parameters.values()), gang=gang, num_replicas=spec.num_replicas)
        self._optimizer = ScheduledOptimizer(
            self._parameters,
            recipe.hidden_matrices(self.model),
            spec=spec.optimizer,
            schedule=spec.schedule,
            max_steps=spec.max_steps,
        )

    def backward(self, step: int, replicas: Sequence[Batch]) -> Tensor:
        """Gradients of this rank's replicas. Returns nats and number of tokens of each, float64 (replicas, 2)."""
        self.model.train()
        rows = []
        for index, batch in enumerate(replicas):
            replica = self._gang.rank * self._replicas_per_rank + index
            seed_everything(derive(self._spec.seed, "replica", step, replica))
            self._gradients.begin_replica()
            losses = self._recipe.losses(self.model, batch)
            losses.nats.sum().backward()  # type: ignore[no-untyped-call]
            self._gradients.end_replica()
            rows.append(torch.stack((losses.nats.detach().double().sum(), losses.valid.sum().double())))
        return torch.stack(rows).cpu()

    def exchange(self, own: Tensor, *, stop: bool) -> tuple[Tensor, Sums]:
        """Sum gradients and losses over all ranks, in the same tree. Any rank's `stop` is everybody's."""
        total = self._gradients.total()
        flags = torch.full((own.shape[0], 1), float(stop), dtype=torch.float64)
        nats, num_tokens, num_stops = tree_sum(self._gang.gather(torch.cat((own, flags), dim=1))).tolist()
        return total, Sums(nats=nats, num_tokens=int(num_tokens), stop=num_stops > 0)

    def update(self, step: int, total: Tensor, sums: Sums) -> tuple[float, float]:
        """One optimizer step on the mean gradient a token. Returns the learning rate and the norm before clipping.

        Raises:
            TrainingFailed: loss or gradient is not finite; the weights are left as they were.
        """
        norm = float(torch.linalg.vector_norm(total)) / max(1, sums.num_tokens)
        if not (math.isfinite(norm) and math.isfinite(sums.nats)):
            raise TrainingFailed(
                f"loss {sums.nats} or gradient norm {norm} is not finite.",
                where=f"step {step + 1}",
                advice="Lower the learning rates, or look at the data of this step.",
            )
        total.mul_(clip_factor(norm, self._spec.optimizer.gradient_clip) / max(1, sums.num_tokens))
        return self._optimizer.step(step), norm

    def tensors(self) -> dict[str, Tensor]:
        """All state but the step: `model.<name>` and `optimizer.<moment>.<name>`."""
        return {
            **{f"model.{name}": value for name, value in model_tensors(self.model).items()},
            **{f"optimizer.{name}": value for name, value in self._optimizer.tensors().items()},
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `tensors()` gave.

        Raises:
            IntegrityError: a tensor is missing or has another shape.
        """
        load_model_tensors(self.model, tensors)
        prefix = "optimizer."
        moments = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
        self._optimizer.load(moments)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, each once even if tied, and persistent buffers."""
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    persistent = model.state_dict(keep_vars=True)
    return parameters | {name: value for name, value in model.named_buffers() if name in persistent}


def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `model.<name>` tensors into a model.

    Raises:
        IntegrityError: one is missing, has another shape, or has no place in the model.
    """
    own = model_tensors(model)
    given = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    for name in sorted(own.keys() | given.keys()):
        if name not in own or name not in given or own[name].shape != given[name].shape:
            raise IntegrityError(f"tensor model.{name} does not fit the recipe's model.", where="checkpoint")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(given[name])


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigError(
                "batch normalisation's running statistics would depend on the number of ranks.",
                where=f"model.{name}",
                advice="Use group or layer normalisation.",
            )
