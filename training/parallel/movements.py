"""How far islands have gone, on its way between them: fragment by fragment, and from site to site.

A movement is what backward passes would call a gradient, of an island in place of a replica. So it travels as gradients
do, by the same tree or as whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.training_spec import TrainingSpec
from headway.training.parallel.gradients import GradientTree, buffer_length
from headway.training.ranks.communication import Collectives, TreeExchange, gang_levels
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.integer_exchange import IntegerExchange
from headway.training.ranks.tree_plan import LevelPlan, level_plans

ROW_BYTES = 512
"""What the rows of islands' weights begin at multiples of, as tensors of their own do on any device."""


class Site(NamedTuple):
    """The ranks that share an island, next to each other, and where they have a fast link, at one place."""

    number: int
    """Which island it is, of several ranks."""
    within: Collectives
    """Of its ranks."""
    across: Collectives
    """Of one rank of each site, which has the same part of what travels."""

    @classmethod
    def of(cls, process_group: ProcessGroup, islands: int) -> Site:
        rank, of_island = process_group.rank, process_group.world_size // islands
        if of_island < 2:
            return cls(0, Collectives(process_group, num_ranks=1), Collectives(process_group))
        number, place = divmod(rank, of_island)
        within = process_group.group_of(range(number * of_island, (number + 1) * of_island))
        if islands == 1:
            across = Collectives(process_group, num_ranks=1)
        else:
            of_parts = process_group.group_of(range(place, process_group.world_size, of_island))
            across = Collectives(process_group, of_parts, place="islands")
        return cls(number, Collectives(process_group, within, place="island"), across)

    @property
    def num_ranks(self) -> int:
        return self.within.num_ranks

    @property
    def first_rank(self) -> int:
        return self.number * self.num_ranks


class Fragment:
    """Weights whose movements travel together, in buckets."""

    def __init__(
        self,
        names: Sequence[str],
        trained: Mapping[str, nn.Parameter],
        spec: TrainingSpec,
        process_group: ProcessGroup,
        site: Site,
        islands: range,
    ) -> None:
        assert spec.sync is not None
        self.names = names
        self._rank, self._num_islands, self._site = process_group.rank, spec.sync.islands, site
        own = {name: trained[name] for name in names}
        is_shared = site.num_ranks > 1
        levels = [site.within, site.across] if is_shared else gang_levels(process_group)
        self._level_sizes = [level.num_ranks for level in levels]
        plans = [LevelPlan.in_any_order(size) for size in self._level_sizes]
        # Ranks of a site have moved alike: each sends its part of that to the other sites.
        self._copies = [LevelPlan.of_copies(site.num_ranks)] if is_shared else []
        self._sums = TreeExchange(levels, [*self._copies, *plans[len(self._copies) :]])
        integers = spec.sync.integers
        together = 1 if integers is None else integers.elements_together(process_group.world_size)
        self.integers = (
            None
            if integers is None
            else IntegerExchange(
                integers,
                site.across,
                self._sums,
                islands=islands,
                length=buffer_length(own.values(), process_group.world_size, together),
                device=process_group.device,
            )
        )
        self.tree = GradientTree(
            own,
            collectives=Collectives(process_group),
            num_replicas=process_group.world_size,
            exchange=self.integers or self._sums,
            bucket_elements=spec.bucket_bytes // 4,
            block_elements=together,
        )

    def share_out(self, islands: range, bounds: Sequence[int]) -> None:
        """Sum over the stretches of islands that ranks have."""
        self._islands = islands
        if self.integers is not None:
            self.tree.expect(islands, island=1)
            return
        self.tree.expect(islands)
        height = self._num_islands.bit_length() - 1
        sizes, rank = self._level_sizes, self._rank
        if self._copies:
            sizes, rank = sizes[1:], self._site.number
        self._sums.follow([*self._copies, *level_plans(sizes, rank, bounds, height=height)])

    def move(self, islands: range, owners: Sequence[int], new_owners: Sequence[int]) -> None:
        """Let what whole numbers keep of an island go with it; all ranks call it."""
        if self.integers is not None:
            self.integers.move(islands, owners, new_owners)

    def start(
        self, shared: Mapping[str, Tensor], islands: Mapping[str, Tensor], factors: Sequence[float] | None = None
    ) -> None:
        """Send how far each island has gone from the shared weights, of tables (own islands, *shape).

        Args:
            factors: what each one's movement is multiplied by; with 0 it counts for nothing, whatever it is.
        """
        for place in range(len(self._islands)):
            factor = 1.0 if factors is None else factors[place]
            self.tree.begin_replica()
            # As backward reaches them, so that buckets leave in their order.
            for name in reversed(self.names):
                moved = shared[name] - islands[name][place] if factor else torch.zeros_like(shared[name])
                self.tree.add(name, moved if factor in (0.0, 1.0) else moved.mul_(factor))
            self.tree.end_replica()

    def finish(self) -> None:
        """Return when each parameter's `grad` is the sum of all islands' movements."""
        self.tree.total()

    def discard(self) -> None:
        """Take back what whole numbers left for the next movements; behind `finish`."""
        if self.integers is not None:
            self.integers.discard()


def table_of(value: Tensor, num_rows: int) -> Tensor:
    """Rows (num_rows, *shape), each a copy of a tensor.

    Each is as well aligned as a tensor by itself. Products of few rows are rounded by that, and which row of a rank's
    table an island has depends on the number of ranks.
    """
    align = ROW_BYTES // value.element_size()
    rows = value.new_empty(num_rows, -(-value.numel() // align) * align)[:, : value.numel()]
    return rows.view(num_rows, *value.shape).copy_(value)


def cut_evenly(parameters: Mapping[str, Tensor], num_fragments: int) -> list[list[str]]:
    """Names in their order, in so many parts that are about as large as each other.

    Raises:
        ConfigError: there are fewer of them.
    """
    if len(parameters) < num_fragments:
        raise ConfigError(
            f"{num_fragments} fragments of a model that trains {len(parameters)} tensors.",
            where="training.sync.fragments",
            advice=f"Say {len(parameters)} or fewer.",
        )
    parts = list[list[str]]()
    names, rest = list(parameters), sum(value.numel() for value in parameters.values())
    for left in range(num_fragments, 0, -1):
        part, size = list[str](), 0
        # One for each part that follows stays.
        while names and len(names) >= left and (not part or size + parameters[names[0]].numel() / 2 <= rest / left):
            size += parameters[names[0]].numel()
            part.append(names.pop(0))
        if left == 1:
            part, names = [*part, *names], []
        parts.append(part)
        rest -= size
    return parts
