"""What the gradient noise scale costs: training steps with it beside steps without, turn about.

    python -m benchmarks.gradient_noise [--json] [--rounds 20]

Seconds of the processor. A step has two replicas, so that measuring one is the largest part that it can be; models of
many small tensors pay most, since it takes some calls for each tensor.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.figures import Figure, show
from headway.training.config.shapes import DataShape, TabularShape, TokenShape
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.engine.learner import Learner
from headway.training.parallel import gradients
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from headway.training.recipes.load import load_recipe

LIMIT = "<= 1.05"
VOCABULARY, CONTEXT = 2000, 128
NEVER = 1 << 40
STEPS = gradients.MEASURED_EVERY_STEPS
"""Of a slice; one of them is measured."""
DRAW = torch.Generator().manual_seed(0)


class Case(NamedTuple):
    recipe: RecipeSpec
    shape: DataShape
    rows: int
    """Of a replica."""
    slices: int
    """In a row: small steps are over too soon to be timed alone."""
    batch: Callable[[int], dict[str, Tensor]]


def tokens(rows: int) -> dict[str, Tensor]:
    return {"tokens": torch.randint(VOCABULARY, (rows, CONTEXT + 1), generator=DRAW)}


def table(rows: int) -> dict[str, Tensor]:
    ids = torch.randint(3, (rows, 5), generator=DRAW)
    label = torch.randint(2, (rows, 1), generator=DRAW)
    return {"numeric": torch.randn(rows, 15, generator=DRAW), "categorical": ids, "label": label}


CASES = {
    "1.3 M weights, a row of 128 tokens": Case(
        RecipeSpec(name="language-model", model={"width": 128, "depth": 4, "heads": 4, "hidden": 352}),
        TokenShape(vocab_size=VOCABULARY, context_tokens=CONTEXT),
        1,
        1,
        tokens,
    ),
    "37,000 weights, 64 rows of a table": Case(
        RecipeSpec(name="tabular-classifier", model={"width": 64, "depth": 2}),
        TabularShape(num_numeric=15, cardinalities=(3,) * 5, num_classes=2),
        64,
        5,
        table,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    enable_determinism(1)
    found = [
        Figure(name=name, value=ratio(case, arguments.rounds), ratio_to="steps without it", target=LIMIT)
        for name, case in CASES.items()
    ]
    show(found, title="Gradient noise scale", as_json=arguments.json, libraries=("torch",))


def ratio(case: Case, rounds: int) -> float:
    spec = TrainingSpec(recipe=case.recipe, global_batch_sequences=2 * case.rows, micro_batch_sequences=case.rows)
    recipe = load_recipe(case.recipe.name, case.recipe.model, case.shape)
    learner = Learner(recipe, spec, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))
    batches = [case.batch(case.rows) for _ in range(2)]

    def taken_s(every_steps: int) -> float:
        gradients.MEASURED_EVERY_STEPS = every_steps
        started_s = time.process_time()
        for step in range(STEPS * case.slices):
            sums = learner.exchange(learner.backward(step, batches), stop=False)
            learner.update(step, sums, learner.gradient_norm(sums))
        return time.process_time() - started_s

    taken_s(STEPS)  # warms up
    ratios = []
    for number in range(rounds):
        # Whoever comes second finds a warmer processor.
        order = (STEPS, NEVER) if number % 2 else (NEVER, STEPS)
        seconds = {every: taken_s(every) for every in order}
        ratios.append(seconds[STEPS] / seconds[NEVER])
    return statistics.median(ratios)


if __name__ == "__main__":
    main()
