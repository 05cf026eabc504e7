"""What both sides of `benchmarks.federated` train: digits at sixteen clients, each with few kinds of them.

Needs NumPy, scikit-learn and torch alone, so that a peer's environment can import it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

NUM_CLIENTS, DRAWN, LOCAL_STEPS, ROWS, NUM_ROUNDS, LR = 16, 4, 8, 16, 100, 0.05
LAST_ROUNDS = 20
"""Whose mean is taken: single rounds of so few clients differ a lot."""
OUTER = {"lr": 0.03, "momentum": 0.9, "square_decay": 0.99, "epsilon": 0.001}
WAYS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx 0.1": {"proximal": 0.1},
    "FedYogi": {"outer": {"kind": "yogi", **OUTER}},
}


class Task(NamedTuple):
    x: Tensor
    """Of all clients, one after another; (rows, 64)."""
    labels: Tensor
    num_rows: tuple[int, ...]
    held_out_x: Tensor
    held_out_labels: Tensor


def digits() -> Task:
    """Two runs of labels a client, as McMahan et al. (2017) cut MNIST; some have three times as many rows as others."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    is_held_out = np.arange(len(y)) % 5 == 0
    chosen = np.flatnonzero(~is_held_out)[np.argsort(y[~is_held_out], kind="stable")]
    sizes = np.array([1 + piece % 3 for piece in range(2 * NUM_CLIENTS)])
    pieces = np.split(chosen, (np.cumsum(sizes)[:-1] * len(chosen)) // sizes.sum())
    order = np.random.default_rng(0).permutation(len(pieces))
    clients = [np.concatenate([pieces[order[2 * c]], pieces[order[2 * c + 1]]]) for c in range(NUM_CLIENTS)]
    rows = np.concatenate(clients)

    def floats(of: NDArray[Any]) -> Tensor:
        return torch.tensor(x[of] / 16, dtype=torch.float32)

    held_out = np.flatnonzero(is_held_out)
    return Task(
        floats(rows),
        torch.tensor(y[rows]),
        tuple(map(len, clients)),
        floats(held_out),
        torch.tensor(y[held_out]),
    )


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@torch.no_grad()
def loss(task: Task, trained: nn.Module) -> float:
    return float(nn.functional.cross_entropy(trained(task.held_out_x), task.held_out_labels))


def report(losses: dict[str, list[list[float]]]) -> str:
    """Of each way and seed, the mean over the last rounds."""
    return json.dumps({way: [float(np.mean(of[-LAST_ROUNDS:])) for of in seeds] for way, seeds in losses.items()})
