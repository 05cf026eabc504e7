"""An exponential moving average of a model's weights (Polyak and Juditsky, 1992), which is the model in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from headway.training.config.optimizer import EmaSpec
from headway.training.optimizers.update_rule import Parameters, alike


class WeightAverage:
    """Of the parameters that are trained, or of this rank's slices of them: each value by itself.

    After t updates it is the mean of the weights after each, the newest counting `1 - decay`, each older one `decay`
    times the next, divided by what these come to: `1 - decay**t`, as Adam corrects its bias. Weights from before the
    first update have no part in it.
    """

    def __init__(self, parameters: Parameters, spec: EmaSpec) -> None:
        self._parameters, self._decay = {k: v for k, v in parameters.items() if v.requires_grad}, spec.decay
        self.values = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        """Take in the weights after an update; `num_updates` counts it."""
        # 1 at first: `lerp` then gives the weights themselves.
        share = (1 - self._decay) / (1 - self._decay**num_updates)
        for names in alike(self._parameters):
            weights: list[Tensor] = [self._parameters[name] for name in names]
            torch._foreach_lerp_([self.values[name] for name in names], weights, share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model computes with the average, and with its weights again afterwards; it must not be updated within."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def begin_training(self) -> None:
        """Go on from the average: it is where a run starts that was given a model's weights."""
        for name, value in self._parameters.items():
            value.copy_(self.values[name])

    @torch.no_grad()
    def _swap(self) -> None:
        # The contents, for the model's parameters may be slices of what FSDP2 gathers. One tensor is copied at a time.
        for name, average in self.values.items():
            weights = self._parameters[name].clone()
            self._parameters[name].copy_(average)
            average.copy_(weights)
