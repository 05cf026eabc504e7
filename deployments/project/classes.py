"""A network of your own for this table: `recipe: {name: recipes.network:Network}` in the pipeline file trains it.

Change what you like. The package is frozen into each run, so an edit here retrains, and an old run resumes on old code.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headway import Frozen, Losses, TabularShape


class Spec(Frozen):
    """The pipeline file's `recipe: {model: ...}`."""

    width: int = 64


class Network:
    spec_type, shape_type = Spec, TabularShape

    def __init__(self, spec: Spec, shape: TabularShape) -> None:
        self.spec, self.shape = spec, shape
        self.num_inputs = shape.num_numeric + len(shape.cardinalities)

    def build(self) -> nn.Module:
        width = self.spec.width
        return nn.Sequential(nn.Linear(self.num_inputs, width), nn.ReLU(), nn.Linear(width, self.shape.num_classes))

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        # Numbers are standardised. Categories are ids: give each an `nn.Embedding` if you have some.
        return torch.cat([batch[name].float() for name in ("numeric", "categorical") if name in batch], dim=1)

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        logits = model(self.inputs(batch))
        nats = nn.functional.cross_entropy(logits, batch["label"][:, 0], reduction="none")[:, None]
        return Losses(nats, torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # What evaluation adds up over the held-out rows: each row counts once.
        right = model(self.inputs(batch)).argmax(dim=1, keepdim=True) == batch["label"]
        return {"nats": self.losses(model, batch).nats, "correct": right.float()}

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        # Matrices that the optimizer `muon` may orthogonalise; all others get AdamW.
        return ()

    def example_input(self) -> Tensor:
        return torch.zeros(2, self.num_inputs)
