"""Gradients summed in one fixed binary tree over logical replicas, whatever the number of ranks.

Each rank runs a stretch of the replicas, of any length. Inside a rank a binary counter of flat buffers adds them up as
a tree: partial sums that are halves of one subtree meet. Between ranks the tree goes on, bucket by bucket, while the
last replica's backward still runs. Floating-point addition is not associative, so it is the fixed shape of the tree
that makes 1, 2, 3 or 4 ranks give the same bits (after EasyScale, Li et al., SC '23).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.training_spec import DEFAULT_BUCKET_BYTES, TrainingSpec
from headway.training.ranks.communication import Collectives, Exchange, TreeExchange
from headway.training.ranks.tree_plan import Subtree

NORM_ELEMENTS = 1 << 12

MEASURED_EVERY_STEPS = 8
"""How often the norm of one replica's gradient is taken. Of many small tensors it costs a tenth of a step."""


class GradientTree:
    """Owns the gradients of some parameters: `parameter.grad` are views into flat buffers.

    Args:
        parameters: all trained parameters by name, fp32, in an order that every rank shares.
        num_replicas: V, a power of two, which ranks share evenly until `expect` says otherwise.
        exchange: how subtrees go on between ranks; None: in the tree.
        bucket_elements: how many travel at a time; it decides no bit.
        block_elements: what buckets, and buffers, hold a whole number of.
        node_dtype: what every node of the tree is rounded to, each replica's own gradient included, and travels in.
            Rounding where ranks meet alone would depend on their number.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        collectives: Collectives,
        num_replicas: int,
        exchange: Exchange | None = None,
        bucket_elements: int = DEFAULT_BUCKET_BYTES // 4,
        block_elements: int = 1,
        node_dtype: torch.dtype = torch.float32,
    ) -> None:
        # Backward reaches the last parameters first.
        self._names = list(reversed(list(parameters)))
        self._parameters = [parameters[name] for name in self._names]
        self._index = {name: index for index, name in enumerate(self._names)}
        self.expect(range(num_replicas // collectives.num_ranks))
        self._exchange = exchange or TreeExchange([collectives])
        self._node_dtype = node_dtype
        self._assign_buckets(math.lcm(collectives.num_ranks, block_elements), bucket_elements)
        # Cached by address: buffers are reused every step, and thousands of views take milliseconds to make.
        self._views: dict[int, list[Tensor]] = {}
        self._free: list[Tensor] = []
        self._partial_sums: list[tuple[Subtree, Tensor]] = []
        """Subtrees that are added up, and wait for what follows them."""
        self._num_added = 0
        self._is_running = False
        is_fp32 = node_dtype == torch.float32
        # The sum itself is handed to the optimizer in fp32, whatever its nodes were rounded to.
        self._total = None if is_fp32 else torch.zeros(self._length, device=self._parameters[0].device)
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._gradient_arrived, index)
            )

    def expect(self, leaves: range, *, island: int | None = None) -> None:
        """Of these replicas of a global batch this rank makes its subtrees, from the next step on.

        Args:
            island: how many replicas the largest subtrees have, which are handed to the exchange; None: all.
        """
        self._leaves = leaves
        self._height = None if island is None else island.bit_length() - 1

    def begin_replica(self, squares: RowSquares | None = None) -> None:
        """Let the next backward pass be one leaf of the tree.

        Args:
            squares: is given the leaf's own gradient; of every second leaf alone.
        """
        self._subtree = Subtree(self._leaves[self._num_added], 0)
        # Every second leaf is added to its neighbour as it arrives, while it is still in the processor's cache.
        self._has_neighbour = self._is_joined_by(self._subtree)
        # A neighbour's gradient is nowhere by itself.
        assert squares is None or not self._has_neighbour
        self._squares = squares
        if self._has_neighbour:
            neighbour, self._nodes = self._partial_sums.pop()
            self._subtree = neighbour.joined()
        else:
            self._nodes = self._take_buffer()
        self._places = self._views_of(self._nodes)
        self._arrived = [False] * len(self._parameters)
        self._is_running, self._is_last = True, self._num_added == len(self._leaves) - 1
        # Only the last replica's gradients may leave: until then the tree of this rank is not complete.
        if self._is_last:
            self._num_missing, self._next_bucket = list(self._num_overlapping), 0
            self._joined, self._handed_in = self._ends_with(self._subtree)
        for parameter in self._parameters:
            # Otherwise autograd would add to the last replica's gradient, in sequence instead of in the tree.
            parameter.grad = None

    def end_replica(self) -> None:
        """Add the finished replica to the tree."""
        self._is_running = False
        # With a neighbour the sum is in place already; without one the buffer still holds an older step's values.
        if not self._has_neighbour:
            for place, has_arrived in zip(self._places, self._arrived, strict=True):
                if not has_arrived:
                    place.zero_()
        if self._is_last:
            while self._next_bucket < len(self._buckets):  # no gradient came for some parameters
                self._send_next_bucket()
            return
        subtree, node = self._subtree, self._nodes
        while self._is_joined_by(subtree):
            self._free.append(node)
            half, left = self._partial_sums.pop()
            subtree, node = half.joined(), left.add_(node)
        self._partial_sums.append((subtree, node))
        self._num_added += 1

    def add(self, name: str, gradient: Tensor) -> None:
        """Let this be the gradient of one backward pass, of a parameter that autograd does not reach itself."""
        index = self._index[name]
        self._parameters[index].grad = gradient
        self._gradient_arrived(index, self._parameters[index])

    def total(self) -> Tensor:
        """The sum over all replicas of all ranks, flat; `parameter.grad` are views into it until the next replica."""
        self._exchange.finish()
        # Returned for the next step: fresh buffers would cost page faults as large as the model.
        self._free += (*(each for _, each in self._partial_sums), self._nodes)
        self._partial_sums, self._num_added = [], 0
        total = self._nodes if self._total is None else self._total.copy_(self._nodes)
        for parameter, gradient in zip(self._parameters, self._views_of(total), strict=True):
            parameter.grad = gradient
        return total

    def by_name(self, rows: Tensor) -> dict[str, Tensor]:
        """What lies where gradients do in rows (n, length), as views (n, *shape of the parameter)."""
        return {
            name: rows[:, offset : offset + parameter.numel()].view(len(rows), *parameter.shape)
            for name, parameter, offset in zip(self._names, self._parameters, self._offsets, strict=False)
        }

    def _gradient_arrived(self, index: int, parameter: Tensor) -> None:
        """Autograd's hook, once the parameter's gradient of one backward pass is complete."""
        # Backward passes of others, such as an evaluation's, are none of the tree's.
        if not self._is_running:
            return
        # A second arrival would come after its bucket has left, and be lost without a word.
        if self._arrived[index]:
            raise ConfigError(
                "its gradient arrived twice in one backward pass, after it was added up.",
                where=f"model.{self._names[index]}",
                advice="Checkpoint activations with use_reentrant=False, run a sharded block once in a forward pass, "
                "and leave `backward` to the engine.",
            )
        self._arrived[index] = True
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        # In the tree all addends are dense; indices of sparse ones differ by replica.
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if self._has_neighbour:
            # Rounded before the addition, as every node of the tree is.
            self._places[index].add_(gradient.to(self._node_dtype))
        else:
            self._places[index].copy_(gradient)
            # Here, since its bucket may leave and be summed up before the pass is over.
            if self._squares is not None:
                self._squares.add(self._names[index], self._places[index])
        if not self._is_last:
            return
        for bucket in self._overlapping[index]:
            self._num_missing[bucket] -= 1
        # In order on every rank, whatever order gradients arrive in.
        while self._next_bucket < len(self._buckets) and not self._num_missing[self._next_bucket]:
            self._send_next_bucket()

    def _send_next_bucket(self) -> None:
        place = self._buckets[self._next_bucket]
        bucket = self._nodes[place]
        for half in self._joined:
            bucket.add_(half[place])
        self._exchange.start([*(subtree[place] for subtree in self._handed_in), bucket])
        self._next_bucket += 1

    def _is_joined_by(self, subtree: Subtree) -> bool:
        """Whether the last partial sum is the left half of a subtree of which this is the right one."""
        if not self._partial_sums or subtree.height == self._height:
            return False
        left, _ = self._partial_sums[-1]
        return left.joins(subtree)

    def _ends_with(self, subtree: Subtree) -> tuple[list[Tensor], list[Tensor]]:
        """Partial sums that this rank's last subtree meets one after another, and those that are handed in beside it.

        The first are of falling height: the order of the tree's remaining levels.
        """
        joined: list[Tensor] = []
        waiting = list(self._partial_sums)
        while waiting and subtree.height != self._height and waiting[-1][0].joins(subtree):
            half, left = waiting.pop()
            joined.append(left)
            subtree = half.joined()
        return joined, [each for _, each in waiting]

    def _assign_buckets(self, multiple: int, bucket_elements: int) -> None:
        """Where each parameter begins, and which buckets it overlaps."""
        self._offsets = [0]
        for parameter in self._parameters:
            self._offsets.append(self._offsets[-1] + parameter.numel())
        # Padded, so that ranks can each add up an equal part of every bucket.
        self._length = _padded(self._offsets[-1], multiple)
        size = max(bucket_elements // multiple, 1) * multiple
        self._buckets = [slice(start, min(start + size, self._length)) for start in range(0, self._length, size)]
        self._overlapping = [
            range(start // size, -(-stop // size)) if stop > start else range(0)
            for start, stop in zip(self._offsets, self._offsets[1:], strict=False)
        ]
        self._num_overlapping = [0] * len(self._buckets)
        for buckets in self._overlapping:
            for bucket in buckets:
                self._num_overlapping[bucket] += 1

    def _take_buffer(self) -> Tensor:
        if self._free:
            return self._free.pop()
        return torch.zeros(self._length, dtype=self._node_dtype, device=self._parameters[0].device)

    def _views_of(self, flat: Tensor) -> list[Tensor]:
        """Where each parameter's gradient lies in a buffer."""
        views = self._views.get(flat.data_ptr())
        if views is None:
            views = self._views[flat.data_ptr()] = [
                flat[offset : offset + parameter.numel()].view_as(parameter)
                for parameter, offset in zip(self._parameters, self._offsets, strict=False)
            ]
        return views


def buffer_length(parameters: Iterable[Tensor], num_ranks: int, block_elements: int) -> int:
    """Elements of a flat buffer of a `GradientTree`, which all buckets of a step make up."""
    return _padded(sum(parameter.numel() for parameter in parameters), math.lcm(num_ranks, block_elements))


def _padded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def row_squares(gradients: Mapping[str, Tensor], places: Mapping[str, int], length: int) -> Tensor:
    """Sum of squares of every row, that is of every index of the first dimension, float64 (length,).

    Of rows, so that ranks that keep some of them each make out the very same numbers.

    Args:
        places: where a gradient's first row belongs.
        length: of all rows, wherever they are; zero stands for those that are not here.
    """
    norms = torch.zeros(length, device=next(iter(gradients.values())).device)
    squares = torch.zeros(length, dtype=torch.float64, device=norms.device)
    for name, gradient in gradients.items():
        _add_row_norms(norms, squares, gradient, places[name])
    return squares.add_(norms.double().square_())


def _add_row_norms(norms: Tensor, squares: Tensor, gradient: Tensor, place: int) -> None:
    """The norms of short rows, to be squared together: a call for each parameter costs more than its arithmetic. Of
    long ones the squares.
    """
    if not gradient.numel():
        return
    rows = gradient.reshape(len(gradient) if gradient.dim() else 1, -1)
    here = slice(place, place + len(rows))
    if rows.shape[1] <= NORM_ELEMENTS and rows.dtype == norms.dtype:
        torch.linalg.vector_norm(rows, dim=1, out=norms[here])
        return
    # In pieces, since over millions of elements fp32 alone is 1e-4 off.
    for piece in torch.split(rows, NORM_ELEMENTS, dim=1):
        squares[here] += torch.linalg.vector_norm(piece, dim=1).double().square()


def is_measured(step: int, spec: TrainingSpec, num_replicas: int) -> bool:
    """Whether the norm of the first replica's gradient is taken in a step, counted from 0: alike on every rank.

    Not where datasets are mixed: their schedule repeats, and may give that replica other shares than the batch has.

    Args:
        num_replicas: of the step's global batch.
    """
    return not spec.order.mix and num_replicas > 1 and (step + 1) % MEASURED_EVERY_STEPS == 0


class RowSquares:
    """The squared norm of a gradient that comes parameter by parameter, in any order: the bits of `row_squares`.

    Args:
        shapes: of all trained parameters, whole, in an order that every rank shares.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], device: torch.device) -> None:
        self._places, length = row_places(shapes)
        self._norms = torch.zeros(length, device=device)
        self._squares = torch.zeros(length, dtype=torch.float64, device=device)

    def add(self, name: str, gradient: Tensor) -> None:
        """Of a parameter that has not come before, whole, in whatever it was rounded to."""
        _add_row_norms(self._norms, self._squares, gradient.float(), self._places[name])

    def take(self, num_rows: int) -> Tensor:
        """The sum over all that have come, and zeros in further rows, float64 (rows, 1) on the CPU. It begins anew."""
        column = torch.zeros((num_rows, 1), dtype=torch.float64)
        column[0] = self._squares.add_(self._norms.double().square_()).sum()
        self._squares.zero_()
        self._norms.zero_()
        return column


def row_places(shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], int]:
    """Where each parameter's rows begin among all rows, and how many these are."""
    places, length = {}, 0
    for name, shape in shapes.items():
        places[name] = length
        length += shape[0] if shape else 1
    return places, length


def clip_factor(norm: float, largest: float) -> float:
    """What to scale a gradient of this norm by, so that its norm is at most `largest`."""
    # The small number keeps a norm of zero from dividing by it; torch's own clipping uses the same.
    return min(1.0, largest / (norm + 1e-6))
