"""Fields of the tabular recipes, apart from the model: they are checked where torch is not imported."""

from __future__ import annotations

from pydantic import Field

from headway.data_contracts.store.documents import Frozen


class TabularModelSpec(Frozen):
    """The model's own fields; columns, categories and classes come with the data."""

    width: int = Field(default=64, gt=0, description="Width of the hidden layers.")
    depth: int = Field(default=2, gt=0, description="Number of residual blocks.")
    embedding_width: int = Field(default=8, gt=0, description="Width of each category's embedding.")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="Share of a block's features left out in training.")
