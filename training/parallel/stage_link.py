"""What stages of a pipeline send each other: activations onwards, their gradients back.

Written out rather than taken from `torch.distributed.pipelining`, which imports torch's compiler, runs the model once
more to learn shapes, and pickles them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from headway.training.observe.telemetry import PartClock
from headway.training.observe.traffic import size_bytes
from headway.training.parallel.mesh import Mesh
from headway.training.ranks.distributed import ProcessGroup

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HEADER_LENGTH = 10


class StageLink:
    """The stages before and after this rank's. All ranks make one at once.

    Sending never waits. Each direction has a process group of its own: on one, a receive could wait behind a send that
    waits for the other side's receive.

    Args:
        clock: told what the other stages are waited for.
    """

    def __init__(self, mesh: Mesh, process_group: ProcessGroup, clock: PartClock) -> None:
        assert mesh.devices is not None
        self._device, self._traffic, self._clock = process_group.device, process_group.traffic, clock
        self._before, self._after = mesh.stage_before(process_group.rank), mesh.stage_after(process_group.rank)
        self._onwards = mesh.devices.get_group("pipeline")
        # All pipelines, since every rank has to create every group, its own or not.
        ranks = mesh.devices.mesh.movedim(0, -1).reshape(-1, mesh.shape.pipeline).tolist()
        self._back, _ = dist.new_subgroups_by_enumeration(ranks)  # type: ignore[no-untyped-call]
        self._sent: list[tuple[dist.Work | None, Tensor]] = []

    @property
    def is_first(self) -> bool:
        return self._before is None

    @property
    def is_last(self) -> bool:
        return self._after is None

    def send_activation(self, values: Tensor, *, shape_known: bool) -> None:
        """To the next stage, which is told shape and type first, unless it knows them."""
        if not shape_known:
            header = [DTYPES.index(values.dtype), values.dim(), *values.shape]
            self._send(torch.tensor(header + [0] * (HEADER_LENGTH - len(header))), self._after, self._onwards)
        # Detached: the autograd graph ends here, and the gradient comes back by a message.
        self._send(values.detach(), self._after, self._onwards)

    def receive_activation(self, *, shape_known: bool) -> Tensor:
        """From the stage before. `shape_known`: it is like the last one that came."""
        if not shape_known:
            header = torch.zeros(HEADER_LENGTH, dtype=torch.int64, device=self._device)
            self._receive(header, self._before, self._onwards)
            # As plain integers: torch's own pipelining pickles shapes.
            dtype, dimensions, *sizes = header.tolist()
            self._shape, self._dtype = sizes[:dimensions], DTYPES[dtype]
        values = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        self._receive(values, self._before, self._onwards)
        return values

    def send_gradient(self, values: Tensor) -> None:
        self._send(values, self._before, self._back)

    def receive_gradient(self, like: Tensor) -> Tensor:
        # A gradient has the shape of what was sent, so it needs no header.
        values = torch.empty_like(like, memory_format=torch.contiguous_format)
        self._receive(values, self._after, self._back)
        return values

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        with self._clock.part("sync"):
            for work, _ in self._sent:
                if work is not None:
                    work.wait()
        self._sent.clear()

    def _send(self, values: Tensor, to: int | None, group: dist.ProcessGroup) -> None:
        # `isend` reads memory as it lies; a strided view would send its neighbours.
        values = values.to(self._device).contiguous()
        self._traffic.sent(size_bytes(values))
        self._sent.append((dist.isend(values, dst=to, group=group), values))  # held until it has left

    def _receive(self, values: Tensor, source: int | None, group: dist.ProcessGroup) -> None:
        with self._clock.part("sync"), self._traffic.within("recv", 0):
            dist.recv(values, src=source, group=group)
