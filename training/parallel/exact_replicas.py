"""Replicated training that gives the same bits for any number of ranks, whatever part each has: exact elasticity.

A global batch is V logical replicas, each one micro-batch with random streams and a backward pass of its own; what
they make is summed in one fixed tree (after EasyScale, Li et al., SC '23).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from headway.data_contracts.store.errors import ConfigError
from headway.training.checkpoint.pieces import Piece, State, pieces_of
from headway.training.checkpoint.proof import use_training_mode
from headway.training.config.communication_spec import IntegerCompressionSpec
from headway.training.config.parallel import shares_of
from headway.training.config.seeds import derive, seed_everything
from headway.training.config.training_spec import TrainingSpec
from headway.training.observe.telemetry import PartClock
from headway.training.optimizers.update_rule import gradient
from headway.training.parallel.batch_statistics import BatchStatistics
from headway.training.parallel.gradients import (
    GradientTree,
    RowSquares,
    buffer_length,
    is_measured,
    row_places,
    row_squares,
)
from headway.training.parallel.precision import DTYPES, autocast
from headway.training.parallel.shardable import require_shardable
from headway.training.parallel.strategy import Batch, BatchShare, UnshardedModel
from headway.training.ranks.communication import Collectives, TreeExchange, gang_levels
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.integer_exchange import IntegerExchange
from headway.training.ranks.tree_plan import LevelPlan, level_plans
from headway.training.recipes.protocol import Recipe, named_blocks


class ExactReplicas(UnshardedModel):
    """Raises:
    ConfigError: the model has SyncBatchNorm or weights that are not fp32, or is to be sharded and cannot be.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> None:
        self._recipe, self._spec, self._process_group = recipe, spec, process_group
        self.share = BatchShare(process_group.rank, process_group.world_size, islands=spec.islands)
        self.clock = PartClock(process_group.device, process_group.traffic)
        # Weights have a seed of their own, so that no other draw can move them.
        seed_everything(derive(spec.seed, "weights"))
        self.model = recipe.build().to(process_group.device)
        self._is_sharded = spec.parallel.shard != 1
        """By as many ranks as there are, of which this one is all."""
        if self._is_sharded:
            require_shardable(self.model)
            for block in named_blocks(recipe, self.model):
                block.register_forward_pre_hook(_enter, with_kwargs=True)
        # Not `self.model.compile()`: evaluation and the proof batch would go through it too, and get other bits.
        self._callable = cast(nn.Module, torch.compile(self.model)) if spec.compile else self.model
        self._collectives = Collectives(process_group)
        self._statistics = BatchStatistics(self.model, self._gather_replicas)
        self._trained = trained_parameters(self.model)
        levels = gang_levels(process_group)
        self._level_sizes = [level.num_ranks for level in levels]
        # Of whole numbers any order is the tree's.
        self._sums = TreeExchange(levels, [LevelPlan.in_any_order(size) for size in self._level_sizes])
        self._bounds: tuple[int, ...] = ()
        self._together = 1 if spec.integers is None else spec.integers.elements_together(process_group.world_size)
        self._integers = None if spec.integers is None else self._integer_exchange(spec.integers)
        self._gradients = GradientTree(
            self._trained,
            collectives=self._collectives,
            num_replicas=spec.num_replicas,
            exchange=self._integers or self._sums,
            bucket_elements=spec.bucket_bytes // 4,
            block_elements=self._together,
            node_dtype=DTYPES[spec.rounding],
        )
        self._squares = RowSquares(shapes_of(self._trained), process_group.device)

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        return self._trained

    def _integer_exchange(self, integers: IntegerCompressionSpec) -> IntegerExchange:
        return IntegerExchange(
            integers,
            self._collectives,
            self._sums,
            islands=self._islands(integers),
            length=buffer_length(self._trained.values(), self._process_group.world_size, self._together),
            device=self._process_group.device,
        )

    def _islands(self, integers: IntegerCompressionSpec) -> range:
        """Which ones are this rank's."""
        return self.share.replicas(integers.islands)

    def _share_out(self, num_replicas: int) -> None:
        """Sum over the stretches that ranks have of a global batch of so many replicas."""
        bounds = self.share.bounds(num_replicas)
        if bounds == self._bounds:
            return
        self._bounds = bounds
        if (integers := self._spec.integers) is not None:
            self._gradients.expect(self.share.replicas(num_replicas), island=num_replicas // integers.islands)
            return
        self._gradients.expect(self.share.replicas(num_replicas))
        height = num_replicas.bit_length() - 1
        self._sums.follow(level_plans(self._level_sizes, self._process_group.rank, bounds, height=height))

    def backward(
        self, step: int, micro_batches: Sequence[Batch], *, num_replicas: int, loss_scale: float = 1.0
    ) -> Tensor:
        use_training_mode(self.model)
        self._statistics.begin_step()
        rows = []
        measured = is_measured(step, self._spec, num_replicas)
        self._share_out(num_replicas)
        if self._integers is not None:
            self._integers.loss_scale = loss_scale
        for replica, batch in zip(self.share.replicas(num_replicas), micro_batches, strict=True):
            self._gradients.begin_replica(self._squares if measured and replica == 0 else None)
            rows.append(self._run_replica(step, replica, batch, loss_scale))
            self._gradients.end_replica()
        self._replica_squares = self._squares.take(len(rows)) if measured else None
        return torch.stack(rows).cpu()

    def _run_replica(self, step: int, replica: int, batch: Batch, loss_scale: float = 1.0) -> Tensor:
        """Forward and backward of one micro-batch. Returns nats and number of tokens, float64 (2,)."""
        # By step and replica, never by rank: the same replica draws the same numbers wherever it runs.
        seed_everything(derive(self._spec.seed, "replica", step, replica))
        self._statistics.begin_replica()
        with self.clock.part("forward"), autocast(self._spec.precision, self._process_group.device):
            losses = self._recipe.losses(self._callable, batch)
        self._statistics.end_replica()
        (losses.nats.sum() * loss_scale).backward()  # type: ignore[no-untyped-call]
        return torch.stack((losses.nats.detach().double().sum(), losses.valid.sum().double()))

    def share_by(self, speeds: tuple[float, ...]) -> None:
        before = self._owners()
        self.share = replace(self.share, speeds=speeds)
        if self._integers is not None and self._spec.integers is not None:
            # What an island keeps for its next gradient goes with it.
            self._integers.move(self._islands(self._spec.integers), before, self._owners())

    def _owners(self) -> list[int]:
        """The rank that has each island; empty where there are none."""
        counts = shares_of(self._spec.islands, self.share.count, self.share.speeds) if self._spec.islands else ()
        return [rank for rank, num in enumerate(counts) for _ in range(num)]

    def _gather_replicas(self, rows: Tensor) -> Tensor:
        """Rows (own replicas, ...) of all ranks, in the order of the global batch."""
        return self._collectives.gather(rows, [end - first for first, end in pairwise(self._bounds)])

    def replica_squares(self) -> Tensor | None:
        return self._replica_squares

    def exchange(self, own: Tensor) -> Tensor:
        # Backward has issued every bucket by now, so this only waits.
        self._total = self._gradients.total()
        self._statistics.end_step()
        return self._gather_replicas(own.to(self._process_group.device)).cpu()

    def discard(self) -> None:
        if self._integers is not None:
            self._integers.discard()

    def exchange_state(self) -> dict[str, Piece]:
        return {} if self._integers is None else self._residuals(self._integers, self._gradients)

    def _residuals(self, integers: IntegerExchange, tree: GradientTree) -> dict[str, Piece]:
        if not integers.has_feedback:
            return {}
        return {f"residual.{name}": self.island_piece(rows) for name, rows in tree.by_name(integers.residuals).items()}

    @property
    def _first_island(self) -> int:
        """Of this rank's."""
        return self.share.replicas(self._spec.islands or 1).start

    def island_piece(self, rows: Tensor) -> Piece:
        """Where rows (own islands, ...) lie in a table of all islands."""
        assert self._spec.islands is not None
        first = self._first_island
        shape = (self._spec.islands, *rows.shape[1:])
        return Piece(local=rows, global_shape=shape, offsets=(first, *(0 for _ in rows.shape[1:])))

    def full_tensors(self, state: State) -> Iterator[tuple[str, Tensor]]:
        if self._spec.islands is None:
            return super().full_tensors(state)
        from headway.training.parallel.slices import full_tensors

        # What every rank has whole travels nowhere: links that whole numbers are for are slow.
        own = pieces_of(state)
        cut = {name: piece for name, piece in own.items() if piece.local.shape != piece.global_shape}
        whole = {name: piece for name, piece in own.items() if name not in cut}
        return heapq.merge(super().full_tensors(whole), full_tensors(cut, self._process_group), key=itemgetter(0))

    def gradient_norm(self) -> float:
        # By rows, which a rank with slices can compute as well: both modes then have the same norm.
        places, length = row_places(shapes_of(self._trained))
        gradients = {name: gradient(value) for name, value in self._trained.items()}
        return math.sqrt(float(row_squares(gradients, places, length).sum()))

    def scale_gradients(self, factor: float) -> None:
        self._total.mul_(factor)

    def whole_matrix(self, name: str, values: Tensor) -> Tensor | None:
        # Alone, as ranks with slices of it take it: several in one product may come out otherwise.
        return values if self._is_sharded else None


class _Entrance(torch.autograd.Function):
    """Gradients of what enters a block meet here before they meet others, as FSDP2 makes them do."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def _enter(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # Where FSDP2 has a boundary: without it autograd would add incoming gradients in another order.
    given, structure = tree_flatten((args, kwargs))
    places = [index for index, each in enumerate(given) if isinstance(each, Tensor) and each.requires_grad]
    if places and torch.is_grad_enabled():
        entered = _Entrance.apply(*(given[place] for place in places))  # type: ignore[no-untyped-call]
        for place, tensor in zip(places, entered, strict=True):
            given[place] = tensor
    return cast(tuple[tuple[Any, ...], dict[str, Any]], tree_unflatten(given, structure))


def shapes_of(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in parameters.items()}


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name, those that are not frozen.

    Raises:
        ConfigError: one is not fp32.
    """
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    for name, value in trained.items():
        # The tree rounds and adds in fp32; another type would enter it with bits of its own.
        if value.dtype != torch.float32:
            raise ConfigError(
                f"it is {str(value.dtype).removeprefix('torch.')}, and weights are fp32 in every precision.",
                where=f"model.{name}",
                advice="Choose training.precision instead of converting the model.",
            )
    return trained
