"""One rank of `benchmarks.unequal_ranks`: exact replicas in equal shares, and in shares by speed, take steps in turn.

Ranks that do not wait for each other make updates of as many rows beside them.

`python -m benchmarks.unequal_gang REQUEST`, with a `Request` as JSON, in a gang's environment; rank 0 prints what every
step took, by arm.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.exact_gang import MODELS, SHAPE
from headway.data_contracts.store.documents import Frozen
from headway.training.config.communication_spec import AsynchronousSpec
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.engine.asynchronous_learner import AsynchronousLearner, WorkItem
from headway.training.engine.learner import Learner
from headway.training.ranks.distributed import enable_determinism, init_process_group
from headway.training.recipes.load import load_recipe

NUM_WARM_UP = 6
STEPS_A_TURN, UPDATES_A_TURN = 2, 12
ASYNCHRONOUS = "asynchronous"


class Request(Frozen):
    replicas: int
    micro_batch: int
    model: str
    rounds: int
    moves: bool
    """Whether there are further arms: in shares by what replicas took each rank before, and asynchronous."""
    groups: tuple[str, ...]
    """Of each rank, the control group that holds its share of a processor."""


class Found(Frozen):
    steps_s: dict[str, list[float]]
    shares: dict[str, list[int]]


def main() -> None:
    request = Request.model_validate_json(sys.argv[1])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    Path(request.groups[rank], "cgroup.procs").write_text(str(os.getpid()))
    enable_determinism(1)
    with init_process_group(rank=rank, world_size=world_size) as process_group:
        spec = TrainingSpec(
            recipe=RecipeSpec(model=MODELS[request.model]),
            optimizer=OptimizerSpec(kind="adamw", lr=1e-3),
            global_batch_sequences=request.replicas * request.micro_batch,
            micro_batch_sequences=request.micro_batch,
        )
        learner = Learner(load_recipe("language-model", spec.recipe.model, SHAPE), spec, process_group)
        not_waiting = {
            "parallel": ParallelSpec(mode="fast"),
            "asynchronous": AsynchronousSpec(meet_every_steps=UPDATES_A_TURN),
        }
        workers = AsynchronousLearner(
            load_recipe("language-model", spec.recipe.model, SHAPE), spec.model_copy(update=not_waiting), process_group
        )
        draw = torch.Generator().manual_seed(1)
        rows = torch.randint(
            SHAPE.vocab_size, (request.replicas, request.micro_batch, SHAPE.context_tokens + 1), generator=draw
        )
        learner.times_replicas = True
        taken: list[tuple[float, ...]] = []

        def step(number: int) -> float:
            process_group.barrier()
            started_s = time.perf_counter()
            batches = [{"tokens": rows[replica]} for replica in learner.share.replicas(request.replicas)]
            sums = learner.exchange(learner.backward(number, batches, request.replicas), stop=False)
            learner.update(number, sums, learner.gradient_norm(sums))
            taken.append(sums.replica_s or ())
            return time.perf_counter() - started_s

        def update_s(first: int) -> float:
            """Of each, on the average of a turn, with its meeting."""
            process_group.barrier()
            started_s = time.perf_counter()
            batches = [{"tokens": rows[replica]} for replica in range(request.replicas)]
            numbers = range(first, first + UPDATES_A_TURN)
            workers.train_round(first, [WorkItem(number, request.replicas, lambda: batches) for number in numbers])
            return (time.perf_counter() - started_s) / UPDATES_A_TURN

        for number in range(NUM_WARM_UP):
            step(number)
        arms: dict[str, tuple[float, ...]] = {"equal": ()}
        if request.moves:
            # The first steps are slow everywhere.
            medians = [statistics.median(of_rank) for of_rank in zip(*taken[2:], strict=True)]
            arms["by speed"] = tuple(1 / each for each in medians)
        found = Found(steps_s={name: [] for name in arms}, shares={})
        number = NUM_WARM_UP
        if request.moves:
            found.steps_s[ASYNCHRONOUS] = []
        for turn in range(request.rounds):
            if request.moves:
                found.steps_s[ASYNCHRONOUS].append(update_s(turn * UPDATES_A_TURN))
            for name, speeds in arms.items():
                learner.share_by(speeds)
                bounds = learner.share.bounds(request.replicas)
                found.shares[name] = [end - first for first, end in pairwise(bounds)]
                for _ in range(STEPS_A_TURN):
                    found.steps_s[name].append(step(number))
                    number += 1
        if process_group.leads:
            print(json.dumps(found.model_dump()))


if __name__ == "__main__":
    main()
