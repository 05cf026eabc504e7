"""Islands of a global batch that train apart for some steps: the same bits for any number of ranks.

An island is a part of every global batch with weights and moments of its own. It is the unit of exactness: its gradient
is its subtree's, and what depends on ranks is only where it lives. When islands meet, their movements since the last
meeting are summed in one tree, or as whole numbers, and an outer update moves the weights that all share. The model
outside of `use_weights_of` has those: they are evaluated, exported and saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from headway.data_contracts.store.errors import ConfigError
from headway.training.checkpoint.pieces import Piece
from headway.training.checkpoint.proof import use_training_mode
from headway.training.config.communication_spec import SyncSpec
from headway.training.config.name_patterns import matches, require_matches
from headway.training.config.training_spec import TrainingSpec
from headway.training.optimizers.groups import all_names
from headway.training.optimizers.outer import OuterUpdate
from headway.training.parallel.exact_replicas import ExactReplicas
from headway.training.parallel.gradients import GradientTree
from headway.training.parallel.movements import Fragment, Site, cut_evenly, table_of
from headway.training.parallel.strategy import Batch
from headway.training.ranks.communication import TreeExchange, tree_sum
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.tree_plan import LevelPlan, level_plans
from headway.training.recipes.protocol import Recipe


class ExactIslands(ExactReplicas):
    """Raises:
    ConfigError: besides those of replicas, the model has batch normalisation.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> None:
        super().__init__(recipe, spec, process_group)
        assert spec.sync is not None, "islands are configured"
        if self._statistics:
            raise ConfigError(
                "batch normalisation's running statistics move at every step, and islands meet every few.",
                where="training.sync",
                advice="Take layer or group normalisation, or sum gradients at every step.",
            )
        self._sync: SyncSpec = spec.sync
        self._site = Site.of(process_group, spec.sync.islands)
        travels = _travelling(self._trained, spec.sync, all_names(self.model))
        self._outer = OuterUpdate(travels, spec.sync.outer, num_islands=spec.sync.islands)
        self.shared = {name: value.data for name, value in self._trained.items()}
        self.personal = tuple(name for name in self._trained if name not in travels)
        """Weights whose movements do not travel."""
        # Until the first step says which parts of an island its ranks have.
        self._sums_apart = TreeExchange([self._site.within], [LevelPlan.in_any_order(self._site.num_ranks)])
        self._apart = GradientTree(
            self._trained,
            collectives=self._site.within,
            num_replicas=self._site.num_ranks,
            exchange=self._sums_apart,
            bucket_elements=spec.bucket_bytes // 4,
        )
        self._fragments = [
            Fragment(names, self._trained, spec, process_group, self._site, self.islands)
            for names in cut_evenly(travels, spec.sync.fragments)
        ]
        self._in_use: int | None = None
        self._shares_apart: list[int] = []
        self._settle()

    @property
    def islands(self) -> range:
        """Which ones are this rank's, by itself or with others."""
        if self._site.num_ranks > 1:
            return range(self._site.number, self._site.number + 1)
        return self.share.replicas(self._sync.islands)

    @property
    def _first_island(self) -> int:
        return self.islands.start

    def _island_bounds(self) -> tuple[int, ...]:
        """At which island each rank's begin, and at last how many there are; of sites, each site's."""
        sites = range(self._sync.islands + 1)
        return tuple(sites) if self._site.num_ranks > 1 else self.share.bounds(self._sync.islands)

    def _owners(self) -> list[int]:
        of_site = self._site.num_ranks
        return super()._owners() if of_site == 1 else [each * of_site for each in range(self._sync.islands)]

    def _settle(self) -> None:
        """Make room for this rank's islands, whose weights are the shared ones."""

        def as_shared() -> dict[str, Tensor]:
            return {name: table_of(value, len(self.islands)) for name, value in self.shared.items()}

        self._weights = as_shared()
        """Of each island, (own islands, *shape)."""
        # Where movements arrive at once, an island is where all are when they have.
        self._left = as_shared() if self._sync.delay_steps else {}
        """What islands' weights were when their movements left."""
        self._views = [
            {name: rows[place] for name, rows in self._weights.items()} for place in range(len(self.islands))
        ]
        for fragment in self._fragments:
            fragment.share_out(self.islands, self._island_bounds())

    def share_by(self, speeds: tuple[float, ...]) -> None:
        owners, islands = self._owners(), self.islands
        super().share_by(speeds)
        weights, left = (
            {name: self.move_rows(rows, islands, owners) for name, rows in table.items()}
            for table in (self._weights, self._left)
        )
        for fragment in self._fragments:
            fragment.move(self.islands, owners, self._owners())
        self._settle()
        for own, moved in ((self._weights, weights), (self._left, left)):
            for name, rows in own.items():
                rows.copy_(moved[name])

    def move_rows(self, rows: Tensor, before: range, owners: Sequence[int]) -> Tensor:
        """Rows (own islands, ...) as they are shared out now; all ranks call it.

        Args:
            before: the islands that they were of.
            owners: the rank that had each island.
        """
        return self._collectives.move_rows(rows, before, self.islands, owners, self._owners())

    @property
    def owners(self) -> Sequence[int]:
        """The rank that has each island."""
        return self._owners()

    def use_weights_of(self, place: int | None) -> None:
        """Let the model's parameters be those of one of this rank's islands; None: those that all share."""
        if place == self._in_use:
            return
        if self._in_use is not None:
            # Updates are counted by the parameter, and a checkpoint looks at the island's own tensors.
            increment_version([*self._views[self._in_use].values()])
        values = self.shared if place is None else self._views[place]
        for name, parameter in self._trained.items():
            parameter.data = values[name]
        self._in_use = place

    @torch.no_grad()
    def begin_round(self, *, is_first: bool) -> None:
        """Every island starts from the shared weights; where they keep weights apart, in the first round alone."""
        use_training_mode(self.model)
        self._statistics.begin_step()
        if is_first or not self._sync.keeps_weights_apart:
            for views in self._views:
                torch._foreach_copy_([*views.values()], [self.shared[name] for name in views])

    def backward_apart(self, step: int, place: int, micro_batches: Sequence[Batch], num_replicas: int) -> Tensor:
        """Gradients of one of this rank's islands, which the model's parameters are, summed over its replicas.

        Returns its nats and number of tokens, float64 (2,), on the CPU.
        """
        of_island = num_replicas // self._sync.islands
        first = of_island * self.islands[place]
        # Of an island that ranks share, by where each begins in it.
        shares = [0, of_island]
        if self._site.num_ranks > 1:
            ends = self.share.bounds(num_replicas)[self._site.first_rank :][: self._site.num_ranks + 1]
            shares = [end - first for end in ends]
        begin = first + shares[self._site.within.rank]
        replicas = range(begin, begin + len(micro_batches))
        if shares != self._shares_apart:
            self._shares_apart = shares
            height = of_island.bit_length() - 1
            self._sums_apart.follow(level_plans([self._site.num_ranks], self._site.within.rank, shares, height=height))
        self._apart.expect(replicas)
        rows = []
        for replica, batch in zip(replicas, micro_batches, strict=True):
            self._apart.begin_replica()
            rows.append(self._run_replica(step, replica, batch))
            self._apart.end_replica()
        self._total = self._apart.total()
        counts = [end - start for start, end in pairwise(shares)]
        return tree_sum(self._site.within.gather(torch.stack(rows), counts)).cpu()

    def gather_islands(self, rows: Tensor) -> Tensor:
        """Rows (own islands, n) of all ranks, on the CPU; of an island that ranks share, each one's."""
        counts = [end - first for first, end in pairwise(self._island_bounds())]
        counts = counts if self._site.num_ranks == 1 else []
        return self._collectives.gather(rows.to(self._process_group.device), counts).cpu()

    @property
    def ranks_of_island(self) -> int:
        """How many share each; 1 where ranks have whole ones."""
        return self._site.num_ranks

    def weights_of(self, place: int) -> Mapping[str, Tensor]:
        """Of one of this rank's islands; the tensors themselves."""
        return self._views[place]

    @torch.no_grad()
    def pull(self, place: int, strength: float) -> None:
        """Add to an island's gradient that of half the squared distance to the weights that travel and all share."""
        own = {name: value for name, value in self._views[place].items() if name not in self.personal}
        gradients = [value.grad for name, value in self._trained.items() if name in own and value.grad is not None]
        assert len(gradients) == len(own), "every gradient is there"
        apart = torch._foreach_sub([*own.values()], [self.shared[name] for name in own])
        torch._foreach_add_(gradients, apart, alpha=strength)

    @torch.no_grad()
    def distances(self) -> Tensor:
        """How far each of this rank's islands has gone, in weights that travel; float64 (own islands,), on the CPU."""
        found = []
        names = [name for name in self._trained if name not in self.personal]
        for views in self._views:
            apart = torch._foreach_sub([views[name] for name in names], [self.shared[name] for name in names])
            found.append(torch.stack(torch._foreach_norm(apart)).double().square().sum().sqrt())
        return torch.stack(found).cpu()

    @torch.no_grad()
    def send(self, fragments: range, *, again: bool = False, factors: Sequence[float] | None = None) -> None:
        """Let the movements of some fragments travel. The model's parameters are those that all share.

        Args:
            again: what had left when a checkpoint was saved, and not arrived, or was recalled.
            factors: what the movement of each of this rank's islands is multiplied by.
        """
        for number in fragments:
            fragment = self._fragments[number]
            for name in fragment.names if self._left and not again else ():
                self._left[name].copy_(self._weights[name])
            fragment.start(self.shared, self._left or self._weights, factors)

    def recall(self, fragments: range) -> None:
        """Take back that these have left."""
        for number in fragments:
            self._fragments[number].finish()
            self._fragments[number].discard()

    @torch.no_grad()
    def receive(self, fragments: range) -> None:
        """Move the shared weights by the movements of these fragments, and the islands to where they are then."""
        for number in fragments:
            fragment = self._fragments[number]
            fragment.finish()
            self._outer.update(fragment.names)
            if not self._sync.keeps_weights_apart:
                continue
            for name in fragment.names:
                shared, rows = self.shared[name], self._weights[name]
                # What an island has moved since it left is its own, and stays.
                if self._left:
                    rows.sub_(self._left[name]).add_(shared)
                else:
                    rows.copy_(shared.expand_as(rows))

    def outer_state(self) -> Mapping[str, Tensor]:
        """Of the outer update, by `<moment>.<parameter>`; whole on every rank."""
        return self._outer.tensors()

    def exchange_state(self) -> dict[str, Piece]:
        found = super().exchange_state()
        for fragment in self._fragments:
            if fragment.integers is not None:
                found |= self._residuals(fragment.integers, fragment.tree)
        tables = {"island": self._weights} if self._sync.keeps_weights_apart else {}
        tables |= {"left": self._left} if self._left else {}
        return found | {
            f"{what}.{name}": self.island_piece(rows) for what, table in tables.items() for name, rows in table.items()
        }


def _travelling(
    trained: Mapping[str, nn.Parameter], sync: SyncSpec, names: Mapping[str, tuple[str, ...]]
) -> dict[str, nn.Parameter]:
    """
    Args:
        names: by the first name of a weight, all of its names, by any of which a pattern may mean it.

    Raises:
        ConfigError: a pattern of personal weights matches none, or they match all.
    """
    personal = () if sync.federated is None else sync.federated.personal
    where = "training.sync.federated.personal"
    require_matches(personal, [each for name in trained for each in names[name]], where=where)
    found = {name: value for name, value in trained.items() if not any(matches(each, personal) for each in names[name])}
    if not found:
        raise ConfigError(
            "every weight of the model is personal, and clients have nothing to share.",
            where=where,
            advice="Name the weights of a part, such as `head.*`.",
        )
    return found
