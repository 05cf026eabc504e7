"""What a validation costs beside its own forward passes, on the same rows in the same blocks.

    python -m benchmarks.validation [--json] [--rounds 20]

Seconds of the processor, or of the clock on a GPU. The bare passes have their batches in memory beforehand, and add up
on the device what anybody would: one figure at the end. A validation gathers its rows out of shards, lets an average of
weights stand in for the weights, keeps every block's sums in float64 on the host, asks whether anybody wants to stop,
and writes its event. One process, turn about; medians of ratios. A run's first validation, which also fills what later
ones find in memory, is told apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.figures import Figure, show
from benchmarks.loader_data import Task, make
from headway.data_contracts.store.documents import Json, PayloadColumn
from headway.training.config.optimizer import EmaSpec, OptimizerSpec
from headway.training.config.shapes import DataShape, TabularNumberShape, TokenShape
from headway.training.config.shards import VALIDATION
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.config.validation import ValidationSpec
from headway.training.data.load.device_copy import to_tensors
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.learner import Learner
from headway.training.evaluation.validation import Validation
from headway.training.evaluation.validation_rows import validation_rows
from headway.training.observe.ledger import Ledger
from headway.training.ranks.distributed import ProcessGroup, choose_device, enable_determinism
from headway.training.recipes.load import load_recipe

CONTEXT, VOCABULARY = 128, 2000


class Case(NamedTuple):
    """Rows that a model of some size is validated on."""

    task: Task
    encoder: Json
    recipe: RecipeSpec
    shape: DataShape
    micro_batch: int
    measure: str
    """What the recipe makes of each row, and the figure adds up."""


CASES = {
    "tokens": Case(
        Task("tokens", (PayloadColumn(name="tokens", dtype="uint16", shape=(CONTEXT + 1,)),), 256, 4, 64, 256),
        {"kind": "token-ids", "vocab_size": VOCABULARY - 2, "sequence_tokens": CONTEXT},
        RecipeSpec(name="language-model", model={"width": 128, "depth": 4, "heads": 4, "hidden": 352}),
        TokenShape(vocab_size=VOCABULARY, context_tokens=CONTEXT),
        4,
        "nats",
    ),
    "tables": Case(
        Task(
            "tables",
            (
                PayloadColumn(name="numeric", dtype="float32", shape=(15,)),
                PayloadColumn(name="categorical", dtype="int32", shape=(5,)),
                PayloadColumn(name="label", dtype="float32", shape=(1,)),
            ),
            16_384,
            128,
            4096,
            16_384,
        ),
        {"kind": "tabular", "numeric": ["a"], "label": "b", "label_kind": "number"},
        RecipeSpec(name="tabular-regressor", model={"width": 128, "depth": 2, "frequencies": 16}),
        TabularNumberShape(num_numeric=15, cardinalities=(2000,) * 5, mean=0.0, deviation=1.0),
        128,
        "squared_error",
    ),
}


def contenders(case: Case, folder: Path) -> tuple[Callable[[], float], Callable[[], float]]:
    """Bare forward passes and a validation, which come to the same figure."""
    made = make(case.task, 1, folder)
    (group,) = made.manifest.groups
    manifest = made.manifest.model_copy(
        update={
            "groups": (group.model_copy(update={"split": VALIDATION}),),
            "spec": {"encoder": case.encoder},
        }
    )
    spec = TrainingSpec(
        recipe=case.recipe,
        optimizer=OptimizerSpec(kind="adamw"),
        validation=ValidationSpec(every_steps=1),
        ema=EmaSpec(),
        global_batch_sequences=case.micro_batch,
        micro_batch_sequences=case.micro_batch,
    )
    enable_determinism(spec.num_threads)
    process_group = ProcessGroup(rank=0, world_size=1, device=choose_device())
    recipe = load_recipe(spec.recipe.name, spec.recipe.model, case.shape)
    learner = Learner(recipe, spec, process_group)
    rows = validation_rows(made.workspace, manifest, spec, lambda: None)
    assert rows is not None
    reader, device = ShardReader(made.workspace, manifest, VALIDATION), process_group.device
    validation = Validation(
        spec.validation, learner, rows, process_group, Ledger(folder / "ledger.jsonl"), max_steps=1 << 30
    )
    blocks = range(0, rows.num_rows, case.micro_batch)
    batches = [to_tensors(reader.gather(np.arange(first, first + case.micro_batch)), device) for first in blocks]

    def bare() -> float:
        learner.model.eval()
        with torch.no_grad():
            paid = [recipe.measures(learner.model, batch)[case.measure].double().sum() for batch in batches]
        learner.model.train()
        return float(torch.stack(paid).sum())

    def ours() -> float:
        validation.run(validation.state.step + 1)
        return validation.state.best or 0.0

    return bare, ours


def measure(name: str, case: Case, rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        bare, ours = contenders(case, Path(folder))
        bare()
        first_s = _took_s(ours)
        pairs = []
        for number in range(rounds):
            # Each begins half of the rounds.
            if number % 2:
                pairs.append((_took_s(bare), _took_s(ours)))
            else:
                ours_s = _took_s(ours)
                pairs.append((_took_s(bare), ours_s))
    bare_s = statistics.median(bare_s for bare_s, _ in pairs)
    ratio = statistics.median(ours_s / bare_s for bare_s, ours_s in pairs)
    return [
        Figure(name=f"forward passes of {name}", value=1000 * bare_s, unit="ms"),
        Figure(name=f"validation, {name}", value=ratio, ratio_to="its forward passes", target="<= 1.02"),
        Figure(name=f"a run's first validation, {name}", value=first_s / bare_s, ratio_to="its forward passes"),
    ]


def _took_s(contender: Callable[[], float]) -> float:
    # What a busy neighbour does not change, where the processor computes.
    clock = time.perf_counter if choose_device().type == "cuda" else time.process_time
    started_s = clock()
    contender()  # which ends with a figure on the host
    return clock() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = [figure for name, case in CASES.items() for figure in measure(name, case, arguments.rounds)]
    show(figures, title="Validation", as_json=arguments.json, libraries=("torch",))


if __name__ == "__main__":
    main()
