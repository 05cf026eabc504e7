"""What a language model loses by how its gradients travel and how often: loss after as many steps on the same rows.

`python -m benchmarks.communication_loss [--steps N] [--seeds N] [--json]`

A byte model of Python's own library, trained in one process: the bits are those of any number of ranks. Loss is that of
rows that nothing was trained on, in nats a byte.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import Figure, show
from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec
from headway.training.config.shapes import TokenShape
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.engine.choose_learner import new_learner
from headway.training.engine.island_learner import IslandLearner
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from headway.training.recipes.load import load_recipe

SHAPE = TokenShape(vocab_size=256, context_tokens=64)
MODEL: dict[str, Any] = {"width": 96, "depth": 2, "heads": 4, "hidden": 256, "tied_embeddings": True}
MICRO_BATCH, BATCH, SMALL_BATCH = 4, 64, 16
HELD_OUT_ROWS = 512
MUON = OptimizerSpec(weight_decay=0.1)
DILOCO = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
MILD = {"momentum": 0.5}


def apart(every_steps: int, *, start_after_steps: int = 50, rows: int = SMALL_BATCH, **others: Any) -> dict[str, Any]:
    """Four islands, of rows of the batch."""
    sync = {"every_steps": every_steps, "start_after_steps": start_after_steps, **others}
    return {"global_batch_sequences": rows, "sync": sync}


BASE, SMALL, SMALL_MUON = "fp32", "16 rows, fp32", "16 rows, Muon"
WAYS: dict[str, Mapping[str, Any]] = {
    BASE: {},
    "bf16": {"gradient_compression": "bf16"},
    "int32": {"gradient_compression": {"kind": "int32"}},
    "int8, 4 islands": {"gradient_compression": {"kind": "int8"}},
    "int8, 4 islands, no feedback": {"gradient_compression": {"kind": "int8", "feedback": False}},
    "int8, 16 islands": {"gradient_compression": {"kind": "int8", "islands": 16}},
    "int8, 16 islands, no feedback": {"gradient_compression": {"kind": "int8", "islands": 16, "feedback": False}},
    "H 10 after 50": apart(10, rows=BATCH),
    "H 10 after 50, int8": apart(10, rows=BATCH, movements="int8"),
    "H 10 after 50, outer 1, 0.5": apart(10, rows=BATCH, outer=MILD),
    "16 rows, int4, 4 islands": {
        "global_batch_sequences": SMALL_BATCH,
        "gradient_compression": {"kind": "int4"},
    },
    "16 rows, int4, 2 islands": {
        "global_batch_sequences": SMALL_BATCH,
        "gradient_compression": {"kind": "int4", "islands": 2},
    },
    "16 rows, H 10 after 50, int4": apart(10, movements="int4"),
    SMALL: {"global_batch_sequences": SMALL_BATCH},
    "16 rows, H 5 after 50": apart(5),
    "16 rows, H 10 after 50": apart(10),
    "16 rows, H 10 after 50, int8": apart(10, movements="int8"),
    "16 rows, H 20 after 50": apart(20),
    "16 rows, H 40 after 50": apart(40),
    "16 rows, H 10": apart(10, start_after_steps=0),
    "16 rows, H 10 after 50, outer 1, 0.5": apart(10, outer=MILD),
    "16 rows, H 10 after 50, outer 0.7, 0.9 Nesterov": apart(10, outer=DILOCO),
    "16 rows, H 40 after 50, outer 1, 0.5": apart(40, outer=MILD),
    "16 rows, H 40 after 50, outer 0.7, 0.9 Nesterov": apart(40, outer=DILOCO),
    "16 rows, H 20 after 50, 4 fragments, 2 steps late": apart(20, fragments=4, delay_steps=2),
    SMALL_MUON: {"global_batch_sequences": SMALL_BATCH, "optimizer": MUON},
    "16 rows, Muon, H 10 after 50": {"optimizer": MUON, **apart(10)},
}
"""By name, how the specification differs from `fp32`'s, of 64 rows. H: steps that islands train apart."""
RATIOS = {
    **{way: (SMALL if way.startswith("16 rows") else BASE, "") for way in WAYS if way not in (BASE, SMALL, SMALL_MUON)},
    "int8, 4 islands": (BASE, "<= 1.005"),
    "int8, 16 islands": (BASE, "<= 1.01"),
    "int32": (BASE, "<= 1.005"),
    "H 10 after 50": (BASE, "<= 1.04"),
    "H 10 after 50, int8": ("H 10 after 50", "<= 1.001"),
    "16 rows, H 10 after 50": (SMALL, "<= 1.04"),
    "16 rows, H 10 after 50, int8": ("16 rows, H 10 after 50", "<= 1.001"),
    "16 rows, Muon, H 10 after 50": (SMALL_MUON, ""),
}
"""Of each way, whose loss it is divided by, and the target."""


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
    needed = list(arguments.only)
    for way in needed:  # grows: what each is divided by
        needed += [RATIOS[way][0]] if way in RATIOS else []
    for way in (way for way in WAYS if way in needed):
        losses[way] = [trained(text, WAYS[way], steps=arguments.steps, seed=seed) for seed in range(arguments.seeds)]
        print(f"{way}: {', '.join(f'{loss:.4f}' for loss in losses[way])}", file=sys.stderr)
    show(figures(losses), title=f"Loss after {arguments.steps} steps", as_json=arguments.json, libraries=("torch",))


def figures(losses: Mapping[str, list[float]]) -> list[Figure]:
    """Of the mean over seeds."""
    means = {way: math.fsum(found) / len(found) for way, found in losses.items()}
    made = []
    for way, mean in means.items():
        if way not in RATIOS:
            made.append(Figure(name=way, value=mean, unit="nats/byte"))
            continue
        base, target = RATIOS[way]
        made.append(Figure(name=way, value=mean / means[base], ratio_to=base, target=target))
    return made


def library() -> Tensor:
    """The source of Python's library as rows of bytes (rows, context + 1), in one order everywhere."""
    folder = Path(sysconfig.get_path("stdlib"))
    source = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    length = SHAPE.context_tokens + 1
    rows = torch.frombuffer(bytearray(source), dtype=torch.uint8)[: len(source) // length * length].view(-1, length)
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))].long()


def trained(rows: Tensor, changes: Mapping[str, Any], *, steps: int, seed: int) -> float:
    given: dict[str, Any] = {
        "recipe": RecipeSpec(name="language-model", model=MODEL),
        "optimizer": OptimizerSpec(kind="adamw", lr=3e-3, weight_decay=0.1),
        "schedule": ScheduleSpec(warmup_steps=10),
        "max_steps": steps,
        "global_batch_sequences": BATCH,
        "micro_batch_sequences": MICRO_BATCH,
        "seed": seed,
    }
    spec = TrainingSpec.model_validate(given | dict(changes))
    recipe = load_recipe(spec.recipe.name, spec.recipe.model, SHAPE)
    learner = new_learner(recipe, spec, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))
    held_out, kept = rows[:HELD_OUT_ROWS], rows[HELD_OUT_ROWS:]
    draw = torch.Generator().manual_seed(seed)

    def micro_batches() -> list[dict[str, Tensor]]:
        batch = kept[torch.randint(len(kept), (spec.global_batch_sequences,), generator=draw)]
        return [{"tokens": part} for part in torch.split(batch, MICRO_BATCH)]

    done = 0
    while done < steps:
        if isinstance(learner, IslandLearner) and learner.is_apart(done):
            done = take_round(learner, micro_batches, done)
            continue
        sums = learner.exchange(learner.backward(done, micro_batches()), stop=False)
        learner.update(done, sums, learner.gradient_norm(sums))
        done += 1
    return learner.proof_loss({"tokens": held_out})


def take_round(learner: IslandLearner, micro_batches: Callable[[], list[dict[str, Tensor]]], done: int) -> int:
    """As the engine takes one that nothing ends early. Returns how many steps are done."""
    end = learner.round_end(done, lambda _done: False)
    learner.begin_round(done)
    for step in range(done, end):
        given = micro_batches()
        learner.train_apart(step, given, len(given))
    learner.meet(stop=False, save=False)
    learner.move_together(end)
    return end


if __name__ == "__main__":
    main()
