"""Which dimensions the ranks of a gang make up, and the arithmetic of it; no torch."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError

FILL = -1
"""As many as the world leaves."""
EXACT = {"mode", "replicate", "shard", "deferred_init"}
"""What mode `exact` can be told."""


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


class ParallelSpec(Frozen):
    mode: Literal["exact", "fast"] = Field(
        default="exact",
        description="`exact`: bits depend on no number of ranks; takes `replicate`, `shard`. `fast`: all dimensions.",
    )
    pipeline: int = Field(default=1, gt=0, description="Stages that the model's blocks are cut into.")
    replicate: int = Field(
        default=FILL, description="Copies of the model that share a batch: DDP, or HSDP with `shard`. -1: what is left."
    )
    shard: int = Field(
        default=1, description="Ranks that each keep a slice of every parameter (FSDP2). -1: what is left."
    )
    tensor: int = Field(default=1, gt=0, description="Ranks that compute every layer together (tensor parallel).")
    schedule: Literal["gpipe", "1f1b"] = Field(
        default="1f1b", description="Order of a pipeline's micro-batches: all forward first, or one forward, one back."
    )
    sequence_parallel: bool = Field(
        default=True, description="Between tensor-parallel layers, split activations by position."
    )
    loss_parallel: bool = Field(
        default=True, description="With tensor parallel: compute the loss on logits split by vocabulary."
    )
    recompute: bool = Field(
        default=False, description="Compute a block's activations again for its backward pass: less memory, more time."
    )
    deferred_init: bool = Field(
        default=True, description="Draw initial weights one at a time, and keep only this rank's slices."
    )
    reduce_every_micro_batch: bool = Field(
        default=False, description="With `shard`: keep gradients in slices while accumulating. Less memory, more bytes."
    )

    @model_validator(mode="after")
    def _dimensions_are_consistent(self) -> Self:
        for name in ("replicate", "shard"):
            if getattr(self, name) < 1 and getattr(self, name) != FILL:
                raise ValueError(f"{name} {getattr(self, name)} is no number of ranks; -1 takes what is left")
        if self.replicate == self.shard == FILL:
            raise ValueError("replicate and shard cannot both take what is left: say replicate: 1, or how many")
        if self.mode == "exact" and (changed := sorted(self.model_fields_set - EXACT - self._as_default())):
            raise ValueError(f"{', '.join(changed)}: only in mode `fast`; exact mode replicates a model, or shards it")
        return self

    def _as_default(self) -> set[str]:
        return {name for name, field in type(self).model_fields.items() if getattr(self, name) == field.default}


class MeshShape(NamedTuple):
    """Ranks in each dimension, outermost first: rank = ((pipeline * R + replicate) * S + shard) * T + tensor."""

    pipeline: int
    replicate: int
    shard: int
    tensor: int

    @property
    def num_shares(self) -> int:
        """Ranks, or groups of ranks, that read different rows."""
        return self.replicate * self.shard

    def __str__(self) -> str:
        sizes = self._asdict().items()
        return " x ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one rank"


def mesh_shape(spec: ParallelSpec, world_size: int) -> MeshShape:
    """The mesh of a world of this size.

    Raises:
        ConfigError: the dimensions do not multiply to the world.
    """
    given = [spec.pipeline, spec.replicate, spec.shard, spec.tensor]
    product = 1
    for size in given:
        product *= size if size != FILL else 1
    shape = MeshShape(*(size if size != FILL else max(1, world_size // product) for size in given))
    fits = world_size % product == 0 if FILL in given else world_size == product
    if not fits:
        message = " x ".join(f"{name} {size}" for name, size in zip(shape._fields, given, strict=True) if size != FILL)
        worlds = f"a multiple of {product}" if FILL in given else f"{product}"
        raise ConfigError(
            f"{message} = {product} ranks, and the world has {world_size}.",
            where="training.parallel",
            advice=f"Start {worlds} ranks (launch.nodes x launch.ranks_per_node), or change the dimensions.",
        )
    return shape


def mesh_that_decides_bits(spec: ParallelSpec, world_size: int) -> str:
    """The mesh in words; empty in exact mode, whose bits no number of ranks decides."""
    return "" if spec.mode == "exact" else str(mesh_shape(spec, world_size))


def shares_of(num_units: int, num_ranks: int, speeds: Sequence[float] = ()) -> tuple[int, ...]:
    """How many equal units of work each rank has, so that the one that takes longest is done as early as can be.

    Args:
        num_units: no fewer than ranks; each has one at least.
        speeds: how many units a rank does in some time, above 0; empty: all as many.
    """
    speeds = speeds or (1.0,) * num_ranks
    assert num_units >= num_ranks == len(speeds), "each rank has a unit"
    shares = [1] * num_ranks
    # Whoever would have done with one more the soonest has the next: no other way to deal them is done earlier.
    done = [(2 / speed, rank) for rank, speed in enumerate(speeds)]
    heapq.heapify(done)
    for _ in range(num_units - num_ranks):
        _, rank = done[0]
        shares[rank] += 1
        heapq.heapreplace(done, ((shares[rank] + 1) / speeds[rank], rank))
    longest = max(share / speed for share, speed in zip(shares, speeds, strict=True))
    return _aligned(num_units, [_most(longest, speed, num_units) for speed in speeds])


def replica_shares(
    num_replicas: int, num_ranks: int, *, islands: int | None, speeds: Sequence[float] = ()
) -> tuple[int, ...]:
    """How many replicas of a batch each rank has: of whole islands, where there are some.

    Where there are more ranks than islands, as many next to each other share each.
    """
    if islands and num_ranks > islands:
        of_island = num_ranks // islands
        parts = [speeds[first : first + of_island] for first in range(0, num_ranks, of_island)]
        return tuple(share for part in parts for share in shares_of(num_replicas // islands, of_island, part))
    num_units = islands or num_replicas
    return tuple(num_replicas // num_units * each for each in shares_of(num_units, num_ranks, speeds))


def _most(longest: float, speed: float, num_units: int) -> int:
    """How many of these units a rank does in that time."""
    # Of speeds that are very unlike this is beyond what integers, or fractions of a float, can count.
    number = int(min(longest * speed, num_units - 1)) + 1
    while number / speed > longest:
        number -= 1
    return number


def _aligned(num_units: int, most: Sequence[int]) -> tuple[int, ...]:
    """Shares of no more than that, which begin where large subtrees of the units do: so there are fewer of these.

    What a rank hands in of its sums is a row for each subtree.
    """
    shares, first = list[int](), 0
    for rank, own in enumerate(most):
        num_after = len(most) - rank - 1
        at_least = max(first + 1, num_units - sum(most[rank + 1 :]))
        at_most = min(first + own, num_units - num_after)
        # The number in between that the largest power of two divides.
        end = max(range(at_least, at_most + 1), key=lambda place: (place & -place, place))
        shares.append(end - first)
        first = end
    return tuple(shares)
