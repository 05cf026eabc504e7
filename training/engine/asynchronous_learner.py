"""A learner whose ranks do not wait for each other: each takes weights, and hands in a gradient when it has one.

Between two meetings ranks are workers of a parameter server, which each of them is a part of. What came in which order
decides the bits, so it is written down, and one process repeats it: the gradient of the same rows, at the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.training.config.communication_spec import AsynchronousSpec, first_due
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.arrivals import SCRIPT_NAME, Script, require_possible
from headway.training.engine.learner import Learner, Sums
from headway.training.observe.traffic import size_bytes
from headway.training.optimizers.scheduled import ScheduledOptimizer, lr_factor
from headway.training.parallel.exact_replicas import trained_parameters
from headway.training.parallel.gradients import clip_factor
from headway.training.parallel.strategy import Batch, BatchShare, ParallelStrategy
from headway.training.ranks.arrival_order import Arrival, ArrivalOrder
from headway.training.ranks.distributed import ProcessGroup, links_of
from headway.training.ranks.parameter_server import NUM_FIGURES, ParameterServer, shared_out
from headway.training.recipes.protocol import Recipe


class WorkItem(NamedTuple):
    """What an update is made of."""

    window: int
    num_replicas: int
    batches: Callable[[], Sequence[Batch]]
    """Of all replicas: a worker takes a whole batch."""


class Update(NamedTuple):
    """What came of one, the same on every rank."""

    work: WorkItem
    sums: Sums
    grad_norm: float
    lr: float
    staleness: int
    worker: int


_Found = tuple[Arrival, tuple[float, ...]]
"""With nats, number of tokens, and the gradient's norm."""


class _Served:
    """Some weights of a model, as an optimizer sees one."""

    def __init__(self, strategy: ParallelStrategy, parameters: Mapping[str, nn.Parameter]) -> None:
        self.model, self.parameters = strategy.model, parameters

    def whole_matrix(self, name: str, values: Tensor) -> Tensor:
        # Each by itself: bits of a product of many may depend on how many, and so on which rank serves which.
        return values

    def slice_of(self, name: str, whole: Tensor) -> Tensor:
        return whole


class AsynchronousLearner(Learner):
    """Raises:
    ConfigError: the model cannot be trained as the configuration asks.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> None:
        # Each rank has the whole model, and whole batches.
        alone = ProcessGroup(rank=0, world_size=1, device=process_group.device, traffic=process_group.traffic)
        super().__init__(recipe, spec.model_copy(update={"parallel": ParallelSpec(mode="fast")}), alone)
        assert spec.asynchronous is not None, "ranks are workers"
        self._asynchronous: AsynchronousSpec = spec.asynchronous
        self._gang = process_group
        if any(buffer.is_floating_point() for buffer in self._buffers):
            raise ConfigError(
                "it keeps statistics in buffers, such as batch normalisation's, of which each rank would have its own.",
                where="training.asynchronous",
                advice="Take layer or group normalisation, or sum gradients at every step.",
            )
        self._recipe = recipe
        trained_parameters(self.model)  # messages are fp32; refuses others
        self._weights = {name: value for name, value in self._strategy.parameters.items() if value.requires_grad}
        """That are trained; a worker computes with these, a server moves its own copies."""
        sizes = {name: value.numel() for name, value in self._weights.items()}
        self._served = shared_out(sizes, process_group.world_size)
        self._links = links_of(process_group)
        self._own = self._copies(self._served[process_group.rank])
        self._serving = self._optimizer_of(self._own)
        self.arrivals: list[Arrival] = []
        """Of the last round."""
        self.script: Script | None = None
        """What to repeat; None: nothing."""
        self.data_s = self._forward_s = 0.0
        """What this rank's work of the last round waited for rows; and its forward passes."""

    def _copies(self, names: Iterable[str]) -> dict[str, nn.Parameter]:
        return {name: nn.Parameter(self._weights[name].detach().clone()) for name in names}

    def _optimizer_of(self, parameters: Mapping[str, nn.Parameter]) -> ScheduledOptimizer:
        """Of some weights, whose moments are those of the whole model's optimizer."""
        made = ScheduledOptimizer(_Served(self._strategy, parameters), self._recipe, self._spec)
        whole = self._optimizer.tensors()
        made.keep_in({name: whole[name] for name in made.tensors()})
        return made

    @property
    def share(self) -> BatchShare:
        """Of what ranks share out, such as the rows of a validation; of a batch none has a part."""
        return BatchShare(self._gang.rank, self._gang.world_size)

    def round_end(self, step: int, is_due: Callable[[int], bool]) -> int:
        """How many updates are done when ranks meet next, of which so many are.

        Args:
            is_due: whether so many are followed by a validation.
        """
        every = self._asynchronous.meet_every_steps
        return first_due(step, min(self._spec.max_steps, (step // every + 1) * every), is_due)

    def train_round(
        self, done: int, works: Sequence[WorkItem], on_update: Callable[[int], None] = lambda _number: None
    ) -> list[Update]:
        """Make as many updates as there is work, and meet.

        Args:
            on_update: told of each that this rank worked on, how many pieces it has begun.
        """
        self.data_s = self._forward_s = 0.0
        if self.script is not None:
            return self._repeat(done, works, on_update)
        with torch.no_grad():
            for name, value in self._own.items():
                value.copy_(self._weights[name])
        order = ArrivalOrder(done, done + len(works), staleness=self._asynchronous.staleness)
        weights = [[self._weights[name] for name in names] for names in self._served]
        with ParameterServer(self._gang, self._links, weights, [*self._own.values()], order, self._apply) as server:
            while (taken := server.take()) is not None:
                started_s = time.perf_counter()
                work = works[taken.work - done]
                batches = work.batches()
                read_s = time.perf_counter()
                self.data_s += read_s - started_s
                figures = self._gradient(work, batches)
                server.hand_in(taken.work, [[_gradient_of(value) for value in values] for values in weights], figures)
                on_update(taken.work)
        self._meet()
        found = self._on_all(server.arrivals, len(works))
        return self._updates(done, works, found)

    def wishes(self, *, stop: bool, save: bool) -> tuple[bool, bool]:
        """What any rank wishes is everybody's wish."""
        found = self._gang.gather(torch.tensor([[stop, save]], dtype=torch.uint8)).amax(dim=0).tolist()
        return bool(found[0]), bool(found[1])

    def parts_s(self) -> Mapping[str, float]:
        return {"forward": self._forward_s / max(1, len(self.arrivals)), "sync": 0.0}

    def _repeat(self, done: int, works: Sequence[WorkItem], on_update: Callable[[int], None]) -> list[Update]:
        """The same updates in the order in which they were made before, each rank by itself."""
        arrivals = self.script.get(done, ()) if self.script is not None else ()
        if len(arrivals) != len(works):
            raise IntegrityError(
                f"{len(works)} updates follow step {done:,}, and the order of {len(arrivals)} is given.",
                where=SCRIPT_NAME,
            )
        require_possible(arrivals, done, self._asynchronous.staleness)
        last_use = {arrival.version: number for number, arrival in enumerate(arrivals, done)}
        kept: dict[int, dict[str, nn.Parameter]] = {}
        now, figures = self._copies(self._weights), []
        optimizer = self._optimizer_of(now)
        for number, arrival in enumerate(arrivals, done):
            if number in last_use:
                kept[number] = {name: nn.Parameter(value.detach().clone()) for name, value in now.items()}
            self._use(kept[arrival.version])
            work = works[arrival.work - done]
            figures.append(self._gradient(work, work.batches()))
            for name, value in now.items():
                value.grad = _gradient_of(self._weights[name]).clone()
            self._move(optimizer, number, number - arrival.version)
            kept = {version: values for version, values in kept.items() if last_use[version] > number}
            on_update(arrival.work)
        self._use(now)
        return self._updates(done, works, list(zip(arrivals, figures, strict=True)))

    def _gradient(self, work: WorkItem, batches: Sequence[Batch]) -> tuple[float, float, float]:
        """Let the model's gradients be the clipped one of a batch's mean loss.

        Returns nats, number of tokens, and the gradient's norm before clipping.
        """
        own = self.backward(work.window, batches, work.num_replicas)
        self._forward_s += self._strategy.clock.take_s()["forward"]
        sums = self.exchange(own, stop=False)
        norm = self.gradient_norm(sums)
        factor = clip_factor(norm, self._spec.optimizer.gradient_clip)
        self._strategy.scale_gradients(factor / max(1, sums.num_tokens))
        return sums.nats, float(sums.num_tokens), norm

    def _apply(self, number: int, staleness: int, gradients: Sequence[Tensor]) -> None:
        for value, gradient in zip(self._own.values(), gradients, strict=True):
            value.grad = gradient.to(value.device)
        self._move(self._serving, number, staleness)

    def _move(self, optimizer: ScheduledOptimizer, number: int, staleness: int) -> None:
        rows = self._spec.global_batch_sequences
        optimizer.step(number, num_updates=number + 1, batch_rows=rows, factor=self._factor(number, staleness))

    def _factor(self, number: int, staleness: int) -> float:
        factor = lr_factor(self._spec.schedule, number, self._spec.max_steps)
        return factor / (1 + staleness) if self._asynchronous.lr_by_staleness else factor

    @torch.no_grad()
    def _use(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._weights[name].copy_(value)

    @torch.no_grad()
    def _meet(self) -> None:
        """Let every rank have the weights and moments that each serves."""
        self._use(self._own)
        if self._gang.world_size == 1:
            return
        moments = sorted(self._optimizer.tensors().items())
        for rank, names in enumerate(self._served):
            mine = frozenset(names)
            states = [value for name, value in moments if name.partition(".")[2] in mine]
            for value in (*(self._weights[name] for name in names), *states):
                held = value.detach().cpu()
                with self.traffic.within("broadcast", size_bytes(held)):
                    dist.broadcast(held, group_src=rank, group=self._links)
                value.copy_(held)

    def _on_all(self, own: Sequence[_Found], count: int) -> list[_Found]:
        """Rank 0's, on every rank."""
        given = [[*arrival, *figures] for arrival, figures in own] or [[0.0] * (3 + NUM_FIGURES)] * count
        rows = torch.tensor(given, dtype=torch.float64)
        if self._gang.world_size > 1:
            dist.broadcast(rows, group_src=0, group=self._links)
        return [(Arrival(*map(int, row[:3])), tuple(row[3:])) for row in rows.tolist()]

    def _updates(self, done: int, works: Sequence[WorkItem], found: Sequence[_Found]) -> list[Update]:
        self.arrivals = [arrival for arrival, _ in found]
        optimizer = self._spec.optimizer
        peak_lr = optimizer.lr * optimizer.lr_scale(self._spec.global_batch_sequences)
        updates = []
        for number, (arrival, (nats, tokens, norm)) in enumerate(found, done):
            staleness = number - arrival.version
            sums, lr = Sums(nats, int(tokens), stop=False), peak_lr * self._factor(number, staleness)
            updates.append(Update(works[arrival.work - done], sums, norm, lr, staleness, arrival.worker))
        return updates


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    # Of weights that no row of this batch uses.
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
