"""A model laid over a mesh of ranks: replicated, sharded, split by tensors, and combinations.

Gradients are sums over the global batch, never means: the loss counts every token alike, so a sum is divided once, by
the number of tokens that turned out valid, whatever rank and micro-batch they were in.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.checkpoint.pieces import Piece, State
from headway.training.checkpoint.proof import use_training_mode
from headway.training.config.parallel import mesh_shape
from headway.training.config.seeds import derive, seed_everything
from headway.training.config.training_spec import TrainingSpec
from headway.training.observe.telemetry import PartClock
from headway.training.parallel.batch_statistics import BatchStatistics
from headway.training.parallel.mesh import make_mesh
from headway.training.parallel.parallelize import parallelize, uninitialised
from headway.training.parallel.precision import DTYPES, autocast
from headway.training.parallel.replica_sum import ReplicaSum
from headway.training.parallel.slices import LocalParameter, as_spread, full_tensors
from headway.training.parallel.strategy import Batch, BatchShare
from headway.training.ranks.communication import Collectives
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.utilisation import parameters_of
from headway.training.recipes.protocol import Losses, Recipe

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


class MeshStrategy:
    """Raises:
    ConfigError: the recipe does not say how its model can be split, or it keeps batch statistics and is split.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> None:
        self._recipe, self._spec, self._process_group = recipe, spec, process_group
        shape = mesh_shape(spec.parallel, process_group.world_size)
        self._mesh = make_mesh(shape, process_group)
        place = self._mesh.place
        has_answers = place.tensor == 0 and place.pipeline == shape.pipeline - 1
        self.share, self.clock = (
            BatchShare(self._mesh.share, shape.num_shares, has_answers=has_answers),
            PartClock(process_group.device, process_group.traffic),
        )
        # Without memory first: the whole model may be larger than one rank can hold.
        model, draw = uninitialised(recipe, spec)
        # Counted before it is cut, for the whole model.
        self.num_parameters = parameters_of(model)
        self.model = parallelize(recipe, self._part(model), spec, process_group, self._mesh)
        self._locals = {name: LocalParameter(value, self._mesh) for name, value in self.model.named_parameters()}
        # After parallelizing, slice by slice: each rank keeps its part, and all draw the same.
        self._fill(draw())
        self._collectives = Collectives(process_group)
        self._statistics = BatchStatistics(self.model, self._gather_replicas)
        # Running statistics of a layer that is split, or of a stage that others lack, have no average over all ranks.
        if self._statistics and shape.num_shares != process_group.world_size:
            raise ConfigError(
                "batch normalisation's statistics are averaged over ranks that each hold the whole of a layer.",
                where="training.parallel",
                advice="Use `replicate` and `shard` alone, or another normalisation.",
            )
        self._replicas: ReplicaSum | None = None
        if shape.shard == 1:  # else FSDP2 adds up what it shards, over its replicas too
            trained = [value for value in self._locals.values() if value.local.requires_grad]
            among_replicas = Collectives(process_group, self._mesh.group("replicate"), shape.replicate)
            self._replicas = ReplicaSum(trained, among_replicas, DTYPES[spec.rounding])

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        return {name: parameter.local for name, parameter in self._locals.items()}

    def backward(
        self, step: int, micro_batches: Sequence[Batch], *, num_replicas: int, loss_scale: float = 1.0
    ) -> Tensor:
        use_training_mode(self.model)
        self._begin(len(micro_batches))
        self._statistics.begin_step()
        rows, replicas = [], self.share.replicas(num_replicas)
        self._num_own = [end - first for first, end in pairwise(self.share.bounds(num_replicas))]
        for index, batch in enumerate(micro_batches):
            self._before_backward(is_last=index == len(micro_batches) - 1)
            self._seed(step, replicas[index])
            self._statistics.begin_replica()
            with self._split_loss():
                with self.clock.part("forward"), self._autocast():
                    losses = self._losses(self.model, batch)
                self._statistics.end_replica()
                # A sum, not a mean: ranks may have different numbers of tokens, and the division comes once at the end.
                (losses.nats.sum() * loss_scale).backward()  # type: ignore[no-untyped-call]
            self._after_backward()
            rows.append(sums_of(losses))
        # One copy to the host a step, instead of one a micro-batch.
        own = torch.stack(rows).cpu()
        # The other ranks of a tensor-parallel group computed the same.
        return own if self._mesh.place.tensor == 0 else torch.zeros_like(own)

    def replica_squares(self) -> Tensor | None:
        return None

    def exchange(self, own: Tensor) -> Tensor:
        self._finish()
        self._statistics.end_step()
        shape, num_rows = self._mesh.shape, own.shape[0]
        if shape.num_shares == self._process_group.world_size:
            return self._gather_replicas(own.to(self._process_group.device)).cpu()
        rows = self._gather(own).view(shape.pipeline, shape.num_shares, shape.tensor, num_rows, -1)
        # Summed over stages and tensor ranks, of which exactly one has the values and the others zeros.
        return rows.sum(dim=(0, 2)).flatten(0, 1)

    def discard(self) -> None: ...

    def exchange_state(self) -> Mapping[str, Piece]:
        return {}

    def gradient_norm(self) -> float:
        """Of squares that the owner of each slice adds up, in float64."""
        owned = [value.local.grad for value in self._locals.values() if value.owned and value.local.grad is not None]
        # Of each slice by its owner: a replicated parameter would otherwise count once for each copy.
        norms = torch._foreach_norm(owned) if owned else ()
        square = torch.stack([torch.zeros((), device=self._process_group.device), *norms]).double().square().sum()
        # `fsum` rounds once, so the result does not depend on the order of ranks.
        return math.sqrt(math.fsum(self._gather(square.reshape(1)).tolist()))

    def share_by(self, speeds: tuple[float, ...]) -> None:
        # Ranks that split a model run their passes together, so these have equally many.
        assert self._mesh.shape.num_shares == self._process_group.world_size and self._mesh.shape.shard == 1
        self.share = replace(self.share, speeds=speeds)

    def scale_gradients(self, factor: float) -> None:
        gradients = [value.local.grad for value in self._locals.values() if value.local.grad is not None]
        if gradients:  # none where all of a stage is frozen
            torch._foreach_mul_(gradients, factor)

    def proof_loss(self, batch: Batch) -> float:
        self.model.eval()
        with torch.no_grad(), self._split_loss(), self._autocast():
            nats, num_tokens = sums_of(self._losses(self.model, batch)).tolist()
        # FSDP2 gathers weights for a forward pass and frees them after the backward pass, which does not come here.
        self._reshard()
        return float(nats / max(1.0, num_tokens))

    def measures(self, batch: Batch) -> Mapping[str, Tensor]:
        with self._split_loss(), self._autocast():
            measured = self._measures(self.model, batch)
        self._reshard()
        return measured

    def whole_matrix(self, name: str, values: Tensor) -> Tensor | None:
        return self._locals[name].whole(values)

    def slice_of(self, name: str, whole: Tensor) -> Tensor:
        return self._locals[name].slice_of(whole)

    def piece(self, like: str, values: Tensor) -> Tensor | Piece:
        return self._locals[like].piece(values) if like in self._locals else values

    def full_tensors(self, state: State) -> Iterator[tuple[str, Tensor]]:
        return full_tensors(state, self._process_group)

    def _gather_replicas(self, rows: Tensor) -> Tensor:
        """Rows (micro-batches, ...) of all ranks, in the order of the global batch, where each rank has its own."""
        return self._collectives.gather(rows, self._num_own)

    def _gather(self, rows: Tensor) -> Tensor:
        return self._collectives.gather(rows.to(self._process_group.device)).cpu()

    def _part(self, model: nn.Module) -> nn.Module:
        """What this rank's stage holds of the model."""
        return model

    def _losses(self, model: nn.Module, batch: Batch) -> Losses:
        losses = self._recipe.losses(model, batch)
        nats = as_spread(losses.nats)
        # Under loss parallelism the losses are spread over the tensor group.
        return losses if nats is None else Losses(nats=nats.full_tensor(), valid=losses.valid)

    def _measures(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        measured = dict(self._recipe.measures(model, batch))
        for name, values in measured.items():
            # Under loss parallelism they are spread over the tensor group.
            if (spread := as_spread(values)) is not None:
                measured[name] = spread.full_tensor()
        return measured

    def _seed(self, step: int, replica: int) -> None:
        """Random streams of a micro-batch: the same on ranks that compute it together, in each stage other ones."""
        stage = self._mesh.place.pipeline
        # Stages hold different layers, and one stream for all would repeat the same dropout mask in each.
        purpose = f"replica/stage-{stage}" if stage else "replica"
        seed_everything(derive(self._spec.seed, purpose, step, replica))

    def _reshard(self) -> None:
        """After a forward pass that no backward pass follows, which would."""
        for module in self._sharded_modules:
            module.reshard()

    def _fill(self, draws: Iterator[tuple[str, Tensor]]) -> None:
        buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, whole in draws:
                if name in self._locals:
                    self._locals[name].local.copy_(self._locals[name].slice_of(whole))
                elif name in buffers:
                    buffers[name].copy_(whole)

    @functools.cached_property
    def _sharded_modules(self) -> list[FSDPModule]:
        if self._mesh.shape.shard == 1:
            return []
        from torch.distributed.fsdp import FSDPModule

        return [module for module in self.model.modules() if isinstance(module, FSDPModule)]

    def _split_loss(self) -> contextlib.AbstractContextManager[object]:
        parallel = self._spec.parallel
        if parallel.tensor == 1 or not parallel.loss_parallel:
            return contextlib.nullcontext()
        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel()

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        """Evaluation is in fp32, as far as parameters are: FSDP2 hands them out in the precision of training."""
        is_plain = not (torch.is_grad_enabled() or self._sharded_modules)
        return autocast("fp32" if is_plain else self._spec.precision, self._process_group.device)

    def _begin(self, num_micro_batches: int) -> None:
        if self._replicas is not None:
            self._replicas.begin(num_micro_batches)
        for parameter in self._locals.values():
            parameter.source.grad = None  # the last step's sum, which this one's would be added to

    def _before_backward(self, *, is_last: bool) -> None:
        """Leave gradients where they are until the last micro-batch: one exchange a step."""
        for module in self._sharded_modules:
            # FSDP2 otherwise exchanges after every backward pass, and a sum needs it once a step.
            module.set_is_last_backward(is_last)
            module.set_requires_gradient_sync(is_last or self._spec.parallel.reduce_every_micro_batch, recurse=False)

    def _after_backward(self) -> None: ...

    def _finish(self) -> None:
        if self._replicas is not None:
            self._replicas.finish()
            return
        for parameter in self._locals.values():
            gradient = parameter.take_gradient()
            # A frozen or unused parameter has no gradient, and the optimizer expects one for each.
            parameter.local.grad = torch.zeros_like(parameter.local) if gradient is None else gradient


def sums_of(losses: Losses) -> Tensor:
    """Nats and number of tokens of a micro-batch, float64 (2,)."""
    return torch.stack((losses.nats.detach().double().sum(), losses.valid.sum().double()))
