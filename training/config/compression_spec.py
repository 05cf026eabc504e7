"""How gradients travel between ranks in fewer bytes, as whole numbers. Costs no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.training.config.parallel import is_power_of_two

LARGEST_SUM = {"int8": 127, "int32": 1 << 24}
"""Of all islands; beyond 2^24 fp32 does not hold every whole number."""
MAX_ISLANDS = 64


class IntegerCompressionSpec(Frozen):
    """Each island rounds its gradient to whole numbers under a scale that all share, and sums them.

    Whole numbers add up to the same sum in any order, and so on any number of ranks.
    """

    kind: Literal["int8", "int32"] = Field(
        description="`int8`: a quarter of the bytes of fp32. `int32`: as many, and next to no rounding."
    )
    islands: int = Field(
        default=4,
        strict=True,
        description="Equal parts of the global batch that are each rounded once, a power of two. As many ranks at most "
        "can share a batch. The fewer, the finer they are rounded: int8 to 127 / islands levels.",
    )
    feedback: bool = Field(
        default=True,
        description="Each island adds what rounding took off to its next gradient. Its state: a gradient an island.",
    )
    block: int = Field(
        default=256, strict=True, description="Elements that share a scale, a power of two from 32 to 65,536."
    )

    @model_validator(mode="after")
    def _are_powers_of_two(self) -> Self:
        if not is_power_of_two(self.islands) or self.islands > MAX_ISLANDS:
            raise ValueError(f"islands: {self.islands} is no power of two from 1 to {MAX_ISLANDS}")
        if not is_power_of_two(self.block) or not 32 <= self.block <= 65_536:
            raise ValueError(f"block: {self.block} is no power of two from 32 to 65,536")
        return self

    @property
    def levels(self) -> int:
        """The largest number that an island may say, so that the sum of all fits."""
        return LARGEST_SUM[self.kind] // self.islands
