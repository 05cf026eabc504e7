"""Fields of the built-in recipes, apart from their models: they are checked where torch is not imported."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.training.config.parallel import ParallelSpec
from headway.training.config.shapes import TokenShape

GRADIENT_BOOSTING = "gradient-boosting"
"""The recipe whose trees are grown on the whole training split, one step an iteration."""
TENSOR, PIPELINE = "training.parallel.tensor", "training.parallel.pipeline"


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

    def mesh_problems(self, parallel: ParallelSpec, shape: TokenShape) -> Iterator[ConfigError]:
        """Why this model cannot be laid over a mesh, with the arithmetic of each; nothing where it can."""
        tensor, pipeline = parallel.tensor, parallel.pipeline
        if self.heads % tensor:
            yield ConfigError(
                f"{self.heads} heads do not divide by tensor {tensor}.",
                where=TENSOR,
                advice="Change recipe.model.heads, or the number of ranks that split a layer.",
            )
        if self.hidden_groups % tensor:
            yield ConfigError(
                f"hidden {self.hidden} in groups that {self.heads} heads allow makes {self.hidden_groups} groups, "
                f"which do not divide by tensor {tensor}.",
                where=TENSOR,
                advice=f"Make recipe.model.hidden a multiple of {self.heads}.",
            )
        sizes = {"context": (shape.context_tokens, "sequence_tokens"), "vocabulary": (shape.vocab_size, "vocab_size")}
        for what, (size, name) in sizes.items():
            if size % tensor:
                yield ConfigError(
                    f"{size} tokens of {what} do not divide by tensor {tensor}: {size} % {tensor} = {size % tensor}.",
                    where=TENSOR,
                    advice=f"Lower shards.encoder.{name} by {size % tensor}, or raise it by {tensor - size % tensor}.",
                )
        if self.depth < pipeline:
            yield ConfigError(
                f"{self.depth} blocks are fewer than {pipeline} pipeline stages.",
                where=PIPELINE,
                advice=f"Use at most {self.depth} stages.",
            )
        if self.tied_embeddings and pipeline > 1:
            yield ConfigError(
                f"a tied embedding would lie in the first and the last of {pipeline} stages.",
                where=PIPELINE,
                advice="Say recipe.model.tied_embeddings: false, or use one stage.",
            )


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


class TabularModelSpec(Frozen):
    """The model's own fields; columns, categories and classes come with the data."""

    width: int = Field(default=64, gt=0, description="Width of the hidden layers.")
    depth: int = Field(default=2, gt=0, description="Number of residual blocks.")
    embedding_width: int = Field(default=8, gt=0, description="Width of each category's embedding.")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="Share of a block's features left out in training.")
    frequencies: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Waves of learnt length through which each number is read besides, for thresholds and bumps that a "
        "straight line lacks; 0: none. 16 suits most tables.",
    )
    members: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Models that share the hidden layers; each weighs the inputs in its own way and has its own head. "
        "What they predict is averaged, and a step costs about as many times as much.",
    )


class GradientBoostingSpec(Frozen):
    """The trees' own fields; columns, categories and classes come with the data."""

    iterations: int = Field(
        default=200,
        gt=0,
        le=1000,
        description="Trees that are grown one after another, at most; of several classes one for each class. Each is a "
        "step, so `max_steps` may end it sooner.",
    )
    learning_rate: float = Field(default=0.1, gt=0, le=1, description="Share of each tree that is added.")
    leaves: int = Field(default=31, ge=2, le=1024, description="Leaves of a tree, at most.")
    depth: int = Field(
        default=16, ge=1, le=64, description="Splits from a tree's root to a leaf, at most: what a prediction costs."
    )
    min_rows_per_leaf: int = Field(default=20, ge=1, description="Training rows of a leaf, at least.")
    l2: float = Field(default=0.0, ge=0, description="Penalty of the squared values of leaves.")
    bins: int = Field(default=255, ge=2, le=255, description="Parts that a column of numbers is cut into, at most.")
    early_stopping: bool = Field(
        default=True,
        description="End where the loss of a part of the training rows, which no tree sees, has not fallen for "
        "`patience` iterations, and keep the trees up to its lowest.",
    )
    validation_fraction: float = Field(
        default=0.1,
        gt=0,
        le=0.5,
        description="That part: rows chosen by a hash of their inputs. Held-out rows are never among them.",
    )
    min_validation_rows: int = Field(
        default=500, ge=1, description="With fewer in that part none is kept apart, and all iterations are made."
    )
    patience: int = Field(default=20, gt=0, description="Iterations without a lower loss before it ends.")
