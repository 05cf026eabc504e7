"""Federated rounds beside Flower's: loss on rows of nobody after as many rounds of as many clients.

`python -m benchmarks.federated --flower PYTHON [--seeds N] [--json]`

PYTHON is of an environment with flwr, torch and scikit-learn. Both sides train one model on one cut of scikit-learn's
digits. Who is drawn, which rows come when and how weights begin is each one's own: seeds are compared with seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.federated_task import (
    DRAWN,
    LOCAL_STEPS,
    LR,
    NUM_ROUNDS,
    ROWS,
    WAYS,
    Task,
    digits,
    loss,
    model,
    report,
)
from benchmarks.figures import Figure, show
from headway.training.config.communication_spec import FederatedSpec, SyncSpec
from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec
from headway.training.config.seeds import derive
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.order.client_order import ClientOrder, ClientRounds, Clients
from headway.training.engine.federated_learner import FederatedLearner
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from headway.training.recipes.classification import Classifier
from headway.training.recipes.protocol import Recipe

PLAIN = OptimizerSpec(kind="sgd", lr=LR, momentum=0.0, nesterov=False, weight_decay=0.0, gradient_clip=1e9)


class Digits(Classifier):
    shape = (64,)

    def build(self) -> nn.Module:
        return model()

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["x"]

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        return ()

    def blocks(self, model: nn.Module) -> tuple[str, ...]:
        return ()


def train(task: Task, way: Mapping[str, Any], seed: int) -> list[float]:
    others = {name: value for name, value in way.items() if name != "outer"}
    sync = SyncSpec.model_validate(
        {
            "every_steps": LOCAL_STEPS,
            "islands": DRAWN,
            "outer": way.get("outer", {}),
            "federated": FederatedSpec(**others),
        }
    )
    spec = TrainingSpec(
        optimizer=PLAIN,
        schedule=ScheduleSpec(kind="constant", warmup_steps=0),
        global_batch_sequences=DRAWN * ROWS,
        micro_batch_sequences=ROWS,
        max_steps=NUM_ROUNDS * LOCAL_STEPS,
        seed=seed,
        sync=sync,
    )
    clients = Clients(tuple(map(str, range(len(task.num_rows)))), task.num_rows)
    rounds = ClientRounds(clients, sync, seed=derive(seed, "clients"))
    order = ClientOrder(rounds, batch_rows=DRAWN * ROWS, seed=derive(seed, "order"))
    alone = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
    learner = FederatedLearner(cast(Recipe, Digits()), spec, alone, rounds)

    def batches(step: int) -> list[dict[str, Tensor]]:
        rows = torch.from_numpy(order.rows(np.arange(step * DRAWN * ROWS, (step + 1) * DRAWN * ROWS)))
        return [{"x": task.x[own], "label": task.labels[own][:, None]} for own in rows.view(DRAWN, ROWS)]

    losses = []
    for first in range(0, spec.max_steps, LOCAL_STEPS):
        learner.begin_round(first)
        for step in range(first, first + LOCAL_STEPS):
            learner.train_apart(step, batches(step), DRAWN)
        learner.meet(stop=False, save=False)
        learner.move_together(first + LOCAL_STEPS)
        with learner.evaluating():
            losses.append(loss(task, learner.model))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Federated rounds beside Flower's.")
    parser.add_argument("--flower", required=True, help="Python of an environment with flwr, torch and scikit-learn")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    enable_determinism(1)
    task = digits()
    own = json.loads(
        report({way: [train(task, of, seed) for seed in range(arguments.seeds)] for way, of in WAYS.items()})
    )
    command = [arguments.flower, "-m", "benchmarks.federated_flower", str(arguments.seeds)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=1800)
    theirs = json.loads(done.stdout.strip().splitlines()[-1])
    figures = []
    for way, losses in own.items():
        peer = theirs[way]
        figures += [
            Figure(name=f"{way}: loss, mean of seeds", value=statistics.fmean(losses), unit="nats"),
            Figure(name=f"{way}: Flower's, mean of seeds", value=statistics.fmean(peer), unit="nats"),
            Figure(
                name=f"{way}: loss",
                value=statistics.fmean(losses) / statistics.fmean(peer),
                ratio_to="Flower's mean",
                target=f"<= {max(peer) / statistics.fmean(peer):.4f}",
            ),
            Figure(
                name=f"{way}: Flower's best seed", value=min(peer) / statistics.fmean(peer), ratio_to="Flower's mean"
            ),
        ]
    show(figures, title="Federated rounds", as_json=arguments.json, libraries=["torch"])


if __name__ == "__main__":
    main()
