"""Sharded training that gives the same bits for any number of ranks: FSDP2 within the tree of exact replicas.

A rank that takes every S-th replica lets S neighbours in the tree run at once. FSDP2 scatters the sum of their
gradients after each backward pass, in the tree's order; the binary counter of `GradientTree` goes on with these sums,
slice by slice, and between copies of the model its exchange does. The tree is that of `ExactReplicas`.

What it costs beside plain FSDP2: a reduce-scatter for each replica of a rank instead of one a step, with the gradients'
slices alone kept between; parameters that travel in fp32, and under autocast their rounded copies until the backward
pass is over. `benchmarks.exact` has the price: in fp32 on two busy cores a step took 1.00 of FSDP2's with one
replica a rank, and 1.09 with four (1.00 where FSDP2 keeps slices between micro-batches too).

Every replica runs every block, once: FSDP2's ranks wait for each other there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.training.checkpoint.proof import proof_loss
from headway.training.config.training_spec import TrainingSpec
from headway.training.optimizers.update_rule import gradient
from headway.training.parallel.exact_replicas import trained_parameters
from headway.training.parallel.gradients import GradientTree, RowSquares, is_measured, row_places, row_squares
from headway.training.parallel.mesh_strategy import MeshStrategy
from headway.training.parallel.precision import DTYPES, autocast
from headway.training.parallel.slices import LocalParameter
from headway.training.parallel.strategy import Batch, BatchShare
from headway.training.ranks.communication import Collectives, tree_sum
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Recipe


class ExactShards(MeshStrategy):
    """Raises:
    ConfigError: the model cannot be sharded, or has SyncBatchNorm or weights that are not fp32.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> None:
        super().__init__(recipe, spec, process_group)
        shape = self._mesh.shape
        # Strided: neighbours in the tree run at the same time, so that a reduce-scatter sums exactly one subtree.
        self.share = BatchShare(self._mesh.share, shape.num_shares, stride=shape.shard)
        self._trained = {name: self._locals[name] for name in trained_parameters(self.model)}
        # The sum within a shard group is one level of the tree, the sum over copies of the model the next.
        among_replicas = Collectives(process_group, self._mesh.group("replicate"), shape.replicate)
        self._among_shards = Collectives(process_group, self._mesh.group("shard"), shape.shard)
        self._gradients = GradientTree(
            {name: value.local for name, value in self._trained.items()},
            collectives=among_replicas,
            # The scatter has added up `shard` replicas at once, so the counter sees that many fewer.
            num_replicas=spec.num_replicas // shape.shard,
            bucket_elements=spec.bucket_bytes // 4,
            node_dtype=DTYPES[spec.rounding],
        )
        for name, value in self._trained.items():
            # FSDP2 calls it once the parameter's slice is there.
            value.source.register_post_accumulate_grad_hook(partial(self._slice_arrived, name, value))  # type: ignore[no-untyped-call]
        self._squares = RowSquares(
            {name: value.global_shape for name, value in self._trained.items()}, process_group.device
        )
        self._is_measured = False
        names = {id(value.source): name for name, value in self._trained.items()}
        for module in self._sharded_modules:
            managed = [names[id(value)] for value in managed_parameters(cast(nn.Module, module)) if id(value) in names]
            scatter = TreeReduceScatter(self._among_shards, partial(self._leaf_arrived, managed))
            module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]

    def backward(
        self, step: int, micro_batches: Sequence[Batch], *, num_replicas: int, loss_scale: float = 1.0
    ) -> Tensor:
        # The first of the first share is the first of the global batch, on any number of ranks.
        measured = is_measured(step, self._spec, num_replicas)
        first = self._mesh.place.replicate * len(micro_batches)
        self._gradients.expect(range(first, first + len(micro_batches)))
        self._is_measured = measured and self.share.index == 0
        own = super().backward(step, micro_batches, num_replicas=num_replicas, loss_scale=loss_scale)
        self._replica_squares = self._squares.take(len(micro_batches)) if measured else None
        return own

    def replica_squares(self) -> Tensor | None:
        return self._replica_squares

    def exchange(self, own: Tensor) -> Tensor:
        self._total = self._gradients.total()
        self._statistics.end_step()
        return self._gather_replicas(own.to(self._process_group.device)).cpu()

    def gradient_norm(self) -> float:
        places, length = row_places({name: value.global_shape for name, value in self._trained.items()})
        gradients = {name: gradient(value.local) for name, value in self._trained.items()}
        # A slice begins somewhere within the whole parameter, and its rows keep their places there.
        first_rows = {name: places[name] + (value.offsets or (0,))[0] for name, value in self._trained.items()}
        squares = row_squares(gradients, first_rows, length)
        self._among_shards.wait(
            self._among_shards.all_reduce(squares)
        )  # each row is one rank's, and zero on all others
        return math.sqrt(float(squares.sum()))

    def scale_gradients(self, factor: float) -> None:
        self._total.mul_(factor)

    def proof_loss(self, batch: Batch) -> float:
        loss = proof_loss(self._recipe, self.model, batch)
        self._reshard()
        return loss

    def measures(self, batch: Batch) -> Mapping[str, Tensor]:
        measured = self._recipe.measures(self.model, batch)
        self._reshard()
        return measured

    def _gather_replicas(self, rows: Tensor) -> Tensor:
        shape = self._mesh.shape
        gathered = self._collectives.gather(rows).view(shape.replicate, shape.shard, *rows.shape)
        # Gathered in rank order, and reordered: shares take replicas in turn, and rows must be in the batch's order.
        return gathered.transpose(1, 2).flatten(0, 2)

    def _autocast(self) -> Any:
        return autocast(self._spec.precision, self._process_group.device)

    def _before_backward(self, *, is_last: bool) -> None:
        self._gradients.begin_replica()

    def _after_backward(self) -> None:
        self._gradients.end_replica()
        self._is_measured = False

    def _leaf_arrived(self, names: Sequence[str], flat: Tensor) -> None:
        """What FSDP2 scatters of one replica: each rank's slices one after another, padded to be equally long."""
        if not self._is_measured:
            return
        num_shards = self._among_shards.num_ranks
        shapes = [self._trained[name].global_shape for name in names]
        sizes = [-(-shape[0] // num_shards) * math.prod(shape[1:]) for shape in shapes]
        parts = torch.split(flat.view(num_shards, -1), sizes, dim=1)
        for name, shape, slices in zip(names, shapes, parts, strict=True):
            self._squares.add(name, slices.reshape(-1)[: math.prod(shape)].view(shape))

    def _slice_arrived(self, name: str, parameter: LocalParameter, _source: nn.Parameter) -> None:
        arrived = parameter.take_gradient()
        assert arrived is not None, "FSDP2 calls this for a gradient"
        self._gradients.add(name, arrived)


class TreeReduceScatter:
    """FSDP2's reduce-scatter (`ReduceScatter`, which is private), in binary-tree order of ranks.

    Args:
        on_leaf: is given what this rank puts in.
    """

    def __init__(self, collectives: Collectives, on_leaf: Callable[[Tensor], None]) -> None:
        self._collectives, self._on_leaf = collectives, on_leaf

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        self._on_leaf(input_tensor)
        # Every rank's part for this slice; a reduce-scatter of the backend would add them in its own order.
        received = torch.empty_like(input_tensor)
        self._collectives.wait(self._collectives.all_to_all(received, input_tensor))
        output_tensor.copy_(tree_sum(received.view(self._collectives.num_ranks, -1)))


def managed_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Those that FSDP2 scatters together for a module, in its order: of submodules first, without sharded ones."""
    from torch.distributed.fsdp import FSDPModule

    seen: set[int] = set()

    def walk(part: nn.Module) -> Iterator[nn.Parameter]:
        seen.add(id(part))
        for child in part.children():
            if id(child) not in seen and not isinstance(child, FSDPModule):
                yield from walk(child)
        for value in part.parameters(recurse=False):
            if id(value) not in seen:
                seen.add(id(value))
                yield value

    return walk(module)
