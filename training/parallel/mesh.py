"""The mesh of a gang's ranks, and where this rank stands in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headway.training.config.parallel import MeshShape
from headway.training.ranks.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class Mesh:
    shape: MeshShape
    place: MeshShape
    """This rank's coordinates, counted from 0."""
    devices: DeviceMesh | None
    """None for a single rank, which has no process group."""

    @property
    def share(self) -> int:
        """Which share of a batch the rank reads."""
        # Ranks of one tensor group and of one pipeline read the same share.
        return self.place.replicate * self.shape.shard + self.place.shard

    def stage_before(self, rank: int) -> int | None:
        """The rank that feeds this one; None in the first stage."""
        # Pipeline is the outermost dimension, so the stages beside this one are a whole stage's ranks away.
        return rank - self.ranks_per_stage if self.place.pipeline > 0 else None

    def stage_after(self, rank: int) -> int | None:
        """The rank that this one feeds; None in the last stage."""
        return rank + self.ranks_per_stage if self.place.pipeline < self.shape.pipeline - 1 else None

    @property
    def ranks_per_stage(self) -> int:
        return self.shape.num_shares * self.shape.tensor

    def group(self, dimension: str) -> dist.ProcessGroup | None:
        """The ranks that differ from this one in that dimension alone; None if it is alone."""
        if self.devices is None or getattr(self.shape, dimension) == 1:
            return None
        return self.devices.get_group(dimension)


def make_mesh(shape: MeshShape, process_group: ProcessGroup) -> Mesh:
    """All ranks call it at once: a process group is made for every dimension."""
    # Tensor is innermost: its ranks exchange most, and neighbours are most often on one host.
    rest, tensor = divmod(process_group.rank, shape.tensor)
    rest, shard = divmod(rest, shape.shard)
    pipeline, replicate = divmod(rest, shape.replicate)
    place = MeshShape(pipeline, replicate, shard, tensor)
    if process_group.world_size == 1:
        return Mesh(shape, place, None)
    return Mesh(shape, place, init_device_mesh(process_group.device.type, shape, mesh_dim_names=shape._fields))
