"""What a language model loses by how its gradients travel: loss after as many steps on the same rows.

`python -m benchmarks.communication_loss [--steps N] [--seeds N] [--json]`

A byte model of Python's own library, trained in one process: the bits are those of any number of ranks. Loss is that of
rows that nothing was trained on, in nats a byte.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import Figure, show
from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec
from headway.training.config.shapes import TokenShape
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.engine.learner import Learner
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from headway.training.recipes.load import load_recipe

SHAPE = TokenShape(vocab_size=256, context_tokens=64)
MODEL: dict[str, Any] = {"width": 96, "depth": 2, "heads": 4, "hidden": 256, "tied_embeddings": True}
MICRO_BATCH, NUM_REPLICAS = 4, 16
HELD_OUT_ROWS = 512
WAYS: dict[str, Any] = {
    "fp32": "none",
    "bf16": "bf16",
    "int32": {"kind": "int32"},
    "int8, 4 islands": {"kind": "int8"},
    "int8, 4 islands, no feedback": {"kind": "int8", "feedback": False},
    "int8, 16 islands": {"kind": "int8", "islands": 16},
    "int8, 16 islands, no feedback": {"kind": "int8", "islands": 16, "feedback": False},
}
TARGETS = {"int8, 4 islands": "<= 1.005", "int8, 16 islands": "<= 1.01", "int32": "<= 1.005"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    enable_determinism(1)
    text = library()
    losses: dict[str, list[float]] = {}
    for way in {"fp32": None, **dict.fromkeys(arguments.only)}:
        losses[way] = [trained(text, WAYS[way], steps=arguments.steps, seed=seed) for seed in range(arguments.seeds)]
        print(f"{way}: {', '.join(f'{loss:.4f}' for loss in losses[way])}", file=sys.stderr)
    show(figures(losses), title=f"Loss after {arguments.steps} steps", as_json=arguments.json, libraries=("torch",))


def figures(losses: Mapping[str, list[float]]) -> list[Figure]:
    """Of the mean over seeds."""
    base = math.fsum(losses["fp32"])
    made = [Figure(name="fp32", value=base / len(losses["fp32"]), unit="nats/byte")]
    return made + [
        Figure(name=way, value=math.fsum(found) / base, ratio_to="fp32", target=TARGETS.get(way, ""))
        for way, found in losses.items()
        if way != "fp32"
    ]


def library() -> Tensor:
    """The source of Python's library as rows of bytes (rows, context + 1), in one order everywhere."""
    folder = Path(sysconfig.get_path("stdlib"))
    source = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    length = SHAPE.context_tokens + 1
    rows = torch.frombuffer(bytearray(source), dtype=torch.uint8)[: len(source) // length * length].view(-1, length)
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))].long()


def trained(rows: Tensor, compression: Any, *, steps: int, seed: int) -> float:
    spec = TrainingSpec(
        recipe=RecipeSpec(name="language-model", model=MODEL),
        optimizer=OptimizerSpec(kind="adamw", lr=3e-3, weight_decay=0.1),
        schedule=ScheduleSpec(warmup_steps=10),
        max_steps=steps,
        global_batch_sequences=MICRO_BATCH * NUM_REPLICAS,
        micro_batch_sequences=MICRO_BATCH,
        gradient_compression=compression,
        seed=seed,
    )
    recipe = load_recipe(spec.recipe.name, spec.recipe.model, SHAPE)
    learner = Learner(recipe, spec, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))
    held_out, given = rows[:HELD_OUT_ROWS], rows[HELD_OUT_ROWS:]
    draw = torch.Generator().manual_seed(seed)
    for step in range(steps):
        batch = given[torch.randint(len(given), (spec.global_batch_sequences,), generator=draw)]
        micro_batches = [{"tokens": part} for part in torch.split(batch, MICRO_BATCH)]
        sums = learner.exchange(learner.backward(step, micro_batches), stop=False)
        learner.update(step, sums, learner.gradient_norm(sums))
    return learner.proof_loss({"tokens": held_out})


if __name__ == "__main__":
    main()
