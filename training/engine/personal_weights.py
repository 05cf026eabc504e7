"""Weights that each client has of its own, and that never travel: of all clients, whole on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class PersonalWeights:
    """Args:
    shared: what each client begins with, by the parameter's name.
    weights: what each client counts by in the mean.
    """

    def __init__(self, shared: Mapping[str, Tensor], weights: Sequence[float]) -> None:
        self._shared, self._weights = shared, weights
        self._tables = {name: value.new_zeros((len(weights), *value.shape)) for name, value in shared.items()}
        # As a tensor, for a checkpoint to keep.
        self._num_answers = torch.zeros(len(weights) if shared else 0)

    @torch.no_grad()
    def begin(self) -> None:
        """Before the first round."""
        for name, table in self._tables.items():
            table.copy_(self._shared[name].expand_as(table))
        self._num_answers.zero_()

    @torch.no_grad()
    def lay_into(self, weights: Mapping[str, Tensor], client: int) -> None:
        """Let a model have those of a client."""
        for name, table in self._tables.items():
            weights[name].copy_(table[client])

    def row(self, weights: Mapping[str, Tensor]) -> Tensor:
        """A model's, one after another, in float64 on the CPU, which holds every fp32 number."""
        parts = [weights[name].reshape(-1).double().cpu() for name in self._tables]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    @torch.no_grad()
    def keep(self, client: int, row: Tensor) -> None:
        """A client's from now on, as `row` gives them."""
        sizes = [table[0].numel() for table in self._tables.values()]
        for table, part in zip(self._tables.values(), torch.split(row, sizes), strict=True):
            table[client].copy_(part.view(table.shape[1:]))
        if self._tables:
            self._num_answers[client] += 1

    @torch.no_grad()
    def average_into(self, shared: Mapping[str, Tensor]) -> None:
        """The mean over clients that have answered, for a model that is nobody's. One has."""
        taking_part = self._num_answers.nonzero()[:, 0].tolist()
        total = math.fsum(self._weights[client] for client in taking_part)
        for name, table in self._tables.items():
            mean = torch.zeros_like(shared[name], dtype=torch.float64)
            for client in taking_part:
                mean.add_(table[client], alpha=self._weights[client] / total)
            shared[name].copy_(mean)

    def tensors(self) -> Mapping[str, Tensor]:
        """State by `<what>.<parameter>`, the tensors themselves; none where nothing is personal."""
        tables = {f"weights.{name}": table for name, table in self._tables.items()}
        return {**tables, "num_answers": self._num_answers} if tables else {}
