"""What classifiers have in common: the loss of one class an example, and whether the likeliest one was right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.training.recipes.protocol import Losses


class Classifier(ABC):
    """The losses and measures of a recipe whose model turns `inputs(batch)` into logits (rows, classes)."""

    @abstractmethod
    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        """What the model is called with."""

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        nats = _nats(model(self.inputs(batch)), batch["label"])
        return Losses(nats=nats, valid=torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`nats` and `correct` (0 or 1) of every example, (rows, 1) float32."""
        logits = model(self.inputs(batch))
        correct = logits.argmax(dim=1, keepdim=True) == batch["label"]
        return {"nats": _nats(logits, batch["label"]), "correct": correct.float()}


def _nats(logits: Tensor, label: Tensor) -> Tensor:
    """Cross entropy of each row, (rows, 1) float32, whatever precision the logits have; of an ensemble's logits (rows,
    members, classes) the members' mean."""
    if logits.ndim == 3:
        members = label.expand(-1, logits.shape[1])
        return F.cross_entropy(logits.float().transpose(1, 2), members, reduction="none").mean(dim=1, keepdim=True)
    return F.cross_entropy(logits.float(), label.squeeze(1), reduction="none").unsqueeze(1)
