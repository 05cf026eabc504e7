"""The gang: the ranks of one attempt, which meet, agree and exchange over gloo (CPU) or NCCL (CUDA)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from headway.training.launch.base import protocol
from headway.training.observe.traffic import TrafficMeter, size_bytes
from headway.training.ranks.keyed_store import store_of_attempt
from headway.training.ranks.levels import Level, level_sizes, make_levels

COLLECTIVE_TIMEOUT_S = 120.0
"""Where nobody says it: ranks of a torchrun that was started by hand."""
PATIENCE_S = 3600.0
"""How much later than its peers a rank may be outside of steps, where one may have far more to read or write than
another. Under a guard nobody waits so long: an attempt in which no rank says that it gets on is ended well before."""


NewGroup = Callable[[list[int]], dist.ProcessGroup]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessGroup:
    """Who this rank is, and how ranks meet outside of steps: patiently, on the CPU."""

    rank: int
    world_size: int
    device: torch.device
    meetings: dist.ProcessGroup | None = None
    """None: the default group, which is not patient."""
    levels: tuple[Level, ...] = field(default=(), compare=False)
    """On which sums of gradients are made where a host has several ranks, innermost first; empty: on one."""
    traffic: TrafficMeter = field(default_factory=TrafficMeter, compare=False)
    """What the engine's collectives cost this rank."""
    new_group: NewGroup = field(default=partial(dist.new_group, use_local_synchronization=True), compare=False)
    """Makes a group of these ranks, which all of them call at once."""
    _groups: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict, compare=False)

    def group_of(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """The group of these ranks, which all of them call at once; made once."""
        made = self._groups.get(tuple(ranks))
        return made or self._groups.setdefault(tuple(ranks), self.new_group(list(ranks)))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def gather(self, values: Tensor) -> Tensor:
        """The rows (n, ...) of all ranks, (world_size * n, ...), in rank order, on every rank."""
        if self.world_size == 1:
            return values
        gathered = values.new_empty((self.world_size * values.shape[0], *values.shape[1:]))
        with self.traffic.within("all_gather", (self.world_size - 1) * size_bytes(values)):
            dist.all_gather_single(gathered, values, group=self.meetings)
        return gathered

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, of any length, in rank order. In tensors: torch's object collectives would pickle."""
        if self.world_size == 1:
            return [data]
        lengths = self.gather(torch.tensor([len(data)]))
        padded = torch.zeros((1, max(1, int(lengths.max()))), dtype=torch.uint8)
        if data:
            padded[0, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = self.gather(padded)
        return [row[:length].numpy().tobytes() for row, length in zip(rows, lengths.tolist(), strict=True)]

    def from_leader(self, value: bytes) -> bytes:
        """Rank 0's bytes, on every rank; all must pass a value of the same length."""
        if self.world_size == 1:
            return value
        buffer = torch.tensor(list(value), dtype=torch.uint8)
        with self.traffic.within("broadcast", self.leads * size_bytes(buffer)):
            dist.broadcast(buffer, src=0, group=self.meetings)
        return bytes(buffer.tolist())

    def barrier(self) -> None:
        if self.world_size > 1:
            with self.traffic.within("barrier", 0):
                dist.barrier(group=self.meetings)


def choose_device() -> torch.device:
    """This rank's own GPU, where its machine has one for each of its ranks; else the CPU, for all of them."""
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    per_agent = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    ranks_here = int(os.environ.get(protocol.RANKS_HERE, per_agent))
    # All on the CPU: a gang of both would wait for ever, since gloo and NCCL form no common group.
    if ranks_here > num_devices:
        return torch.device("cpu")
    # Agents that share a machine all count their ranks from 0.
    first = int(os.environ.get(protocol.NODE, "0")) * per_agent if ranks_here > per_agent else 0
    device = torch.device("cuda", first + int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def enable_determinism(num_threads: int) -> None:
    """Ask torch for the same bits each time; threads split reductions, so their number is fixed too."""
    torch.set_num_threads(num_threads)
    # cuBLAS gives equal bits only with a workspace of fixed size, read when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Not torch.use_deterministic_algorithms, which imports the compiler to tell it, for more than a second.
    torch._C._set_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time
    # Benchmarking chooses kernels by their time, so another run may get other bits.
    torch.backends.cudnn.benchmark = False


@contextlib.contextmanager
def init_process_group(*, rank: int, world_size: int) -> Iterator[ProcessGroup]:
    """Join the process group that the launcher's environment describes, and leave it at the end.

    A world of one needs no process group and makes none.
    """
    device = choose_device()
    if world_size == 1:
        yield ProcessGroup(rank=rank, world_size=world_size, device=device, traffic=TrafficMeter(device))
        return
    with store_of_attempt(rank, world_size, PATIENCE_S) as store:
        timeout = collective_timeout()
        backend = "nccl" if device.type == "cuda" else "gloo"
        if store is None:  # torchrun was started by hand, and says by the environment where ranks meet
            dist.init_process_group(backend, timeout=timeout)
        else:
            dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=world_size)
        # gloo also beside NCCL: meetings are of CPU tensors, and may take as long as a read of a whole checkpoint.
        meetings = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_S))
        # Of its members alone: with a thousand ranks each would wait for groups that it is not in.
        new_group = partial(dist.new_group, backend=backend, timeout=timeout, use_local_synchronization=True)
        try:
            process_group = ProcessGroup(
                rank=rank,
                world_size=world_size,
                device=device,
                meetings=meetings,
                traffic=TrafficMeter(device),
                new_group=new_group,
            )
            levels = make_levels(_agreed(level_sizes(os.environ, world_size), process_group), rank, new_group)
            yield replace(process_group, levels=levels)
            process_group.barrier()  # nobody leaves while another still needs it
        finally:
            dist.destroy_process_group()


def links_of(process_group: ProcessGroup) -> dist.ProcessGroup | None:
    """For messages from one rank to another, of CPU tensors; all ranks call it at once. None: this one is alone."""
    if process_group.world_size == 1:
        return None
    links: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=collective_timeout())
    return links


def collective_timeout() -> timedelta:
    return timedelta(seconds=float(os.environ.get(protocol.COLLECTIVE_TIMEOUT_S, COLLECTIVE_TIMEOUT_S)))


def _agreed(sizes: dict[str, int], process_group: ProcessGroup) -> dict[str, int]:
    """The levels that this rank sees, if all see the same; of a torchrun by hand hosts may have unequal numbers."""
    own = torch.tensor([[*sizes.values(), 0, 0, 0][:3]])
    return sizes if bool((process_group.gather(own) == own).all()) else {}
