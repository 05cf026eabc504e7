"""One rank of `benchmarks.local_updates`: learners that meet at every step or every few take turns.

`python -m benchmarks.local_updates_gang ROUNDS`, in a gang's environment; rank 0 prints what each turn of
`EVERY_STEPS` steps took, and what left the first rank's host, by way.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.communication_gang import sent_bytes
from benchmarks.exact_gang import MODELS, SHAPE
from headway.data_contracts.store.documents import Frozen
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.engine.choose_learner import new_learner
from headway.training.engine.island_learner import IslandLearner
from headway.training.engine.learner import Learner
from headway.training.ranks.distributed import ProcessGroup, enable_determinism, init_process_group
from headway.training.recipes.load import load_recipe

MODEL = MODELS["1 M"]
NUM_REPLICAS, MICRO_BATCH = 4, 2
EVERY_STEPS, DELAY_STEPS = 10, 5
EVERY_STEP, EVERY_STEP_INT8, APART = "every step, fp32", "every step, int8", f"H {EVERY_STEPS}, fp32"
APART_INT8, LATE = f"H {EVERY_STEPS}, int8", f"H {EVERY_STEPS}, fp32, {DELAY_STEPS} steps late"
WAYS: dict[str, Mapping[str, Any]] = {
    EVERY_STEP: {},
    EVERY_STEP_INT8: {"gradient_compression": {"kind": "int8"}},
    APART: {"sync": {"every_steps": EVERY_STEPS}},
    APART_INT8: {"sync": {"every_steps": EVERY_STEPS, "movements": "int8"}},
    LATE: {"sync": {"every_steps": EVERY_STEPS, "delay_steps": DELAY_STEPS}},
}
"""By name, how the specification differs from the first one's."""


class Taken(Frozen):
    """What one turn of `EVERY_STEPS` steps cost."""

    wall_s: float
    """From a barrier until the last rank has taken them."""
    cpu_s: float
    """Of this rank's processor."""
    left_host_bytes: int
    """What the first rank's host sent to others; everything but loopback."""
    calls: dict[str, int]
    """Of this rank, by kind of collective."""
    apart_s: float | None
    """A step in which ranks did not meet, the median; None: they met in all."""


def main() -> None:
    rounds = int(sys.argv[1])
    enable_determinism(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with init_process_group(rank=rank, world_size=world_size) as process_group:
        specs = {name: specification(changes) for name, changes in WAYS.items()}
        learners = {name: steps(spec, process_group) for name, spec in specs.items()}
        found: dict[str, list[Taken]] = {name: [] for name in WAYS}
        for name, spec in specs.items():
            # A turn ends when movements have arrived, so that none travel while it is another's.
            delay_steps = 0 if spec.sync is None else spec.sync.delay_steps
            for _ in range(EVERY_STEPS + delay_steps):
                next(learners[name])
        for _ in range(rounds):
            for name, learner in learners.items():
                found[name].append(taken(learner, process_group))
        if process_group.leads:
            print(json.dumps({name: [each.model_dump() for each in turns] for name, turns in found.items()}))


def specification(changes: Mapping[str, Any]) -> TrainingSpec:
    given: dict[str, Any] = {
        "recipe": RecipeSpec(model=MODEL),
        "optimizer": OptimizerSpec(kind="adamw", lr=1e-3),
        "max_steps": 1_000_000,
        "global_batch_sequences": NUM_REPLICAS * MICRO_BATCH,
        "micro_batch_sequences": MICRO_BATCH,
    }
    return TrainingSpec.model_validate(given | dict(changes))


def steps(spec: TrainingSpec, process_group: ProcessGroup) -> Iterator[bool]:
    """Of a learner of its own, one after another. Yields behind each whether ranks met."""
    learner = new_learner(load_recipe("language-model", spec.recipe.model, SHAPE), spec, process_group)
    draw = torch.Generator().manual_seed(1)
    rows = torch.randint(SHAPE.vocab_size, (NUM_REPLICAS, MICRO_BATCH, SHAPE.context_tokens + 1), generator=draw)
    own = [{"tokens": rows[replica]} for replica in learner.share.replicas(NUM_REPLICAS)]
    return rounds_apart(learner, own) if isinstance(learner, IslandLearner) else steps_together(learner, own)


def steps_together(learner: Learner, own: list[dict[str, Tensor]]) -> Iterator[bool]:
    done = 0
    while True:
        sums = learner.exchange(learner.backward(done, own), stop=False)
        learner.update(done, sums, learner.gradient_norm(sums))
        done += 1
        yield True


def rounds_apart(learner: IslandLearner, own: list[dict[str, Tensor]]) -> Iterator[bool]:
    done = 0
    while True:
        end = learner.round_end(done, lambda _done: False)
        learner.begin_round(done)
        while done < end:
            learner.train_apart(done, own, NUM_REPLICAS)
            done += 1
            if done == end:
                learner.meet(stop=False, save=False)
                learner.move_together(end)
            yield done == end


def taken(learner: Iterator[bool], process_group: ProcessGroup) -> Taken:
    process_group.barrier()
    process_group.traffic.take()
    apart_s: list[float] = []
    before, started_s, cpu_started_s = sent_bytes(), time.perf_counter(), time.process_time()
    for _ in range(EVERY_STEPS):
        step_started_s = time.perf_counter()
        if not next(learner):
            apart_s.append(time.perf_counter() - step_started_s)
    own_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_started_s
    calls = {kind: each.num_calls for kind, each in process_group.traffic.take().items()}
    last_s = float(process_group.gather(torch.tensor([[own_s]], dtype=torch.float64)).max())
    process_group.barrier()  # what the other host sent is on its way, too
    return Taken(
        wall_s=last_s,
        cpu_s=cpu_s,
        left_host_bytes=sent_bytes() - before,
        calls=calls,
        apart_s=statistics.median(apart_s) if apart_s else None,
    )


if __name__ == "__main__":
    main()
