"""The outer update of local SGD and DiLoCo: the mean movement of islands moves the weights that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headway.training.config.communication_spec import OUTER_MOMENTUM, OuterSpec
from headway.training.optimizers.update_rule import Parameters, zeros_like


class OuterUpdate:
    """Gradient descent on movements (Douillard et al., DiLoCo, 2023): with lr 1 and no momentum, the islands' average.

    With the mean movement d of the islands, momentum u and learning rate a: m <- u m + d, and the weights lose a m, or
    a (d + u m) with Nesterov's.
    """

    def __init__(self, parameters: Parameters, spec: OuterSpec, *, num_islands: int) -> None:
        self._parameters, self._spec, self._num_islands = parameters, spec, num_islands
        self._momenta = zeros_like(parameters) if spec.momentum else {}

    @torch.no_grad()
    def update(self, names: Sequence[str]) -> None:
        """Move some parameters, whose `grad` is the sum over islands of how far each has gone: before less after."""
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        movements = [value.grad for value in parameters if value.grad is not None]
        assert len(movements) == len(parameters), "every movement has arrived"
        # A power of two: dividing by it rounds nothing.
        torch._foreach_div_(movements, float(self._num_islands))
        if self._spec.momentum:
            momenta = [self._momenta[name] for name in names]
            torch._foreach_mul_(momenta, self._spec.momentum)
            torch._foreach_add_(momenta, movements)
            if self._spec.nesterov:
                torch._foreach_add_(movements, momenta, alpha=self._spec.momentum)
            else:
                movements = momenta
        torch._foreach_add_(parameters, movements, alpha=-self._spec.lr)

    def tensors(self) -> Mapping[str, Tensor]:
        """State by `<moment>.<parameter>`; the tensors themselves, not copies."""
        return {f"{OUTER_MOMENTUM}.{name}": value for name, value in self._momenta.items()}
