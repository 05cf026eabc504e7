"""What federated rounds come to, beside clients that are trained one by one and added up by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError, TrainingFailed
from headway.training.checkpoint.pieces import pieces_of
from headway.training.config.communication_spec import FederatedSpec, OuterSpec, SyncSpec
from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.order.client_order import ClientRounds, Clients
from headway.training.engine.federated_learner import MAX_VOID_ROUNDS, FederatedLearner
from headway.training.ranks.distributed import ProcessGroup
from tests.training.exact.cases import Own, batch

DRAWN, EVERY, NUM_ROUNDS, LR = 4, 3, 4, 0.1
CLIENTS = Clients(("a", "b", "c", "d", "e", "f"), (10, 20, 30, 40, 5, 60))


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


RECIPE = Own(build, (6,))
INNER = OptimizerSpec(kind="sgd", lr=LR, momentum=0.5, nesterov=False, weight_decay=0.0, gradient_clip=1e9)


def spec(outer: dict[str, Any] | None = None, **federated: Any) -> TrainingSpec:
    sync = SyncSpec(
        every_steps=EVERY, islands=DRAWN, outer=OuterSpec(**outer or {}), federated=FederatedSpec(**federated)
    )
    small = {"global_batch_sequences": 8, "micro_batch_sequences": 2, "max_steps": EVERY * NUM_ROUNDS}
    return TrainingSpec(optimizer=INNER, schedule=ScheduleSpec(kind="constant", warmup_steps=0), sync=sync, **small)


def rounds_of(training: TrainingSpec) -> ClientRounds:
    assert training.sync is not None
    return ClientRounds(CLIENTS, training.sync, seed=7)


def learner_of(training: TrainingSpec) -> FederatedLearner:
    alone = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
    return FederatedLearner(RECIPE, training, alone, rounds_of(training))


def batches(training: TrainingSpec, step: int, poisoned: int | None) -> list[dict[str, Tensor]]:
    made = [batch(RECIPE, training, step, replica) for replica in range(DRAWN)]
    if poisoned is not None:
        made[poisoned]["x"].fill_(math.nan)
    return made


def train_round(learner: FederatedLearner, training: TrainingSpec, number: int, poisoned: int | None = None) -> float:
    """Returns the loss of its last step."""
    learner.begin_round(number * EVERY)
    for step in range(number * EVERY, (number + 1) * EVERY):
        learner.train_apart(step, batches(training, step, poisoned), DRAWN)
    loss = learner.meet(stop=False, save=False)[-1].sums.loss
    learner.move_together((number + 1) * EVERY)
    return loss


def weights_of(learner: FederatedLearner) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in learner.model.named_parameters()}


def state_of(learner: FederatedLearner) -> dict[str, Tensor]:
    return {name: piece.local.clone() for name, piece in pieces_of(learner.tensors()).items()}


def by_hand(training: TrainingSpec, start: dict[str, Tensor], poisoned: int | None = None) -> dict[str, Tensor]:
    """FedAvg, FedProx, FedOpt and FedPer, one client after another, in numbers of double precision between rounds."""
    assert training.sync is not None and training.federated is not None
    rounds, federated, outer = rounds_of(training), training.federated, training.sync.outer
    is_personal = {name: name.startswith("2.") and bool(federated.personal) for name in start}
    shared = {name: value.double() for name, value in start.items()}
    heads: dict[int, dict[str, Tensor]] = {}
    momenta = {name: torch.zeros_like(value) for name, value in shared.items()}
    squares = {name: torch.full_like(value, outer.epsilon**2) for name, value in shared.items()}
    for number in range(NUM_ROUNDS):
        drawn, answers = rounds.drawn(number).tolist(), []
        for island, (client, is_lost) in enumerate(zip(drawn, rounds.lost(number).tolist(), strict=True)):
            model = build()
            model.load_state_dict({name: value.float() for name, value in shared.items()} | heads.get(client, {}))
            before = {name: value.clone() for name, value in model.state_dict().items()}
            if client not in heads and any(is_personal.values()):
                model.load_state_dict(before | {name: start[name] for name in start if is_personal[name]})
            optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
            for step in range(number * EVERY, (number + 1) * EVERY):
                own = batch(RECIPE, training, step, island)
                loss = nn.functional.cross_entropy(model(own["x"]), own["label"][:, 0])
                for name, value in model.named_parameters():
                    if not is_personal[name]:
                        loss = loss + federated.proximal / 2 * (value - shared[name].float()).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if not is_lost and island != poisoned:
                answers.append((client, copy.deepcopy(model.state_dict())))
        if len(answers) < federated.quorum:
            continue
        counts = [CLIENTS.num_rows[client] if federated.weight_by == "rows" else 1 for client, _ in answers]
        for name in start:
            if is_personal[name]:
                continue
            moved = [shared[name] - state[name].double() for _, state in answers]
            mean = sum(count * each for count, each in zip(counts, moved, strict=True)) / sum(counts)
            if outer.kind == "sgd":
                momenta[name] = outer.momentum * momenta[name] + mean
                shared[name] = shared[name] - outer.lr * momenta[name]
                continue
            momenta[name] = outer.momentum * momenta[name] + (1 - outer.momentum) * mean
            square, decay = squares[name], outer.square_decay
            squares[name] = {
                "adagrad": square + mean**2,
                "adam": decay * square + (1 - decay) * mean**2,
                "yogi": square - (1 - decay) * mean**2 * torch.sign(square - mean**2),
            }[outer.kind]
            shared[name] = shared[name] - outer.lr * momenta[name] / (squares[name].sqrt() + outer.epsilon)
        for client, state in answers:
            heads[client] = {name: value for name, value in state.items() if is_personal[name]}
        for name in start:
            if is_personal[name]:
                rows = {client: float(CLIENTS.num_rows[client]) for client in heads}
                total = sum(rows.values())
                shared[name] = sum(rows[client] / total * head[name].double() for client, head in heads.items())
    return {name: value.float() for name, value in shared.items()}


@pytest.mark.parametrize(
    ("outer", "federated"),
    [
        ({}, {}),
        ({}, {"weight_by": "equal", "proximal": 0.5}),
        ({"lr": 0.7, "momentum": 0.5}, {"lost_fraction": 0.4}),
        ({"kind": "adam", "lr": 0.05, "momentum": 0.9}, {}),
        ({"kind": "yogi", "lr": 0.05, "square_decay": 0.9}, {"proximal": 1.0}),
        ({"kind": "adagrad", "lr": 0.05, "epsilon": 0.01}, {"lost_fraction": 0.6, "quorum": 2}),
        ({}, {"personal": ("2.*",), "lost_fraction": 0.2}),
    ],
)
def test_rounds_come_to_what_clients_do_that_are_trained_one_by_one_and_weighted(
    outer: dict[str, Any], federated: dict[str, Any]
) -> None:
    training = spec(outer, **federated)
    learner = learner_of(training)
    start = weights_of(learner)
    for number in range(NUM_ROUNDS):
        train_round(learner, training, number)
    expected = by_hand(training, start)
    for name, value in weights_of(learner).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def test_an_answer_that_is_not_finite_costs_that_client_alone() -> None:
    training = spec()
    learner = learner_of(training)
    start, known = weights_of(learner), set[str]()
    for number in range(NUM_ROUNDS):
        assert math.isfinite(train_round(learner, training, number, poisoned=1))
        refused = CLIENTS.names[rounds_of(training).drawn(number)[1]]
        fields = learner.round_fields()
        assert fields["refused"] == [refused] and refused not in fields["answered"] and len(fields["answered"]) == 3
        assert fields["distances"][1] is None and not fields["is_void"]
        # A person learns of each client once, and not in each round again.
        news = f"the answer of {refused} is not finite and counts for nothing."
        assert fields["what"] == ("" if refused in known else news)
        known.add(refused)
    expected = by_hand(training, start, poisoned=1)
    for name, value in weights_of(learner).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def test_if_no_client_is_finite_the_guard_sees_it() -> None:
    training = spec()
    learner = learner_of(training)
    learner.begin_round(0)
    for step in range(EVERY):
        made = batches(training, step, None)
        for each in made:
            each["x"].fill_(math.nan)
        learner.train_apart(step, made, DRAWN)
    assert math.isnan(learner.meet(stop=False, save=False)[-1].sums.loss)


def test_a_round_without_a_quorum_moves_nothing_and_so_many_of_them_end_the_run() -> None:
    training = spec({"momentum": 0.5}, lost_fraction=0.99, quorum=4, personal=("2.*",))
    learner = learner_of(training)
    start = {
        name: value.local.clone() if hasattr(value, "local") else value.clone()
        for name, value in learner.tensors().items()
    }
    with pytest.raises(
        TrainingFailed, match=f"{MAX_VOID_ROUNDS} rounds in a row had fewer answers than the quorum of 4"
    ):
        for number in range(MAX_VOID_ROUNDS + 1):
            train_round(learner, training, number)
            assert learner.round_fields()["is_void"] and learner.scalars()["void_rounds"] == number + 1
            for name, value in state_of(learner).items():
                if not name.startswith("clients."):
                    assert torch.equal(value, start[name]), name
    assert number == MAX_VOID_ROUNDS - 1


def test_a_clients_own_weights_move_only_where_it_answers_and_others_never_see_them() -> None:
    training = spec(personal=("2.*",))
    learner = learner_of(training)
    for number in range(NUM_ROUNDS):
        before = state_of(learner)["clients.weights.2.weight"]
        train_round(learner, training, number)
        after = state_of(learner)["clients.weights.2.weight"]
        # In the first round all begin with what is shared.
        moved = {client for client in range(6) if not torch.equal(after[client], before[client])}
        assert moved == (set(rounds_of(training).drawn(number).tolist()) if number else set(range(6)))


def test_patterns_that_match_no_weight_or_all_of_them_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'haed\.\*' matches no weight"):
        learner_of(spec(personal=("haed.*",)))
    with pytest.raises(ConfigError, match="every weight of the model is personal"):
        learner_of(spec(personal=("*",)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 6)
        self.head.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)))


def test_a_tied_weight_is_personal_by_any_of_its_names() -> None:
    training = spec(personal=("head.*",))
    alone = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
    learner = FederatedLearner(Own(Tied, (6,)), training, alone, rounds_of(training))
    of_clients = {name.removeprefix("clients.weights.") for name in learner.moments() if "clients.weights." in name}
    assert of_clients == {"inner.weight", "head.bias"}
