"""One rank of `benchmarks.exact`: exact replicas and torch's DDP, or exact shards and FSDP2, take steps in turn.

`python -m benchmarks.exact_gang REQUEST RANK`, with a `Request` as JSON; rank 0 prints what every step took, by arm.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from headway.data_contracts.store.documents import Frozen
from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec
from headway.training.config.parallel import FILL, ParallelSpec
from headway.training.config.shapes import TokenShape
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.engine.learner import Learner
from headway.training.optimizers.scheduled import ScheduledOptimizer
from headway.training.parallel.strategy import UnshardedModel
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from headway.training.recipes.load import load_recipe

SHAPE = TokenShape(vocab_size=1024, context_tokens=64)
MODELS: dict[str, dict[str, bool | int | float | str]] = {
    "1 M": {"width": 128, "depth": 5, "heads": 2, "hidden": 352},
    "5 M": {"width": 256, "depth": 6, "heads": 4, "hidden": 704},
    "20 M": {"width": 512, "depth": 6, "heads": 8, "hidden": 1408},
}
NUM_WARM_UP = 2
DDP_BUCKET_MB, SMALL_BUCKET_MB = 25, 2
"""DDP's own choice, and about exact mode's."""


class Request(Frozen):
    world_size: int
    replicas_per_rank: tuple[int, ...]
    is_sharded: bool = False
    micro_batch: int = 8
    model: str = "5 M"
    rounds: int = 10
    master: str = "127.0.0.1"
    port: int = 0


Arm = Callable[[int], None]
Taken = dict[str, list[tuple[float, float]]]
"""By arm, of every step: seconds from a barrier to its end, and the rank's processor seconds."""


def main() -> None:
    request, rank = Request.model_validate_json(sys.argv[1]), int(sys.argv[2])
    enable_determinism(1)
    store = TCPStore(request.master, request.port, request.world_size, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=request.world_size)
    process_group = ProcessGroup(rank=rank, world_size=request.world_size, device=torch.device("cpu"))
    found = {str(count): compare(request, process_group, count) for count in request.replicas_per_rank}
    if process_group.leads:
        print(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes abort at teardown


def compare(request: Request, process_group: ProcessGroup, count: int) -> Taken:
    """Every round takes one step of each arm."""
    spec = TrainingSpec(
        recipe=RecipeSpec(model=MODELS[request.model]),
        optimizer=OptimizerSpec(kind="adamw", lr=1e-3),
        schedule=ScheduleSpec(),
        global_batch_sequences=request.world_size * count * request.micro_batch,
        micro_batch_sequences=request.micro_batch,
    )
    draw = torch.Generator().manual_seed(process_group.rank)
    rows = torch.randint(SHAPE.vocab_size, (count * request.micro_batch, SHAPE.context_tokens + 1), generator=draw)
    arms = (
        sharded_arms(spec, process_group, rows, count)
        if request.is_sharded
        else replicated_arms(spec, process_group, rows, count)
    )
    taken: Taken = {name: [] for name in arms}
    names = list(arms)
    for step in range(NUM_WARM_UP + request.rounds):
        # Turn about, also in who comes after whom.
        for name in names[step % len(names) :] + names[: step % len(names)]:
            dist.barrier()
            started_s, began_cpu_s = time.perf_counter(), time.process_time()
            arms[name](step)
            if step >= NUM_WARM_UP:
                taken[name].append((time.perf_counter() - started_s, time.process_time() - began_cpu_s))
    return taken


def replicated_arms(spec: TrainingSpec, process_group: ProcessGroup, rows: Tensor, count: int) -> dict[str, Arm]:
    arms = {"exact": headways_arm(spec, process_group, rows, count), "ddp": ddp_arm(spec, rows, count, DDP_BUCKET_MB)}
    arms["ddp, small buckets"] = ddp_arm(spec, rows, count, SMALL_BUCKET_MB)
    for fewer in (2**exponent for exponent in range(int(math.log2(count)))):
        arms[f"ddp, {fewer} micro-batches"] = ddp_arm(spec, rows, fewer, DDP_BUCKET_MB)
    return arms


def sharded_arms(spec: TrainingSpec, process_group: ProcessGroup, rows: Tensor, count: int) -> dict[str, Arm]:
    """FSDP2 is mode `fast`, which adds little to it, with gradients kept whole or in slices between micro-batches."""
    optimizer = spec.optimizer.model_copy(update={"implementation": "foreach"})
    shards = {
        "exact": ParallelSpec(replicate=1, shard=FILL),
        "fsdp2": ParallelSpec(mode="fast", replicate=1, shard=FILL),
        "fsdp2, slices": ParallelSpec(mode="fast", replicate=1, shard=FILL, reduce_every_micro_batch=True),
    }
    return {
        name: headways_arm(
            spec.model_copy(update={"optimizer": optimizer, "parallel": parallel}), process_group, rows, count
        )
        for name, parallel in shards.items()
    }


def headways_arm(spec: TrainingSpec, process_group: ProcessGroup, rows: Tensor, count: int) -> Arm:
    learner = Learner(load_recipe("language-model", spec.recipe.model, SHAPE), spec, process_group)
    batches = [{"tokens": part} for part in rows.chunk(count)]

    def step(number: int) -> None:
        sums = learner.exchange(learner.backward(number, batches), stop=False)
        learner.update(number, sums, learner.gradient_norm(sums))

    return step


def ddp_arm(spec: TrainingSpec, rows: Tensor, count: int, bucket_mb: int) -> Arm:
    """A hand-written loop: accumulation without synchronisation, clipping, the same optimizer."""
    recipe = load_recipe("language-model", spec.recipe.model, SHAPE)
    torch.manual_seed(0)
    model = recipe.build()
    parallel = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    laid = UnshardedModel()
    laid.model = model
    optimizer = ScheduledOptimizer(laid, recipe, spec)
    batches: Sequence[dict[str, Tensor]] = [{"tokens": part} for part in rows.chunk(count)]
    num_tokens = rows.shape[0] * SHAPE.context_tokens

    def step(number: int) -> None:
        model.zero_grad()
        for index, batch in enumerate(batches):
            last = index == len(batches) - 1
            with contextlib.nullcontext() if last else parallel.no_sync():
                nats = recipe.losses(parallel, batch).nats
                (nats.sum() / num_tokens).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.optimizer.gradient_clip)
        optimizer.step(number)

    return step


if __name__ == "__main__":
    main()
