"""A residual network over standardised numbers and embedded categories (after Gorishniy et al., 2021).

Layer normalisation, so that what is said of a record does not depend on its neighbours in the batch. Numbers may be
read through learnt waves, and several models may share their hidden layers; both are off unless the spec asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headway.training.config.recipe_specs import TabularModelSpec
from headway.training.config.shapes import GAUSSIAN_NATS, TabularNumberShape, TabularShape
from headway.training.recipes.classification import Classifier
from headway.training.recipes.protocol import Losses


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


WAVE_DEVIATION = 0.1
"""Of the first frequencies, in waves a deviation of the number."""
WAVE_FEATURES = 4
"""That each number's waves are summed up in."""
FARTHEST = 3.0
"""Deviations that a number comes close to and never reaches: one row must not be an outlier in every wave."""


class Waves(nn.Module):
    """Numbers (rows, n) to features (rows, n * `WAVE_FEATURES`) of cosines of learnt frequency and phase.

    Periodic embeddings (Gorishniy et al., 2022, section 3.3) of a few features a number, beside the number itself,
    which is clipped smoothly before (Holzmüller et al., 2024, section 3).
    """

    def __init__(self, num_numeric: int, frequencies: int) -> None:
        super().__init__()
        bound = frequencies**-0.5
        self.frequency = nn.Parameter(torch.randn(num_numeric, frequencies) * (2 * math.pi * WAVE_DEVIATION))
        self.phase = nn.Parameter((torch.rand(num_numeric, frequencies) * 2 - 1) * math.pi)
        self.weight = nn.Parameter((torch.rand(num_numeric, frequencies, WAVE_FEATURES) * 2 - 1) * bound)
        self.bias = nn.Parameter((torch.rand(num_numeric, WAVE_FEATURES) * 2 - 1) * bound)

    def forward(self, numbers: Tensor) -> Tensor:
        waves = torch.cos(numbers.unsqueeze(2) * self.frequency + self.phase)
        features = torch.einsum("rnf,nfd->rnd", waves, self.weight) + self.bias
        return features.flatten(1)


def clipped(numbers: Tensor) -> Tensor:
    """The numbers where they are small, and never beyond `FARTHEST`."""
    return numbers / torch.sqrt(1 + (numbers / FARTHEST).square())


class Heads(nn.Module):
    """The last layer of each member: (rows, members, width) to (rows, members, outputs). A new one says zero."""

    def __init__(self, members: int, width: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, width, num_outputs))
        self.bias = nn.Parameter(torch.zeros(members, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("rmw,mwo->rmo", x, self.weight) + self.bias


class TabularModel(nn.Module):
    """Records float32 (rows, n + m), numbers first, category ids after them, to (rows, outputs).

    One tensor is what registries and servers pass most easily; ids are exact in it, up to 2**24. With members it gives
    (rows, members, outputs) while it is trained, since each is to learn by its own loss, and what they agree on when it
    is asked (Gorishniy et al., 2024, TabM-mini).
    """

    def __init__(self, spec: TabularModelSpec, shape: TabularShape | TabularNumberShape, num_outputs: int) -> None:
        super().__init__()
        self.num_numeric = shape.num_numeric
        self.embeddings = nn.ModuleList(nn.Embedding(size, spec.embedding_width) for size in shape.cardinalities)
        self.waves = Waves(shape.num_numeric, spec.frequencies) if spec.frequencies and shape.num_numeric else None
        num_features = shape.num_numeric + spec.embedding_width * len(shape.cardinalities)
        num_features += WAVE_FEATURES * shape.num_numeric if self.waves is not None else 0
        # A sign for each input: members begin as unlike each other as their shared weights allow.
        self.scales = nn.Parameter(torch.randn(spec.members, num_features).sign()) if spec.members > 1 else None
        self.input = nn.Linear(num_features, spec.width)
        self.blocks = nn.Sequential(*(ResidualBlock(spec.width, spec.dropout) for _ in range(spec.depth)))
        self.norm = nn.LayerNorm(spec.width)
        if spec.members > 1:
            self.head: nn.Module = Heads(spec.members, spec.width, num_outputs)
        else:
            self.head = nn.Linear(spec.width, num_outputs)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, records: Tensor) -> Tensor:
        made = self.of_members(records)
        return made if self.training or self.scales is None else self.together(made)

    def of_members(self, records: Tensor) -> Tensor:
        """(rows, outputs), or (rows, members, outputs)."""
        numeric, ids = records[:, : self.num_numeric], records[:, self.num_numeric :].long()
        features = [embedding(ids[:, index]) for index, embedding in enumerate(self.embeddings)]
        if self.waves is not None:
            numeric = clipped(numeric)
            features.append(self.waves(numeric))
        x = torch.cat((numeric, *features), dim=1)
        if self.scales is not None:
            x = x.unsqueeze(1) * self.scales
        made: Tensor = self.head(torch.relu(self.norm(self.blocks(self.input(x)))))
        return made

    def together(self, made: Tensor) -> Tensor:
        """Of the members' logits those of the mean probability."""
        return torch.log_softmax(made.float(), dim=2).logsumexp(dim=1) - math.log(made.shape[1])


class NumberModel(TabularModel):
    """The same to a number in the unit of the data, (rows, 1) float32; a new one says the training split's mean."""

    def __init__(self, spec: TabularModelSpec, shape: TabularNumberShape) -> None:
        super().__init__(spec, shape, num_outputs=1)
        self._mean, self._deviation = shape.mean, shape.deviation

    def of_members(self, records: Tensor) -> Tensor:
        return super().of_members(records).float() * self._deviation + self._mean

    def together(self, made: Tensor) -> Tensor:
        return made.mean(dim=1)


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
        made = model(self.inputs(batch))
        # Members share a record's label, and a record costs what they cost on average.
        label = batch["label"] if made.ndim == 2 else batch["label"].unsqueeze(1)
        squares = ((made - label) / self._shape.deviation).square()
        nats = (squares if made.ndim == 2 else squares.mean(dim=1)) / 2 + GAUSSIAN_NATS
        return Losses(nats=nats, valid=torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`squared_error` of every example, in the square of the number's unit, (rows, 1) float64."""
        return {"squared_error": (model(self.inputs(batch)).double() - batch["label"].double()).square()}
