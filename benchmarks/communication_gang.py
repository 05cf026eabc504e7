"""One rank of `benchmarks.communication`: ways of summing one gradient take turns.

`python -m benchmarks.communication_gang REQUEST`, with a `Request` as JSON, in a gang's environment; rank 0 prints what
each exchange took, and what left the host of the first rank, by way.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from headway.data_contracts.store.documents import Frozen
from headway.training.config.communication_spec import IntegerCompressionSpec
from headway.training.config.training_spec import DEFAULT_BUCKET_BYTES
from headway.training.ranks.communication import Collectives, Exchange, TreeExchange, gang_levels
from headway.training.ranks.distributed import ProcessGroup, enable_determinism, init_process_group
from headway.training.ranks.integer_exchange import IntegerExchange

BUCKET_ELEMENTS = DEFAULT_BUCKET_BYTES // 4
NUM_WARM_UP = 1


class Request(Frozen):
    elements: int
    """Of the gradient, a multiple of the buckets' length."""
    rounds: int
    islands: int


class Taken(Frozen):
    """What one exchange cost."""

    wall_s: float
    """From a barrier until the last rank has the sum."""
    left_host_bytes: int
    """What the first rank's host sent to others; everything but loopback."""


Way = Callable[[], None]


def main() -> None:
    request = Request.model_validate_json(sys.argv[1])
    enable_determinism(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with init_process_group(rank=rank, world_size=world_size) as process_group:
        contenders = ways(request, process_group)
        found: dict[str, list[Taken]] = {name: [] for name in contenders}
        for number in range(NUM_WARM_UP + request.rounds):
            for name, way in contenders.items():
                cost = taken(way, process_group)
                if number >= NUM_WARM_UP:
                    found[name].append(cost)
        if process_group.leads:
            print(json.dumps({name: [each.model_dump() for each in rounds] for name, rounds in found.items()}))


def ways(request: Request, process_group: ProcessGroup) -> dict[str, Way]:
    """By name; each on buffers of its own, which are made once, as the engine's are."""
    flat = [Collectives(process_group)]
    levels = gang_levels(process_group)
    ways_of = {"fp32, one level": in_buckets(TreeExchange(flat), request, torch.float32)}
    if len(levels) > 1:
        ways_of["fp32"] = in_buckets(TreeExchange(levels), request, torch.float32)
    ways_of["bf16"] = in_buckets(TreeExchange(levels), request, torch.bfloat16)
    for kind in ("int8", "int32"):
        spec = IntegerCompressionSpec.model_validate({"kind": kind, "islands": request.islands})
        islands = request.islands // process_group.world_size
        exchange = IntegerExchange(
            spec,
            flat[0],
            TreeExchange(levels),
            islands=range(process_group.rank * islands, (process_group.rank + 1) * islands),
            length=request.elements,
            device=process_group.device,
        )
        ways_of[kind] = in_buckets(exchange, request, torch.float32, islands)
    return ways_of | {"gloo's all_reduce": all_reduced(request)}


def all_reduced(request: Request) -> Way:
    buckets = torch.split(gradient(request, torch.float32), BUCKET_ELEMENTS)

    def way() -> None:
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()

    return way


def in_buckets(exchange: Exchange, request: Request, dtype: torch.dtype, islands: int = 1) -> Way:
    rows = [gradient(request, dtype) for _ in range(islands)]
    buckets = [list(bucket) for bucket in zip(*(torch.split(row, BUCKET_ELEMENTS) for row in rows), strict=True)]

    def way() -> None:
        for bucket in buckets:
            exchange.start(bucket)
        exchange.finish()

    return way


def gradient(request: Request, dtype: torch.dtype) -> Tensor:
    return (torch.randn(request.elements) * 1e-3).to(dtype)


def taken(way: Way, process_group: ProcessGroup) -> Taken:
    process_group.barrier()
    before, started_s = sent_bytes(), time.perf_counter()
    way()
    own_s = time.perf_counter() - started_s
    last_s = float(process_group.gather(torch.tensor([[own_s]], dtype=torch.float64)).max())
    process_group.barrier()  # what other ranks of the host sent is on its way, too
    return Taken(wall_s=last_s, left_host_bytes=sent_bytes() - before)


def sent_bytes() -> int:
    """By all network cards of this host but loopback."""
    lines = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sum(int(figures.split()[8]) for name, figures in lines if name.strip() != "lo")


if __name__ == "__main__":
    main()
