"""A residual network over standardised numbers and embedded categories (after Gorishniy et al., 2021).

Layer normalisation, so that what is said of a record does not depend on its neighbours in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headway.training.config.recipe_specs import TabularModelSpec
from headway.training.config.shapes import TabularNumberShape, TabularShape
from headway.training.recipes.classification import Classifier
from headway.training.recipes.protocol import Losses

GAUSSIAN_NATS = math.log(2 * math.pi) / 2
"""What a unit Gaussian charges for its own mean."""


class ResidualBlock(nn.Module):
    """Starts as the identity: its last layer is zero."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(2 * width, width)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.output(self.dropout(torch.relu(self.hidden(self.norm(x)))))
        return x + added


class TabularModel(nn.Module):
    """Records float32 (rows, n + m), numbers first, category ids after them, to (rows, outputs).

    One tensor is what registries and servers pass most easily; ids are exact in it, up to 2**24.
    """

    def __init__(self, spec: TabularModelSpec, shape: TabularShape | TabularNumberShape, num_outputs: int) -> None:
        super().__init__()
        self.num_numeric = shape.num_numeric
        self.embeddings = nn.ModuleList(nn.Embedding(size, spec.embedding_width) for size in shape.cardinalities)
        num_features = shape.num_numeric + spec.embedding_width * len(shape.cardinalities)
        self.input = nn.Linear(num_features, spec.width)
        self.blocks = nn.Sequential(*(ResidualBlock(spec.width, spec.dropout) for _ in range(spec.depth)))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, num_outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, records: Tensor) -> Tensor:
        numeric, ids = records[:, : self.num_numeric], records[:, self.num_numeric :].long()
        embedded = [embedding(ids[:, index]) for index, embedding in enumerate(self.embeddings)]
        x = self.input(torch.cat((numeric, *embedded), dim=1))
        made: Tensor = self.head(torch.relu(self.norm(self.blocks(x))))
        return made


class NumberModel(TabularModel):
    """The same to a number in the unit of the data, (rows, 1) float32; a new one says the training split's mean."""

    def __init__(self, spec: TabularModelSpec, shape: TabularNumberShape) -> None:
        super().__init__(spec, shape, num_outputs=1)
        self._mean, self._deviation = shape.mean, shape.deviation

    def forward(self, records: Tensor) -> Tensor:
        return super().forward(records).float() * self._deviation + self._mean


class _Records:
    """What the tabular recipes have in common."""

    spec_type = TabularModelSpec
    _shape: TabularShape | TabularNumberShape

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Columns of which the data have none are not in the batch."""
        return torch.cat([batch[name].float() for name in ("numeric", "categorical") if name in batch], dim=1)

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        """The blocks' matrices; input, embeddings and head are not between hidden layers."""
        return tuple(name for name, value in model.named_parameters() if name.startswith("blocks.") and value.ndim == 2)

    def example_input(self) -> Tensor:
        return torch.zeros((2, self._shape.num_numeric + len(self._shape.cardinalities)))


class TabularClassifier(_Records, Classifier):
    """Recipe of a classifier of records."""

    shape_type = TabularShape
    _shape: TabularShape

    def __init__(self, spec: TabularModelSpec, shape: TabularShape) -> None:
        self._spec, self._shape = spec, shape

    def build(self) -> nn.Module:
        return TabularModel(self._spec, self._shape, self._shape.num_classes)


class TabularRegressor(_Records):
    """Recipe of a model that predicts a number: the mean of a Gaussian of the deviation that the number has.

    So the loss, in nats, is that of a unit Gaussian over the number standardised by the training split.
    """

    shape_type = TabularNumberShape
    _shape: TabularNumberShape

    def __init__(self, spec: TabularModelSpec, shape: TabularNumberShape) -> None:
        self._spec, self._shape = spec, shape

    def build(self) -> nn.Module:
        return NumberModel(self._spec, self._shape)

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        standardised = (model(self.inputs(batch)) - batch["label"]) / self._shape.deviation
        nats = standardised.square() / 2 + GAUSSIAN_NATS
        return Losses(nats=nats, valid=torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`squared_error` of every example, in the square of the number's unit, (rows, 1) float64."""
        return {"squared_error": (model(self.inputs(batch)).double() - batch["label"].double()).square()}
