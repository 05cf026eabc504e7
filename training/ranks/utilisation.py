"""How much of a device's arithmetic a model uses: model FLOPs over the peak (Chowdhery et al., PaLM, 2022, appendix B).

What activation checkpointing computes again does not count, so a figure compares across arrangements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

TERA = 1e12
PEAK_FLOPS_PER_S: dict[str, dict[str, float]] = {
    "H200": {"fp32": 67, "bf16": 989, "fp16": 989},
    "H100": {"fp32": 67, "bf16": 989, "fp16": 989},
    "H100 PCIe": {"fp32": 51, "bf16": 756, "fp16": 756},
    "A100": {"fp32": 19.5, "bf16": 312, "fp16": 312},
    "L40S": {"fp32": 91.6, "bf16": 362, "fp16": 362},
    "L4": {"fp32": 30.3, "bf16": 121, "fp16": 121},
    "V100": {"fp32": 15.7, "fp16": 125},
    "T4": {"fp32": 8.1, "fp16": 65},
}
"""In TFLOP/s, dense, from NVIDIA's data sheets. fp32 without TF32, which deterministic mode leaves off."""


def peak_flops_per_s(device: torch.device, precision: str) -> float | None:
    """What one device could do at best; None where nobody knows."""
    if device.type != "cuda":
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    # By words, and the longest match: "H100 PCIe" is another device than "H100".
    known = [name for name in PEAK_FLOPS_PER_S if set(name.split()) <= set(words)]
    if not known:
        return None
    peak = PEAK_FLOPS_PER_S[max(known, key=len)].get(precision)
    return None if peak is None else peak * TERA


def kind_of_device(device: torch.device) -> str:
    """As its maker names it; `cpu` of a rank without one."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def flops_per_token(recipe: Any, num_parameters: int) -> float:
    """Forward and backward, for one target: the recipe's own figure where it brings one, else 6 N.

    Args:
        num_parameters: N, of the whole model.
    """
    own = getattr(recipe, "flops_per_token", None)
    # Two FLOPs a parameter forward, four backward, for each target.
    return float(own(num_parameters)) if own is not None else 6.0 * num_parameters


def parameters_of(model: nn.Module) -> int:
    """Those of a whole model; one that is shared counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
