"""Learning-rate schedule, and Muon for hidden matrices beside AdamW for the rest.

Written out, because building one of torch's own optimizers imports its compiler: 1.5 s for every rank and attempt.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from data_contracts.errors import IntegrityError
from training.config import OptimizerSpec, ScheduleSpec

# Quintic whose iteration drives singular values towards 1 (Jordan et al., "Muon", 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_ITERATIONS = 5

Parameters = Mapping[str, nn.Parameter]
Moments = dict[str, dict[str, Tensor]]
"""By moment, then by parameter."""


class UpdateRule(Protocol):
    moments: Moments

    def update(self, lr_factor: float, num_steps: int) -> None:
        """Move the parameters along their gradients; `num_steps` counts this step."""


def lr_factor(schedule: ScheduleSpec, step: int, max_steps: int) -> float:
    """What peak learning rates are multiplied by at `step`, counted from 0; it would reach 0 at `max_steps`."""
    warm = min(1.0, (step + 1) / max(1, schedule.warmup_steps))
    if schedule.kind == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * step / max_steps))
    return warm * min(1.0, (max_steps - step) / (schedule.decay_fraction * max_steps))


def orthogonalise(matrices: Tensor) -> Tensor:
    """Approximate U V^T of each (n, m) matrix of a (count, n, m) stack, by Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Matrices(Protocol):
    def whole_matrix(self, name: str, values: Tensor) -> Tensor | None:
        """The whole matrix that ranks hold slices of; None if this rank has it whole already."""

    def slice_of(self, name: str, whole: Tensor) -> Tensor:
        """This rank's slice of a whole matrix."""


class Undivided:
    """Matrices that every rank has whole."""

    def whole_matrix(self, name: str, values: Tensor) -> Tensor | None:
        return None

    def slice_of(self, name: str, whole: Tensor) -> Tensor:
        return whole


class Muon:
    """Momentum whose update of a matrix is orthogonalised, with decoupled weight decay.

    The update is scaled by sqrt(max(1, rows / columns)), so that one learning rate suits every shape. Ranks that hold
    slices of a matrix each orthogonalise the whole, which they exchange.
    """

    def __init__(self, parameters: Parameters, spec: OptimizerSpec, matrices: Matrices) -> None:
        self._parameters, self._spec, self._matrices = dict(parameters), spec, matrices
        self.moments: Moments = {"momentum": _zeros_like(parameters)}

    @torch.no_grad()
    def update(self, lr_factor: float, num_steps: int) -> None:
        lr = self._spec.matrix_lr * lr_factor
        by_shape: dict[torch.Size, list[tuple[str, Tensor]]] = {}
        for name in self._parameters:
            momentum = self._momentum(name)
            whole = self._matrices.whole_matrix(name, momentum)
            if whole is None:
                by_shape.setdefault(momentum.shape, []).append((name, momentum))
            else:  # one at a time: together they may not fit
                self._move(name, self._matrices.slice_of(name, orthogonalise(whole[None])[0]), whole.shape, lr)
        for shape, momenta in by_shape.items():
            updates = orthogonalise(torch.stack([momentum for _, momentum in momenta]))
            for (name, _), update in zip(momenta, updates, strict=True):
                self._move(name, update, shape, lr)

    def _move(self, name: str, update: Tensor, whole_shape: torch.Size, lr: float) -> None:
        rows, columns = whole_shape
        parameter = self._parameters[name]
        parameter.mul_(1 - lr * self._spec.weight_decay)
        parameter.add_(update, alpha=-lr * math.sqrt(max(1.0, rows / columns)))

    def _momentum(self, name: str) -> Tensor:
        """Nesterov's: the gradient as it will look once this step's is part of the mean."""
        gradient, mean = _gradient(self._parameters[name]), self.moments["momentum"][name]
        mean.lerp_(gradient, 1 - self._spec.matrix_momentum)
        return gradient.lerp(mean, self._spec.matrix_momentum)


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    def __init__(self, parameters: Parameters, spec: OptimizerSpec, *, weight_decay: float) -> None:
        self._parameters, self._spec, self._weight_decay = dict(parameters), spec, weight_decay
        self.moments: Moments = {"mean": _zeros_like(parameters), "mean_square": _zeros_like(parameters)}

    @torch.no_grad()
    def update(self, lr_factor: float, num_steps: int) -> None:
        spec, lr = self._spec, self._spec.lr * lr_factor
        step_size = lr / (1 - spec.beta1**num_steps)
        square_bias = math.sqrt(1 - spec.beta2**num_steps)
        for name, parameter in self._parameters.items():
            gradient = _gradient(parameter)
            mean = self.moments["mean"][name].lerp_(gradient, 1 - spec.beta1)
            mean_square = self.moments["mean_square"][name]
            mean_square.mul_(spec.beta2).addcmul_(gradient, gradient, value=1 - spec.beta2)
            parameter.mul_(1 - lr * self._weight_decay)
            parameter.addcdiv_(mean, mean_square.sqrt().div_(square_bias).add_(spec.epsilon), value=-step_size)


class ScheduledOptimizer:
    """The update rules of one model on one schedule; its whole state is a set of named tensors and the step."""

    def __init__(
        self,
        parameters: Parameters,
        hidden_matrices: Collection[str],
        *,
        spec: OptimizerSpec,
        schedule: ScheduleSpec,
        max_steps: int,
        layout: Matrices | None = None,
    ) -> None:
        self._schedule, self._max_steps, self._peak_lr = schedule, max_steps, spec.lr
        matrices = {name: value for name, value in parameters.items() if name in hidden_matrices}
        others = {name: value for name, value in parameters.items() if name not in hidden_matrices}
        for_matrices: UpdateRule = (
            Muon(matrices, spec, layout or Undivided())
            if spec.kind == "muon"
            else AdamW(matrices, spec, weight_decay=spec.weight_decay)
        )
        self._rules = (for_matrices, AdamW(others, spec, weight_decay=0.0))

    def step(self, step: int, *, num_updates: int | None = None) -> float:
        """Update the parameters from their gradients; the first step is 0. Returns AdamW's learning rate.

        Args:
            num_updates: counts this one; fewer than `step + 1` where steps were skipped.
        """
        factor = lr_factor(self._schedule, step, self._max_steps)
        for rule in self._rules:
            rule.update(factor, step + 1 if num_updates is None else num_updates)
        return self._peak_lr * factor

    def tensors(self) -> dict[str, Tensor]:
        """State by `<moment>.<parameter>`; the tensors themselves, not copies."""
        return {
            f"{moment}.{name}": value
            for rule in self._rules
            for moment, values in rule.moments.items()
            for name, value in values.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `tensors()` gave.

        Raises:
            IntegrityError: one is missing or unknown, or has another shape than its parameter.
        """
        own = self.tensors()
        for name in sorted(own.keys() | tensors.keys()):
            if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
                raise IntegrityError(f"tensor optimizer.{name} does not fit the optimizer.", where="checkpoint")
        for name, value in own.items():
            value.copy_(tensors[name])


def _zeros_like(parameters: Parameters) -> dict[str, Tensor]:
    return {name: torch.zeros_like(parameter, requires_grad=False) for name, parameter in parameters.items()}


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
