"""The outer update of local SGD, DiLoCo and FedOpt: the mean movement of islands moves the weights that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headway.training.config.communication_spec import OUTER_MOMENTUM, OUTER_SQUARE, OuterSpec
from headway.training.optimizers.update_rule import Parameters, zeros_like


class OuterUpdate:
    """Gradient descent on movements: with lr 1 and no momentum, the islands' average.

    With the mean movement d of the islands, momentum u and learning rate a (Douillard et al., DiLoCo, 2023):
    m <- u m + d, and the weights lose a m, or a (d + u m) with Nesterov's.

    Adaptive (Reddi et al., "Adaptive federated optimization", 2021, algorithm 2), with decay b and epsilon e:
    m <- u m + (1 - u) d, and the weights lose a m / (sqrt(v) + e). v begins as e^2, and is v + d^2 (adagrad),
    b v + (1 - b) d^2 (adam), or v - (1 - b) d^2 sign(v - d^2) (yogi).
    """

    def __init__(self, parameters: Parameters, spec: OuterSpec, *, num_islands: int) -> None:
        self._parameters, self._spec, self._num_islands = parameters, spec, num_islands
        self._momenta = zeros_like(parameters) if spec.momentum else {}
        self._squares = zeros_like(parameters) if spec.is_adaptive else {}
        for square in self._squares.values():
            square.fill_(spec.epsilon**2)

    @torch.no_grad()
    def update(self, names: Sequence[str]) -> None:
        """Move some parameters, whose `grad` is the sum over islands of how far each has gone: before less after."""
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        movements = [value.grad for value in parameters if value.grad is not None]
        assert len(movements) == len(parameters), "every movement has arrived"
        # A power of two: dividing by it rounds nothing.
        torch._foreach_div_(movements, float(self._num_islands))
        spec = self._spec
        if spec.is_adaptive:
            movements = self._adapted(names, movements)
        elif spec.momentum:
            momenta = [self._momenta[name] for name in names]
            torch._foreach_mul_(momenta, spec.momentum)
            torch._foreach_add_(momenta, movements)
            if spec.nesterov:
                torch._foreach_add_(movements, momenta, alpha=spec.momentum)
            else:
                movements = momenta
        torch._foreach_add_(parameters, movements, alpha=-spec.lr)

    def _adapted(self, names: Sequence[str], movements: list[Tensor]) -> list[Tensor]:
        spec = self._spec
        squares = [self._squares[name] for name in names]
        new = torch._foreach_mul(movements, movements)
        match spec.kind:
            case "adagrad":
                torch._foreach_add_(squares, new)
            case "adam":
                torch._foreach_mul_(squares, spec.square_decay)
                torch._foreach_add_(squares, new, alpha=1 - spec.square_decay)
            case "yogi":
                signs = torch._foreach_sign(torch._foreach_sub(squares, new))
                torch._foreach_mul_(new, signs)
                torch._foreach_sub_(squares, new, alpha=1 - spec.square_decay)
        if spec.momentum:
            momenta = [self._momenta[name] for name in names]
            torch._foreach_mul_(momenta, spec.momentum)
            torch._foreach_add_(momenta, movements, alpha=1 - spec.momentum)
            movements = momenta
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, spec.epsilon)
        return list(torch._foreach_div(movements, roots))

    def tensors(self) -> Mapping[str, Tensor]:
        """State by `<moment>.<parameter>`; the tensors themselves, not copies."""
        kept = ((OUTER_MOMENTUM, self._momenta), (OUTER_SQUARE, self._squares))
        return {f"{moment}.{name}": value for moment, values in kept for name, value in values.items()}
