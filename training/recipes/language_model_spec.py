"""Fields of the language model, apart from the model: they are checked where torch is not imported."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field, model_validator

from data_contracts.documents import Frozen


class LanguageModelSpec(Frozen):
    """The model's own fields; vocabulary and context length come with the data."""

    width: int = Field(default=96, gt=0, description="Width of the residual stream.")
    depth: int = Field(default=2, gt=0, description="Number of transformer blocks.")
    heads: int = Field(default=2, gt=0, description="Attention heads; width / heads must be even.")
    hidden: int = Field(default=256, gt=0, description="Width of the gated hidden layer of a block.")
    tied_embeddings: bool = Field(default=False, description="Share one matrix between embedding and output.")
    rotary_base: float = Field(default=10_000.0, gt=0, description="Longest rotary wavelength, in positions.")

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is not a multiple of 2 x heads = {2 * self.heads}")
        return self

    @property
    def hidden_groups(self) -> int:
        """Groups of the hidden layer that can lie on different ranks, as heads can."""
        return math.gcd(self.hidden, self.heads)
