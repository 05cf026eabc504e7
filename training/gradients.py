"""Gradients summed in one fixed binary tree over logical replicas, whatever the number of ranks.

Replica r * k + j is the j-th of the k that rank r runs. Inside a rank a binary counter of flat buffers adds replicas up
as a tree: partial sums of equal height meet. Between ranks the tree goes on, bucket by bucket, while the last replica's
backward still runs. Floating-point addition is not associative, so it is the fixed shape of the tree that makes 1, 2
or 4 ranks give the same bits (after EasyScale, Li et al., SC '23).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from data_contracts.errors import ConfigError
from training.communication import Collectives, tree_exchange

BUCKET_ELEMENTS = 1 << 19
"""2 MiB of fp32: small enough that one travels while the next is made, and that a slow link is kept busy both ways."""


class GradientTree:
    """Owns the gradients of some parameters: `parameter.grad` are views into flat buffers.

    Args:
        parameters: all trained parameters by name, fp32, in an order that every rank shares.
        num_replicas: V, a power of two. Buffers are padded to a multiple of it, so that their length, and with it
            every later reduction over them, is the same for any number of ranks.
        node_dtype: what every node of the tree is rounded to, each replica's own gradient included, and travels in.
            Rounding where ranks meet alone would depend on their number.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        collectives: Collectives,
        num_replicas: int,
        node_dtype: torch.dtype = torch.float32,
    ) -> None:
        # Backward reaches the last parameters first.
        self._names = list(reversed(list(parameters)))
        self._parameters = [parameters[name] for name in self._names]
        self._replicas_per_rank = num_replicas // collectives.num_ranks
        self._exchange = tree_exchange(collectives)
        self._node_dtype = node_dtype
        self._lay_out(num_replicas)
        self._views: dict[int, list[Tensor]] = {}
        self._partial_sums: list[Tensor] = []
        self._num_added = 0
        self._is_running = self._is_last = False
        self._leaf = self._nodes = self._new_buffer(torch.float32)
        self._free = [self._leaf] if self._is_fp32 else []
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._gradient_arrived, index)
            )

    def begin_replica(self) -> None:
        """Let the next backward pass write into a buffer of its own."""
        self._is_running, self._is_last = True, self._num_added == self._replicas_per_rank - 1
        if self._is_fp32:
            self._leaf = self._take_buffer()
        if self._is_last:
            self._nodes = self._leaf if self._is_fp32 else self._take_buffer()
            self._num_missing, self._next_bucket = list(self._num_overlapping), 0
            self._arrived = [False] * len(self._parameters)
        self._leaf.zero_()
        self._point_gradients_at(self._leaf)

    def end_replica(self) -> None:
        """Add the finished replica to the tree."""
        self._is_running = False
        if self._is_last:
            while self._next_bucket < len(self._buckets):  # no gradient came for some parameters
                self._send_next_bucket()
            return
        node = self._leaf if self._is_fp32 else self._take_buffer().copy_(self._leaf)
        index = self._num_added
        while index & 1:
            older = self._partial_sums.pop()
            self._free.append(node)
            node = older.add_(node)
            index >>= 1
        self._partial_sums.append(node)
        self._num_added += 1

    def total(self) -> Tensor:
        """The sum over all replicas of all ranks, flat; `parameter.grad` are views into it until the next replica."""
        self._exchange.finish()
        self._free += (*self._partial_sums, self._nodes)
        self._partial_sums, self._num_added = [], 0
        if not self._is_fp32:
            self._leaf.copy_(self._nodes)
        return self._leaf

    def _gradient_arrived(self, index: int, parameter: Tensor) -> None:
        """Autograd's hook, once the parameter's gradient of one backward pass is complete."""
        if not self._is_running:
            return
        if parameter.grad is not self._gradients[index]:
            raise ConfigError(
                "something replaced the parameter's gradient, which has its place in a shared buffer.",
                where=f"model.{self._names[index]}",
                advice="Leave `grad` alone in the recipe.",
            )
        if not self._is_last:
            return
        if self._arrived[index]:
            raise ConfigError(
                "its gradient arrived twice in one backward pass, after it may have been sent.",
                where=f"model.{self._names[index]}",
                advice="Checkpoint activations with use_reentrant=False.",
            )
        self._arrived[index] = True
        for bucket in self._overlapping[index]:
            self._num_missing[bucket] -= 1
        # In order on every rank, whatever order gradients arrive in.
        while self._next_bucket < len(self._buckets) and not self._num_missing[self._next_bucket]:
            self._send_next_bucket()

    def _send_next_bucket(self) -> None:
        place = self._buckets[self._next_bucket]
        bucket = self._nodes[place]
        if not self._is_fp32:
            bucket.copy_(self._leaf[place])
        for partial_sum in reversed(self._partial_sums):
            bucket.add_(partial_sum[place])
        self._exchange.start(bucket)
        self._next_bucket += 1

    def _lay_out(self, num_replicas: int) -> None:
        """Where each parameter begins, and which buckets it overlaps."""
        self._offsets = [0]
        for parameter in self._parameters:
            self._offsets.append(self._offsets[-1] + parameter.numel())
        self._length = -(-self._offsets[-1] // num_replicas) * num_replicas
        size = max(BUCKET_ELEMENTS, num_replicas)
        self._buckets = [slice(start, min(start + size, self._length)) for start in range(0, self._length, size)]
        self._overlapping = [
            range(start // size, -(-stop // size)) if stop > start else range(0)
            for start, stop in zip(self._offsets, self._offsets[1:], strict=False)
        ]
        self._num_overlapping = [0] * len(self._buckets)
        for buckets in self._overlapping:
            for bucket in buckets:
                self._num_overlapping[bucket] += 1

    @property
    def _is_fp32(self) -> bool:
        """Whether a replica's gradient is a node of the tree as it is."""
        return self._node_dtype == torch.float32

    def _take_buffer(self) -> Tensor:
        return self._free.pop() if self._free else self._new_buffer(self._node_dtype)

    def _new_buffer(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self._length, dtype=dtype, device=self._parameters[0].device)

    def _point_gradients_at(self, flat: Tensor) -> None:
        self._gradients = self._views.get(flat.data_ptr()) or self._views.setdefault(
            flat.data_ptr(),
            [
                flat[offset : offset + parameter.numel()].view_as(parameter)
                for parameter, offset in zip(self._parameters, self._offsets, strict=False)
            ],
        )
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient


def clip_factor(norm: float, largest: float) -> float:
    """What to scale a gradient of this norm by, so that its norm is at most `largest`."""
    return min(1.0, largest / (norm + 1e-6))
