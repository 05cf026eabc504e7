"""Gradients summed in one fixed binary tree over logical replicas, whatever the number of ranks.

Replica r * k + j is the j-th of the k that rank r runs. Inside a rank a binary counter of flat buffers adds replicas up
as a tree: partial sums of equal height meet. Between ranks the tree goes on. Floating-point addition is not
associative, so it is the fixed shape of the tree that makes 1, 2 or 4 ranks give the same bits (after EasyScale,
Li et al., SC '23).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.distributed import Gang


def tree_sum(rows: Tensor) -> Tensor:
    """Sum of rows (n, ...) in binary-tree order. The rows are used as scratch space."""
    num_rows, distance = rows.shape[0], 1
    while distance < num_rows:
        right = rows[distance :: 2 * distance]
        rows[:: 2 * distance][: len(right)] += right
        distance *= 2
    return rows[0]


class GradientTree:
    """Owns the gradients of some parameters: `parameter.grad` are views into flat buffers.

    Args:
        parameters: all trained parameters, in an order that every rank shares.
        gang: the ranks to sum over.
        num_replicas: V, a power of two. Buffers are padded to a multiple of it, so that their length, and with it
            every later reduction over them, is the same for any number of ranks.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, gang: Gang, num_replicas: int) -> None:
        self._parameters, self._gang = list(parameters), gang
        num_elements = sum(parameter.numel() for parameter in self._parameters)
        self._length = -(-num_elements // num_replicas) * num_replicas
        self._free: list[Tensor] = []
        self._partial_sums: list[Tensor] = []
        self._num_added = 0

    def begin_replica(self) -> None:
        """Let the next backward pass write into a buffer of its own."""
        self._leaf = self._free.pop() if self._free else self._new_buffer()
        self._leaf.zero_()
        self._point_gradients_at(self._leaf)

    def end_replica(self) -> None:
        """Add the finished replica to the tree."""
        node, index = self._leaf, self._num_added
        while index & 1:
            # The older sum is the left child: it has the lower replica numbers.
            older = self._partial_sums.pop()
            self._free.append(node)
            node = older.add_(node)
            index >>= 1
        self._partial_sums.append(node)
        self._num_added += 1

    def total(self) -> Tensor:
        """The sum over all replicas of all ranks, flat; `parameter.grad` are views into it until the next replica."""
        (total,) = self._partial_sums
        self._exchange(total)
        self._partial_sums, self._num_added = [], 0
        self._free.append(total)
        self._point_gradients_at(total)
        return total

    def _exchange(self, total: Tensor) -> None:
        world_size = self._gang.world_size
        if world_size == 2:
            dist.all_reduce(total)  # a + b is b + a: the tree of two needs no order
        elif world_size > 2:
            received = torch.empty_like(total)
            dist.all_to_all_single(received, total)
            dist.all_gather_single(total, tree_sum(received.view(world_size, -1)))

    def _new_buffer(self) -> Tensor:
        first = self._parameters[0]
        return torch.zeros(self._length, dtype=first.dtype, device=first.device)

    def _point_gradients_at(self, flat: Tensor) -> None:
        offset = 0
        for parameter in self._parameters:
            parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()


def clip_factor(norm: float, largest: float) -> float:
    """What to scale a gradient of this norm by, so that its norm is at most `largest`."""
    return min(1.0, largest / (norm + 1e-6))
