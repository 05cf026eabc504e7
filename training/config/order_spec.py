"""What a run asks of its sample order: the configuration that `sample_order` makes true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen, Sha256

MAX_PERIOD = 1 << 16
"""Samples after which a mixture's schedule repeats, at most: it is kept in memory."""


class MixedDataset(Frozen):
    manifest: Sha256 = Field(description="Digest of a shard manifest in the workspace, encoded like the pipeline's.")
    weight: float = Field(default=1.0, gt=0, description="Its share of the samples, relative to the others'.")


class OrderSpec(Frozen):
    """Which rows come when. All of it changes what is learnt, so all of it is in the run's key."""

    shuffle: Literal["exact", "window"] = Field(
        default="exact",
        description="`exact`: any row anywhere in an epoch. `window`: row groups in random order, rows shuffled among "
        "a few of them at a time; faster, and kinder to data larger than memory.",
    )
    window_row_groups: int = Field(default=16, ge=1, description="Row groups whose rows `window` shuffles together.")
    weight: float = Field(default=1.0, gt=0, description="The pipeline's own share when datasets are mixed.")
    mix: tuple[MixedDataset, ...] = Field(
        default=(), description="Further datasets; each has epochs of its own, and gives its share of every batch."
    )

    @property
    def weights(self) -> list[float]:
        """Of all datasets, the pipeline's own first."""
        return [self.weight, *(dataset.weight for dataset in self.mix)]

    @model_validator(mode="after")
    def _proportions_are_whole_numbers(self) -> Self:
        whole_shares(self.weights)
        return self


def whole_shares(weights: Sequence[float]) -> list[int]:
    """Weights, taken as the decimal numbers they print as, in their smallest whole numbers.

    Raises:
        ValueError: a weight is not positive, or their proportions need a period beyond 65,536 samples.
    """
    if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"weights must be positive numbers, not {list(weights)}")
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    shares = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*shares)
    if sum(shares) // divisor > MAX_PERIOD:
        raise ValueError(
            f"the weights {list(weights)} repeat only after {sum(shares) // divisor:,} samples, beyond "
            f"{MAX_PERIOD:,}: give small whole numbers in the same proportion, such as 1 and 2"
        )
    return [share // divisor for share in shares]
