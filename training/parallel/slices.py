"""What a rank holds of each parameter, as plain tensors, and where that lies in the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from training.checkpoint.pieces import Piece

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def as_spread(tensor: Tensor) -> DTensor | None:
    """The tensor if it is spread over a mesh; None for a plain one. Imports nothing."""
    return tensor if hasattr(tensor, "placements") else None  # type: ignore[return-value]


class LocalParameter:
    """A parameter as the optimizer sees it: `local`, a plain tensor that shares memory with this rank's slice.

    Args:
        source: what the model computes with.
        speaks: whether this rank stands first among those that would hold the same, were nothing split.
    """

    def __init__(self, source: nn.Parameter, *, speaks: bool) -> None:
        self.source, self.local, self.owned = source, source, speaks
        """`owned`: on exactly one of the ranks that hold equal slices."""
        self.global_shape, self.offsets = tuple(source.shape), (0,) * source.dim()
        if (spread := as_spread(source)) is not None:
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            mesh, placements = spread.device_mesh, spread.placements
            shape, offsets = compute_local_shape_and_global_offset(self.global_shape, mesh, placements)
            self.local = nn.Parameter(spread.to_local().detach().view(shape))
            self.offsets = tuple(offsets)

    def take_gradient(self) -> Tensor | None:
        """This rank's slice of the gradient, which the source gives up; None if it has none."""
        gradient, self.source.grad = self.source.grad, None
        if gradient is None:
            return None
        spread, own = as_spread(gradient), as_spread(self.source)
        if spread is None or own is None:
            return gradient
        # Sequence parallelism leaves a norm's gradient as one summand a rank.
        return spread.redistribute(placements=own.placements).to_local().view_as(self.local)

    def piece(self, values: Tensor) -> Piece:
        """Where a tensor lies that is laid out as this parameter, such as itself or a moment of its gradient."""
        return Piece(local=values, global_shape=self.global_shape, offsets=self.offsets)

    def take_slice(self, whole: Tensor) -> Tensor:
        """This rank's slice of a whole tensor."""
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offsets, self.local.shape, strict=True))]
