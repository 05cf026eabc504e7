"""A network of your own for this table: `recipe: {name: recipes.network:Network}` in the pipeline file trains it.

Change what you like. The package is frozen into each run, so an edit here retrains, and an old run resumes on old code.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headway import Frozen, Losses, TabularNumberShape


class Spec(Frozen):
    """The pipeline file's `recipe: {model: ...}`."""

    width: int = 64


class Predictor(nn.Module):
    """Rows (n, inputs) to numbers (n, 1), in the unit of the data; the mean before it has learnt anything."""

    def __init__(self, num_inputs: int, width: int, mean: float, deviation: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, 1))
        self.mean, self.deviation = mean, deviation

    def forward(self, rows: Tensor) -> Tensor:
        standardised: Tensor = self.layers(rows)
        return standardised * self.deviation + self.mean


class Network:
    spec_type, shape_type = Spec, TabularNumberShape

    def __init__(self, spec: Spec, shape: TabularNumberShape) -> None:
        self.spec, self.shape = spec, shape
        self.num_inputs = shape.num_numeric + len(shape.cardinalities)

    def build(self) -> nn.Module:
        return Predictor(self.num_inputs, self.spec.width, self.shape.mean, self.shape.deviation)

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        # Numbers are standardised. Categories are ids: give each an `nn.Embedding` if you have some.
        return torch.cat([batch[name].float() for name in ("numeric", "categorical") if name in batch], dim=1)

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        # The loss of a Gaussian, in nats: half the squared error of the standardised number.
        error = (model(self.inputs(batch)) - batch["label"]) / self.shape.deviation
        nats = error.square() / 2 + math.log(2 * math.pi) / 2
        return Losses(nats, torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # What evaluation adds up over the held-out rows: each row counts once.
        return {"squared_error": (model(self.inputs(batch)).double() - batch["label"].double()).square()}

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        # Matrices that the optimizer `muon` may orthogonalise; all others get AdamW.
        return ()

    def example_input(self) -> Tensor:
        return torch.zeros(2, self.num_inputs)
