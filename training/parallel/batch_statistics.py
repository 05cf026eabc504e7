"""Batch normalisation's running statistics, right whatever the number of ranks.

Each replica normalises by its own micro-batch. With a momentum of 1 a forward pass leaves that micro-batch's statistics
where the running ones belong; they are taken per replica, averaged in the tree over replicas, and move the running
statistics once a step, by the model's own momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from headway.data_contracts.store.errors import ConfigError
from headway.training.ranks.communication import tree_sum


class BufferSlot(NamedTuple):
    """Where a model keeps a persistent buffer."""

    module_name: str
    module: nn.Module
    name: str

    def state(self) -> tuple[int, int]:
        """Another one after any change: which tensor it is, and how often that was written to."""
        buffer = self.module._buffers[self.name]
        # The version counts in-place writes; the identity shows a buffer that was replaced by a new tensor.
        return id(buffer), 0 if buffer is None else buffer._version


class BatchStatistics:
    """Takes over the running statistics of a model for as long as a step's replicas run.

    Between steps the model's own buffers hold them, for evaluation and checkpoints. Of a layer that is called several
    times in one replica the last call counts.

    Raises:
        ConfigError: the model has SyncBatchNorm; in `end_replica`, it changes other buffers while it is trained.

    Args:
        gather: rows (n, ...) of a rank's replicas become those of all, in the order of replicas.
    """

    def __init__(self, model: nn.Module, gather: Callable[[Tensor], Tensor]) -> None:
        self._gather = gather
        self._layers: list[tuple[_NormBase, Tensor, Tensor, Tensor]] = []
        for name, module in model.named_modules():
            if isinstance(module, nn.SyncBatchNorm):
                raise ConfigError(
                    "SyncBatchNorm normalises over all rows that run at once, and the number of ranks decides these.",
                    where=f"model.{name}",
                    advice="Use plain batch normalisation: every replica normalises by its own micro-batch.",
                )
            if isinstance(module, _NormBase) and module.running_mean is not None:
                assert module.running_var is not None and module.num_batches_tracked is not None
                self._layers.append((module, module.running_mean, module.running_var, module.num_batches_tracked))
        # References, not copies: models move to their device before, and the buffers stay the same tensors after.
        self._running = [buffer for _, mean, variance, _ in self._layers for buffer in (mean, variance)]
        self._others = list(_persistent_buffers(model, but={id(layer) for layer, *_ in self._layers}))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._layers)

    def begin_step(self) -> None:
        self._momenta = [layer.momentum for layer, *_ in self._layers]
        self._counts = [count.clone() for *_, count in self._layers]
        self._before = [buffer.clone() for buffer in self._running]
        self._states = [place.state() for place in self._others]
        self._rows: list[Tensor] = []
        for layer, *_ in self._layers:
            # With a momentum of 1 the layer itself leaves this micro-batch's statistics, in
            # whatever way it computes them.
            layer.momentum = 1.0

    def begin_replica(self) -> None:
        # A layer that this replica leaves out must not show what another one on the same rank made of it.
        if self._running:
            # One call for all layers, instead of two copies a layer.
            torch._foreach_copy_(self._running, self._before)

    def end_replica(self) -> None:
        for place, state in zip(self._others, self._states, strict=True):
            # Such a buffer would hold what the last replica of this rank wrote: another
            # value with another number of ranks.
            if place.state() != state:
                raise ConfigError(
                    "training changes this buffer, in a way that would depend on the number of ranks.",
                    where=".".join(filter(None, ("model", place.module_name, place.name))),
                    advice="Make it a parameter, derive it from the batch, or do not store it (persistent=False).",
                )
        if self._running:
            self._rows.append(torch.cat(self._running))

    def end_step(self) -> None:
        """Move the running statistics; all ranks together."""
        if not self._running:
            return
        # All layers in one row, so that one collective serves the whole model.
        rows = self._gather(torch.stack(self._rows))
        # In the same tree as gradients: a plain mean over ranks would have other bits for each number of ranks.
        means = (tree_sum(rows) / rows.shape[0]).split_with_sizes([buffer.numel() for buffer in self._running])
        for index, (layer, *_, count) in enumerate(self._layers):
            layer.momentum = self._momenta[index]
            # Counted once a step; the layers themselves counted every replica.
            count.copy_(self._counts[index] + int(layer.training))
            # No momentum means a cumulative average, as in torch's own layer.
            rate = layer.momentum if layer.momentum is not None else 1 / max(1, int(count))
            for place in (2 * index, 2 * index + 1):
                # From the value before the step, since the buffer holds the last replica's statistics now.
                self._running[place].copy_(self._before[place]).lerp_(means[place], rate)


def _persistent_buffers(model: nn.Module, *, but: Container[int]) -> Iterator[BufferSlot]:
    for module_name, module in model.named_modules():
        for name in module._buffers.keys() - module._non_persistent_buffers_set:
            if id(module) not in but:
                yield BufferSlot(module_name, module, name)
