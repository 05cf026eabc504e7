"""Flower's own server and strategies on the task of `benchmarks.federated`: `python -m benchmarks.federated_flower`.

In an environment of its own, which has flwr, torch and scikit-learn. Clients are in this process; who is drawn, and
what comes of the answers, is Flower's. Writes the losses of each way and seed as JSON.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg, FedYogi
from torch import nn

from benchmarks.federated_task import (
    DRAWN,
    LOCAL_STEPS,
    LR,
    NUM_CLIENTS,
    NUM_ROUNDS,
    OUTER,
    ROWS,
    WAYS,
    Task,
    digits,
    loss,
    model,
    report,
)


def arrays(of: nn.Module) -> list[Any]:
    return [value.detach().numpy().copy() for value in of.state_dict().values()]


def load(into: nn.Module, given: list[Any]) -> None:
    into.load_state_dict({name: torch.tensor(value) for name, value in zip(into.state_dict(), given, strict=True)})


class Client(ClientProxy):  # type: ignore[misc]
    def __init__(self, number: int, task: Task, proximal: float, seed: int) -> None:
        super().__init__(str(number))
        first = sum(task.num_rows[:number])
        self.x, self.labels = (of[first : first + task.num_rows[number]] for of in (task.x, task.labels))
        self.proximal, self.draw = proximal, np.random.default_rng([seed, number])

    def fit(self, ins: Any, timeout: Any, group_id: Any) -> FitRes:
        own = model()
        load(own, parameters_to_ndarrays(ins.parameters))
        shared = [value.detach().clone() for value in own.parameters()]
        optimizer = torch.optim.SGD(own.parameters(), lr=LR)
        rows = np.concatenate(
            [self.draw.permutation(len(self.x)) for _ in range(-(-LOCAL_STEPS * ROWS // len(self.x)))]
        )
        for step in range(LOCAL_STEPS):
            chosen = torch.tensor(rows[step * ROWS : (step + 1) * ROWS])
            value = nn.functional.cross_entropy(own(self.x[chosen]), self.labels[chosen])
            if self.proximal:
                apart = (one - other for one, other in zip(own.parameters(), shared, strict=True))
                value = value + self.proximal / 2 * sum(each.square().sum() for each in apart)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays(own)), len(self.x), {})

    def get_properties(self, *_: Any) -> Any:
        raise NotImplementedError

    get_parameters = evaluate = reconnect = get_properties


def train(task: Task, way: dict[str, Any], seed: int) -> list[float]:
    torch.manual_seed(seed)
    random.seed(seed)  # Flower draws clients by it
    held, start = model(), model()
    losses: list[float] = []

    def evaluated(_round: int, parameters: list[Any], _config: Any) -> tuple[float, dict[str, Any]]:
        load(held, parameters)
        losses.append(loss(task, held))
        return losses[-1], {}

    common = {
        "fraction_fit": DRAWN / NUM_CLIENTS,
        "fraction_evaluate": 0.0,
        "min_fit_clients": DRAWN,
        "min_available_clients": NUM_CLIENTS,
        "initial_parameters": ndarrays_to_parameters(arrays(start)),
        "evaluate_fn": evaluated,
    }
    moments = {"beta_1": OUTER["momentum"], "beta_2": OUTER["square_decay"]}
    adaptive = {"eta": OUTER["lr"], "tau": OUTER["epsilon"], **moments}
    strategy = FedYogi(**common, **adaptive) if "outer" in way else FedAvg(**common)
    clients = SimpleClientManager()
    for number in range(NUM_CLIENTS):
        clients.register(Client(number, task, way.get("proximal", 0.0), seed))
    Server(client_manager=clients, strategy=strategy).fit(NUM_ROUNDS, None)
    return losses


def main(num_seeds: int) -> None:
    torch.set_num_threads(1)
    task = digits()
    print(report({name: [train(task, way, seed) for seed in range(num_seeds)] for name, way in WAYS.items()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
