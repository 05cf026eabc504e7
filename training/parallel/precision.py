"""Precision: what forward and backward are computed in, and the loss scale that keeps fp16 within its range.

Weights, gradients that are summed and optimizer state are fp32 in every precision. So are evaluation and the proof
batch, but on a model that FSDP2 shards: what is scored, exported and served are the fp32 weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Literal

import torch

from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.training_spec import TrainingSpec

DTYPES = {"none": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST_EXPONENT, LARGEST_EXPONENT = -24, 24
"""A gradient that overflows under a smaller scale overflows by itself; a larger one gains nothing in fp16."""


def autocast(
    precision: Literal["fp32", "bf16", "fp16"], device: torch.device
) -> contextlib.AbstractContextManager[object]:
    """Under it a model of fp32 weights computes matrix products in `precision`, and losses in fp32."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


class LossScaler:
    """Dynamic loss scaling (Micikevicius et al., 2018), without a device or a gradient of its own.

    The loss is multiplied by `scale` before backward. Ranks sum scaled gradients first, so all see the same overflow;
    what divides them is folded into clipping. A power of two changes no bit of a gradient unless that underflows.
    """

    def __init__(self, spec: TrainingSpec) -> None:
        self._is_dynamic = "fp16" in (spec.precision, spec.rounding)
        self._growth_interval_steps = spec.loss_scale.growth_interval_steps
        self._exponent = spec.loss_scale.initial_exponent if self._is_dynamic else 0
        self._num_good_steps = self.num_skipped = 0

    @property
    def scale(self) -> float:
        return 2.0**self._exponent

    def back_off(self) -> bool:
        """Halve the scale, since the gradient is not finite. Returns whether that can help: the step is skipped."""
        # Below that scale the overflow is the gradient's own, and halving again would only skip steps for ever.
        if not self._is_dynamic or self._exponent <= SMALLEST_EXPONENT:
            return False
        # A power of two: scaling and unscaling change exponents alone.
        self._exponent -= 1
        self._num_good_steps = 0
        self.num_skipped += 1
        return True

    def succeed(self) -> None:
        """Count a step whose gradient was finite; enough of them in a row double the scale."""
        self._num_good_steps += 1
        # Doubling tests a larger scale now and then; too large a one costs one skipped step.
        if self._is_dynamic and self._num_good_steps >= self._growth_interval_steps:
            self._exponent = min(self._exponent + 1, LARGEST_EXPONENT)
            self._num_good_steps = 0

    def scalars(self) -> dict[str, int]:
        if not self._is_dynamic:
            return {}
        return {
            "loss_scale_exponent": self._exponent,
            "loss_scale_good_steps": self._num_good_steps,
            "loss_scale_skipped_steps": self.num_skipped,
        }

    def load(self, scalars: Mapping[str, float | int | str]) -> None:
        """Take over the state that `scalars()` gave.

        Raises:
            IntegrityError: a part of it is missing.
        """
        if not self._is_dynamic:
            return
        # Missing state would restart the scale at its beginning, and the run would leave its own path.
        for name in self.scalars():
            if name not in scalars:
                raise IntegrityError(f"scalar {name} is missing.", where="checkpoint")
        self._exponent = int(scalars["loss_scale_exponent"])
        self._num_good_steps = int(scalars["loss_scale_good_steps"])
        self.num_skipped = int(scalars["loss_scale_skipped_steps"])
