"""How gradients travel between ranks in fewer bytes, as whole numbers. Costs no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen

INT8_MAX = 127
INT32_LEVELS = 1 << 24
"""What fp32 holds exactly; with up to 64 islands sums stay below 2^30."""
MAX_ISLANDS = {"int8": 64, "int32": 64}


class IntegerCompressionSpec(Frozen):
    """Each island rounds its gradient to whole numbers under a scale that all share, and sums them.

    Whole numbers add up to the same sum in any order, and so on any number of ranks.
    """

    kind: Literal["int8", "int32"] = Field(
        description="`int8`: a quarter of the bytes of fp32. `int32`: as many, and next to no rounding."
    )
    islands: int = Field(
        default=4,
        description="Equal parts of the global batch that are each rounded once, a power of two. As many ranks at most "
        "can share a batch. The fewer, the finer int8 rounds: to 127 / islands levels.",
    )
    feedback: bool = Field(
        default=True,
        description="Each island adds what rounding took off to its next gradient. Its state: a gradient an island.",
    )
    block: int = Field(default=256, description="Elements that share a scale, a power of two from 32 to 65,536.")

    @model_validator(mode="after")
    def _are_powers_of_two(self) -> Self:
        most = MAX_ISLANDS[self.kind]
        if self.islands < 1 or self.islands & (self.islands - 1) or self.islands > most:
            raise ValueError(f"islands: {self.islands} is no power of two from 1 to {most}")
        if self.block & (self.block - 1) or not 32 <= self.block <= 65_536:
            raise ValueError(f"block: {self.block} is no power of two from 32 to 65,536")
        return self

    @property
    def levels(self) -> int:
        """The largest number that an island may say, so that the sum of all fits."""
        return INT8_MAX // self.islands if self.kind == "int8" else INT32_LEVELS

    def __str__(self) -> str:
        return f"{self.kind}, {self.islands} islands{'' if self.feedback else ', no feedback'}"
