"""What every update rule is: it moves plain tensors, which are whole parameters or this rank's slices of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

Parameters = Mapping[str, nn.Parameter]
Moments = dict[str, dict[str, Tensor]]
"""By moment, then by parameter."""


class UpdateRule(Protocol):
    moments: Moments

    def update(self, lr: float, num_updates: int) -> None:
        """Move the parameters along their gradients; `num_updates` counts this one."""


def zeros_like(parameters: Parameters) -> dict[str, Tensor]:
    return {name: torch.zeros_like(parameter, requires_grad=False) for name, parameter in parameters.items()}


def gradient(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient, laid out as the parameter is: fused kernels read both in memory order."""
    given = parameter.grad
    assert given is not None
    return given if given.stride() == parameter.stride() else torch.empty_like(parameter).copy_(given)


def alike(parameters: Parameters) -> list[list[str]]:
    """Names, in batches of one device and type, which one kernel takes together."""
    batches: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, parameter in parameters.items():
        batches.setdefault((parameter.device, parameter.dtype), []).append(name)
    return list(batches.values())
