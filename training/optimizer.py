"""Learning-rate schedule, and Muon for hidden matrices beside AdamW for the rest."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from data_contracts.errors import IntegrityError
from training.config import OptimizerSpec, ScheduleSpec

# Quintic whose iteration drives singular values towards 1 (Jordan et al., "Muon", 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def lr_factor(schedule: ScheduleSpec, step: int, max_steps: int) -> float:
    """What peak learning rates are multiplied by at `step`, counted from 0; it would reach 0 at `max_steps`."""
    warm = min(1.0, (step + 1) / max(1, schedule.warmup_steps))
    if schedule.kind == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * step / max_steps))
    return warm * min(1.0, (max_steps - step) / (schedule.decay_fraction * max_steps))


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Approximate U V^T of each (n, m) matrix of a (count, n, m) stack, by Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Momentum whose update of a matrix is orthogonalised, with decoupled weight decay.

    The update is scaled by sqrt(max(1, rows / columns)), so that one learning rate suits every shape.
    """

    def __init__(self, parameters: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, parameters: list[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        updates = []
        for parameter in parameters:
            buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            assert parameter.grad is not None
            buffer.lerp_(parameter.grad, 1 - momentum)
            updates.append(parameter.grad.lerp(buffer, momentum))
        rows, columns = parameters[0].shape
        scale = math.sqrt(max(1.0, rows / columns))
        for parameter, update in zip(parameters, orthogonalise(torch.stack(updates)), strict=True):
            parameter.mul_(1 - lr * weight_decay).add_(update, alpha=-lr * scale)


class ScheduledOptimizer:
    """The optimizers of one model on one schedule; its whole state is a set of named tensors and the step."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        hidden_matrices: Collection[str],
        *,
        spec: OptimizerSpec,
        schedule: ScheduleSpec,
        max_steps: int,
    ) -> None:
        self._parameters, self._schedule, self._max_steps = dict(parameters), schedule, max_steps
        matrices = [value for name, value in parameters.items() if name in hidden_matrices]
        others = [value for name, value in parameters.items() if name not in hidden_matrices]
        self._optimizers: list[torch.optim.Optimizer] = []
        if matrices and spec.kind == "muon":
            self._optimizers.append(
                Muon(matrices, lr=spec.matrix_lr, momentum=spec.matrix_momentum, weight_decay=spec.weight_decay)
            )
            matrices = []
        self._optimizers.append(_adamw(matrices, others, spec))
        self._peak_lrs = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._optimizers]

    def step(self, step: int) -> float:
        """Update the parameters from their gradients; the first step is 0. Returns AdamW's learning rate."""
        factor = lr_factor(self._schedule, step, self._max_steps)
        for optimizer, peak_lrs in zip(self._optimizers, self._peak_lrs, strict=True):
            for group, peak_lr in zip(optimizer.param_groups, peak_lrs, strict=True):
                group["lr"] = peak_lr * factor
            optimizer.step()
        return float(self._optimizers[-1].param_groups[0]["lr"])

    def tensors(self) -> dict[str, Tensor]:
        """State by `<moment>.<parameter>`. AdamW's own step count is the training step, so it is left out."""
        return {
            f"{moment}.{name}": value
            for optimizer in self._optimizers
            for name, parameter in self._parameters.items()
            for moment, value in optimizer.state.get(parameter, {}).items()
            if moment != "step"
        }

    def load(self, tensors: Mapping[str, Tensor], *, num_steps: int) -> None:
        """Take over the state that `tensors()` gave after `num_steps` steps.

        Raises:
            IntegrityError: a moment is missing, or has another shape than its parameter.
        """
        name_of = {parameter: name for name, parameter in self._parameters.items()}
        for optimizer in self._optimizers:
            moments = ("momentum",) if isinstance(optimizer, Muon) else ("exp_avg", "exp_avg_sq")
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                state = {moment: _like(parameter, tensors, f"{moment}.{name_of[parameter]}") for moment in moments}
                if not isinstance(optimizer, Muon):
                    state["step"] = torch.tensor(float(num_steps))
                optimizer.state[parameter] = state


def _adamw(matrices: list[nn.Parameter], others: list[nn.Parameter], spec: OptimizerSpec) -> torch.optim.AdamW:
    groups = [{"params": others, "weight_decay": 0.0}, {"params": matrices, "weight_decay": spec.weight_decay}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=spec.lr,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
        foreach=True,
    )


def _like(parameter: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    value = tensors.get(name)
    if value is None or value.shape != parameter.shape:
        raise IntegrityError(f"optimizer state {name} is missing or has another shape.", where="checkpoint")
    return value.to(parameter.device, copy=True)
