"""Muon (Jordan et al., 2024), for matrices between hidden layers."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from headway.training.config.optimizer import OptimizerSpec
from headway.training.optimizers.update_rule import Moments, Parameters, gradient, zeros_like

# Quintic whose iteration drives singular values towards 1 (Jordan et al., "Muon", 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Approximate U V^T of each (n, m) matrix of a (count, n, m) stack, by Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    # The iteration multiplies by the smaller square; a tall matrix is turned first.
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    # A norm of at most 1 puts all singular values where the iteration converges.
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


class UnshardedMatrices:
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

    def __init__(
        self, parameters: Parameters, spec: OptimizerSpec, *, weight_decay: float, matrices: Matrices | None = None
    ) -> None:
        self._parameters, self._spec, self._weight_decay = dict(parameters), spec, weight_decay
        self._matrices = matrices or UnshardedMatrices()
        self.moments: Moments = {"momentum": zeros_like(parameters)}

    @torch.no_grad()
    def update(self, lr: float, num_updates: int) -> None:
        # Matrices of one shape go through one batched product, which is much faster than one by one.
        by_shape: dict[torch.Size, list[tuple[str, Tensor]]] = {}
        for name in self._parameters:
            momentum = self._momentum(name)
            # All ranks that hold slices call this in the same order, that of the parameters.
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
        parameter.mul_(1 - lr * self._weight_decay)
        parameter.add_(update, alpha=-lr * math.sqrt(max(1.0, rows / columns)))

    def _momentum(self, name: str) -> Tensor:
        """Nesterov's: the gradient as it will look once this step's is part of the mean."""
        own, mean = gradient(self._parameters[name]), self.moments["momentum"][name]
        # In place, before the look ahead, so that the moment is the mean that checkpoints keep.
        mean.lerp_(own, 1 - self._spec.matrix_momentum)
        return own.lerp(mean, self._spec.matrix_momentum)
