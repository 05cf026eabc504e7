"""Federated rounds: which clients are drawn for each, and which of their rows a step trains on.

A pure function of the rows of clients, the seed and the round. A client is a group of the shards, whose rows lie one
after another. It begins each round with a permutation of its own rows, and goes through them as often as the round
takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.communication_spec import SyncSpec
from headway.training.data.order.exact_order import ExactOrder, check_positions
from headway.training.data.order.window_order import permutation
from headway.training.data.splitmix import MASK, hash_text, mix, splitmix64

LOST = hash_text("lost answers")


class Clients(NamedTuple):
    names: tuple[str, ...]
    num_rows: tuple[int, ...]
    """Of each, in the training split; none is 0."""

    @classmethod
    def of(cls, group_rows: Mapping[str, int], sync: SyncSpec) -> Clients:
        """
        Args:
            group_rows: of each group of the shards, in the training split.

        Raises:
            ConfigError: there are fewer than a round draws.
        """
        found = {name: num_rows for name, num_rows in group_rows.items() if num_rows}
        if len(found) < sync.islands:
            raise ConfigError(
                f"{sync.islands} clients are drawn for each round, and there are {len(found)}: a client is a group of "
                "the shards that has training rows.",
                where="training.sync.islands",
                advice="Say fewer, or make more groups: `shards.group_by: file` or `folder`, or a higher num_groups.",
            )
        return cls(tuple(found), tuple(found.values()))

    @classmethod
    def alike(cls, count: int) -> Clients:
        """Of a learner that is only tried out, on rows of nobody."""
        return cls(tuple(map(str, range(count))), (1,) * count)


class ClientRounds:
    """Whom each round draws, without putting anyone back, and whose answers get lost.

    Args:
        seed: of all that is drawn.
    """

    def __init__(self, clients: Clients, sync: SyncSpec, *, seed: int) -> None:
        assert sync.federated is not None, "islands are clients"
        self.clients, self.num_drawn, self.every_steps = clients, sync.islands, sync.every_steps
        self._seed, self._lost_fraction = seed, sync.federated.lost_fraction

    def drawn(self, number: int) -> NDArray[np.int64]:
        """Clients of a round, counted from 0, one for each island."""
        return permutation(len(self.clients.names), mix(self._seed, number))[: self.num_drawn]

    def lost(self, number: int) -> NDArray[np.bool_]:
        """Whether each one's answer gets lost."""
        states = self.drawn(number).astype(np.uint64) ^ np.uint64(mix(self._seed, LOST, number) & MASK)
        # The upper 53 bits, as a number from 0 to 1.
        return (splitmix64(states) >> np.uint64(11)) * 2.0**-53 < self._lost_fraction

    def round_of(self, step: int) -> int:
        """The round, counted from 0, that a step is in, counted likewise."""
        return step // self.every_steps


class ClientOrder:
    """Every batch is cut into as many equal parts as a round draws clients; each part has rows of its client alone.

    Args:
        batch_rows: of a step's global batch.
    """

    def __init__(self, rounds: ClientRounds, *, batch_rows: int, seed: int) -> None:
        self._rounds, self._batch_rows, self._seed = rounds, batch_rows, seed
        self._part_rows = batch_rows // rounds.num_drawn
        self._num_rows = np.array(rounds.clients.num_rows, dtype=np.int64)
        self._first_rows = np.cumsum(self._num_rows) - self._num_rows

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """As `headway.training.data.order.exact_order.SampleOrder`."""
        check_positions(positions)
        steps, places = np.divmod(positions, self._batch_rows)
        parts, places = np.divmod(places, self._part_rows)
        numbers, in_round = np.divmod(steps, self._rounds.every_steps)
        # Of one client and round they ascend as positions do.
        own = in_round * self._part_rows + places
        found = np.empty(positions.size, dtype=np.int64)
        for number in np.unique(numbers).tolist():
            drawn = self._rounds.drawn(number)
            is_of_round = numbers == number
            for part in np.unique(parts[is_of_round]).tolist():
                client = int(drawn[part])
                chosen = np.flatnonzero(is_of_round & (parts == part))
                order = ExactOrder(int(self._num_rows[client]), seed=mix(self._seed, number, client))
                found[chosen] = order.rows(own[chosen]) + self._first_rows[client]
        return found
