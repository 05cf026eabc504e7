"""A learner whose global batch is cut into islands, which train apart for a round of steps and then meet."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from headway.training.checkpoint.pieces import State
from headway.training.config.communication_spec import SyncSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.learner import Learner, Sums
from headway.training.optimizers.scheduled import ScheduledOptimizer
from headway.training.parallel.exact_islands import ExactIslands
from headway.training.parallel.gradients import clip_factor
from headway.training.parallel.strategy import Batch
from headway.training.ranks.communication import tree_sum
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Recipe

STEP_COLUMNS = 3
"""Of each step and island: nats, tokens, the squared norm of the gradient."""


class ApartStep(NamedTuple):
    """What came of a step that islands took apart, the same on every rank."""

    sums: Sums
    grad_norm: float
    """The root mean square over islands, of the gradient of each one's mean loss a token, before clipping."""


class IslandLearner(Learner):
    """Raises:
    ConfigError: the model cannot be trained as the configuration asks.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> None:
        super().__init__(recipe, spec, process_group)
        assert spec.sync is not None, "islands are configured"
        self._sync: SyncSpec = spec.sync
        self._recipe = recipe
        self._islands = cast(ExactIslands, self._strategy)
        self._round: list[Tensor] = []
        """Of each step, a row for each of this rank's islands."""
        self._on_its_way: range = range(0)
        self._make_optimizers()

    def _make_optimizers(self) -> None:
        """One for each of this rank's islands, whose moments are rows of one table (own islands, *shape)."""
        num_islands = len(self._islands.islands)
        self._optimizers = [
            self._optimizer,
            *(ScheduledOptimizer(self._strategy, self._recipe, self._spec) for _ in range(num_islands - 1)),
        ]
        self._moments = {
            name: torch.zeros((num_islands, *value.shape), dtype=value.dtype, device=value.device)
            for name, value in self._optimizer.tensors().items()
        }
        for place, optimizer in enumerate(self._optimizers):
            optimizer.keep_in({name: rows[place] for name, rows in self._moments.items()})

    def is_apart(self, step: int) -> bool:
        """Whether islands train apart in a step, counted from 0; else it is `backward`, `exchange` and `update`."""
        return self._sync.is_apart(step)

    def share_by(self, speeds: Sequence[float]) -> None:
        # Sent once more when the next round begins, by whoever has these islands then.
        self._islands.recall(self._on_its_way)
        self._on_its_way = range(0)
        islands, owners = self._islands.islands, self._islands.owners
        super().share_by(speeds)
        moved = {name: self._islands.move_rows(rows, islands, owners) for name, rows in self._moments.items()}
        self._make_optimizers()
        for name, rows in self._moments.items():
            rows.copy_(moved[name])

    def update(self, step: int, sums: Sums, gradient_norm: float, *, lr_factor: float | None = None) -> float:
        lr = super().update(step, sums, gradient_norm, lr_factor=lr_factor)
        # Of one gradient all islands have the same moments.
        for rows in self._moments.values():
            rows[1:].copy_(rows[:1].expand_as(rows[1:]))
        return lr

    def round_end(self, step: int, is_due: Callable[[int], bool]) -> int:
        """How many steps are done when ranks meet next, of which so many are.

        Args:
            is_due: whether so many steps are followed by a validation.
        """
        return self._sync.round_end(step, self._spec.max_steps, is_due)

    def begin_round(self, step: int) -> None:
        """Between two rounds; nobody reads the islands' state any more."""
        self._strategy.clock.take_s()  # evaluations since the last step are none of its own
        self._round, self._replicas_s = [], list[float]()
        self._islands.begin_round(is_first=step == self._sync.start_after_steps)
        on_its_way = self._sync.on_their_way(step, self._spec.max_steps)
        if on_its_way != self._on_its_way:
            # A checkpoint was taken up that was saved in between, or islands have moved to other ranks.
            self._islands.send(on_its_way, again=True)
            self._on_its_way = on_its_way

    def train_apart(self, step: int, micro_batches: Sequence[Batch], num_replicas: int) -> float:
        """One step of each of this rank's islands. Returns the learning rate."""
        spec, lr, rows = self._spec, 0.0, []
        of_island = num_replicas // self._sync.islands
        batch_rows = num_replicas * spec.micro_batch_sequences
        started_s, stood_still_s = time.perf_counter(), self.traffic.stood_still_s
        if self._round:
            self._strategy.clock.begin_step()
        for place, optimizer in enumerate(self._optimizers):
            self._islands.use_weights_of(place)
            own = micro_batches[place * of_island : (place + 1) * of_island]
            sums = self._islands.backward_apart(step, place, own, num_replicas)
            tokens = max(1, int(sums[1]))
            self._add_penalty(place, tokens)
            norm = self._strategy.gradient_norm() / tokens
            self._strategy.scale_gradients(clip_factor(norm, spec.optimizer.gradient_clip) / tokens)
            lr = optimizer.step(step, num_updates=self._num_updates(step), batch_rows=batch_rows)
            rows.append(torch.cat((sums, sums.new_tensor([norm**2]))))
        self._round.append(torch.stack(rows))
        waited_s = self.traffic.stood_still_s - stood_still_s
        self._replicas_s.append((time.perf_counter() - started_s - waited_s) / len(micro_batches))
        if self._on_its_way and not self._sync.on_their_way(step + 1, spec.max_steps):
            self._islands.use_weights_of(None)
            self._islands.receive(self._on_its_way)
            self._on_its_way = range(0)
        return lr

    def meet(self, *, stop: bool, save: bool) -> list[ApartStep]:
        """Gather what the steps of a round came to, in one exchange; the shared weights have not moved yet.

        What any rank wishes is everybody's wish. The last step has the wishes, and what one replica took each rank.
        """
        self._islands.use_weights_of(None)
        wishes = torch.tensor([[stop, save, statistics.fmean(self._replicas_s)]], dtype=torch.float64)
        of_round = self._of_round()
        beside = (of_round, wishes.expand(len(of_round), -1))
        rows = self._islands.gather_islands(torch.cat((*self._round, *beside), dim=1))
        stop, save = (rows[:, -3:-1] > 0).any(dim=0).tolist()
        of_rank = range(len(rows)) if self._islands.ranks_of_island > 1 else self.share.bounds(self._sync.islands)[:-1]
        replica_s = tuple(rows[list(of_rank), -1].tolist()) if self.times_replicas else None
        of_islands, end = rows[:: self._islands.ranks_of_island], STEP_COLUMNS * len(self._round)
        counted = self._counted(of_islands[:, :end], of_islands[:, end:-3])
        # In the tree of islands, which goes on where that of each one's replicas ended.
        counts = torch.where(counted[:, None], of_islands[:, :end], 0.0)
        num_islands, sums = int(counted.sum()), tree_sum(counts).tolist()
        steps = [
            _apart_step(*sums[at : at + STEP_COLUMNS], num_islands=num_islands) for at in range(0, end, STEP_COLUMNS)
        ]
        last = steps[-1].sums._replace(stop=stop, save=save, replica_s=replica_s)
        return [*steps[:-1], steps[-1]._replace(sums=last)]

    def _num_updates(self, step: int) -> int:
        """Of an island's optimizer, with that of a step, counted from 0."""
        return step + 1

    def _add_penalty(self, place: int, tokens: int) -> None:
        """Add to the gradient of one of this rank's islands, summed over so many tokens."""

    def _of_round(self) -> Tensor:
        """What is gathered of a round beside its steps, float64 (own islands, n)."""
        return torch.zeros((len(self._islands.islands), 0), dtype=torch.float64)

    def _counted(self, steps: Tensor, of_round: Tensor) -> Tensor:
        """Which islands count in what steps came to, one at least; (islands,)."""
        return torch.ones(len(steps), dtype=torch.bool)

    def move_together(self, done: int) -> None:
        """Behind `meet`: exchange movements, and move the shared weights by those that have arrived."""
        leaving = self._sync.leaving(done, self._spec.max_steps)
        self._islands.send(leaving)
        self._on_its_way = self._sync.on_their_way(done, self._spec.max_steps)
        if not self._on_its_way:
            self._islands.receive(leaving)

    def moments(self) -> State:
        islands = {f"optimizer.{name}": self._islands.island_piece(rows) for name, rows in self._moments.items()}
        outer = {f"optimizer.{name}": value for name, value in self._islands.outer_state().items()}
        return {**islands, **outer, **self._exchange_state()}


def _apart_step(nats: float, num_tokens: float, squares: float, *, num_islands: int) -> ApartStep:
    return ApartStep(Sums(nats, int(num_tokens), stop=False), math.sqrt(squares / num_islands))
