"""Fields of the image classifier, apart from the model: they are checked where torch is not imported."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError


class ImageClassifierSpec(Frozen):
    """The model's own fields; the images' size and the number of classes come with the data."""

    width: int = Field(default=32, gt=0, description="Channels of the first stage; each further stage doubles them.")
    stages: int = Field(default=2, gt=0, le=6, description="Stages of two convolutions; each halves the image.")
    groups: int = Field(default=8, gt=0, description="Groups of a group normalisation; they divide the width.")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="Share of pooled features left out in training.")

    def require_size(self, height: int, width: int) -> None:
        """Raises `ConfigError`: images are smaller than the stages can halve."""
        smallest = min(height, width)
        if smallest < 2**self.stages:
            raise ConfigError(
                f"images of {height} x {width} cannot be halved {self.stages} times: {smallest} < 2^{self.stages}.",
                where="recipe.model.stages",
                advice=f"Use at most {smallest.bit_length() - 1}.",
            )

    @model_validator(mode="after")
    def _groups_divide_the_width(self) -> Self:
        if self.width % self.groups:
            raise ValueError(f"width {self.width} is not a multiple of groups = {self.groups}")
        return self
