"""Federated rounds: islands are clients, each with rows of its own, drawn anew for every round.

A client begins a round from the shared weights, without moments, and answers with its movement. What counts of the
answers is decided by figures that all ranks have, so that no bit depends on who comes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.data_contracts.store.errors import TrainingFailed
from headway.training.checkpoint.pieces import State
from headway.training.config.communication_spec import FederatedSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.order.client_order import ClientRounds
from headway.training.engine.island_learner import IslandLearner
from headway.training.engine.personal_weights import PersonalWeights
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Recipe

MAX_VOID_ROUNDS = 10
"""In a row; then a run ends, since nothing says that it will ever move."""
VOID_ROUNDS = "void_rounds"


class FederatedLearner(IslandLearner):
    """Raises:
    ConfigError: the model cannot be trained as the configuration asks.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup, rounds: ClientRounds) -> None:
        super().__init__(recipe, spec, process_group)
        assert spec.federated is not None, "islands are clients"
        self._federated: FederatedSpec = spec.federated
        self._rounds, self._first_step, self._void_rounds = rounds, 0, 0
        self._refused_before = set[int]()
        own = {name: self._islands.shared[name] for name in self._islands.personal}
        self._personal = PersonalWeights(own, self._client_weights())

    def _client_weights(self) -> Sequence[float]:
        """What each client counts by."""
        num_rows = self._rounds.clients.num_rows
        return [float(count) for count in num_rows] if self._federated.weight_by == "rows" else [1.0] * len(num_rows)

    def begin_round(self, step: int) -> None:
        super().begin_round(step)
        if step == 0:
            self._personal.begin()
        self._first_step, self._number = step, self._rounds.round_of(step)
        self._drawn = self._rounds.drawn(self._number).tolist()
        # A client comes without a history: of another's moments it could make nothing.
        for rows in self._moments.values():
            rows.zero_()
        for place, island in enumerate(self._islands.islands):
            self._personal.lay_into(self._islands.weights_of(place), self._drawn[island])

    def _num_updates(self, step: int) -> int:
        return step - self._first_step + 1

    def _add_penalty(self, place: int, tokens: int) -> None:
        if self._federated.proximal:
            self._islands.pull(place, self._federated.proximal * tokens)

    def _of_round(self) -> Tensor:
        return torch.cat((self._islands.distances()[:, None], self._own_personal()), dim=1)

    def _own_personal(self) -> Tensor:
        rows = [self._personal.row(self._islands.weights_of(place)) for place in range(len(self._islands.islands))]
        return torch.stack(rows)

    def _counted(self, steps: Tensor, of_round: Tensor) -> Tensor:
        is_finite = steps.isfinite().all(dim=1) & of_round.isfinite().all(dim=1)
        is_lost = torch.from_numpy(self._rounds.lost(self._number))
        self._distances, self._answers = of_round[:, 0].tolist(), of_round[:, 1:]
        self._refused = [client for client, fine in zip(self._drawn, is_finite.tolist(), strict=True) if not fine]
        self._lost = [client for client, gone in zip(self._drawn, is_lost.tolist(), strict=True) if gone]
        self._is_answer = (is_finite & ~is_lost).tolist()
        # What lost ones trained on is known, for nothing was really lost. If none is finite the guard has to see it.
        return is_finite if is_finite.any() else torch.ones_like(is_finite)

    def move_together(self, done: int) -> None:
        """Behind `meet`: move the shared weights by the mean movement of those that answered, if they are enough.

        Raises:
            TrainingFailed: so many rounds in a row were void.
        """
        answered = [island for island, fine in enumerate(self._is_answer) if fine]
        self._void_rounds = 0 if len(answered) >= self._federated.quorum else self._void_rounds + 1
        if self._void_rounds >= MAX_VOID_ROUNDS:
            raise TrainingFailed(
                f"{self._void_rounds} rounds in a row had fewer answers than the quorum of {self._federated.quorum}.",
                where=f"round {self._number + 1}",
                advice="Draw more clients (sync.islands), or lower sync.federated.quorum.",
            )
        if self._void_rounds:
            return
        weights = self._client_weights()
        total = math.fsum(weights[self._drawn[island]] for island in answered)
        # Of all islands their number is the mean's divisor: so many times its share of those that answered.
        factors = [
            self._sync.islands * weights[client] / total if fine else 0.0
            for client, fine in zip(self._drawn, self._is_answer, strict=True)
        ]
        everything = range(1)
        self._islands.send(everything, factors=[factors[island] for island in self._islands.islands])
        self._islands.receive(everything)
        for island in answered:
            self._personal.keep(self._drawn[island], self._answers[island])
        self._personal.average_into(self._islands.shared)

    def round_fields(self) -> Mapping[str, Any]:
        """Of the round that ended, for the ledger; once a round."""
        names, num_rows = self._rounds.clients.names, self._rounds.clients.num_rows
        answered = [client for client, fine in zip(self._drawn, self._is_answer, strict=True) if fine]
        # One that is refused in each of its rounds is news once.
        fresh = [names[client] for client in self._refused if client not in self._refused_before]
        self._refused_before.update(self._refused)
        return {
            "round": self._number + 1,
            "clients": [names[client] for client in self._drawn],
            "num_rows": [num_rows[client] for client in self._drawn],
            "distances": [distance if math.isfinite(distance) else None for distance in self._distances],
            "answered": [names[client] for client in answered],
            "lost": [names[client] for client in self._lost],
            "refused": [names[client] for client in self._refused],
            "is_void": self._void_rounds > 0,
            "what": f"the answer of {' and '.join(fresh)} is not finite and counts for nothing." if fresh else "",
        }

    def moments(self) -> State:
        # Clients bring none into a round, and checkpoints fall between two.
        others = {name: value for name, value in super().moments().items() if not self._is_of_island(name)}
        return {**others, **{f"clients.{name}": value for name, value in self._personal.tensors().items()}}

    def _is_of_island(self, name: str) -> bool:
        return name.partition(".")[2] in self._moments

    def scalars(self) -> dict[str, float]:
        return {**super().scalars(), VOID_ROUNDS: self._void_rounds}

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float | int | str]) -> None:
        super().load(tensors, scalars)
        self._void_rounds = int(scalars[VOID_ROUNDS])
