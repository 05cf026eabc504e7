"""What islands come to that train apart, beside models that are trained one by one and averaged by hand."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.training.checkpoint.pieces import pieces_of
from headway.training.config.communication_spec import SyncSpec
from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.island_learner import IslandLearner
from headway.training.engine.learner import Learner
from headway.training.parallel.movements import cut_evenly
from headway.training.ranks.distributed import ProcessGroup
from tests.training.exact.cases import Own, batch

ISLANDS, NUM_STEPS, LR = 4, 12, 0.1


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


RECIPE = Own(build, (6,))
INNER = OptimizerSpec(kind="sgd", lr=LR, momentum=0.5, nesterov=False, weight_decay=0.0, gradient_clip=1e9)


def spec(**changes: Any) -> TrainingSpec:
    small = {"global_batch_sequences": 8, "micro_batch_sequences": 2, "max_steps": NUM_STEPS}
    return TrainingSpec(optimizer=INNER, schedule=ScheduleSpec(kind="constant", warmup_steps=0), **small, **changes)


def trained(training: TrainingSpec, due: Callable[[int], bool] = lambda _done: False) -> dict[str, Tensor]:
    learner = IslandLearner(RECIPE, training, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))

    def batches(step: int) -> list[dict[str, Tensor]]:
        return [batch(RECIPE, training, step, replica) for replica in range(ISLANDS)]

    step = 0
    while step < NUM_STEPS:
        if not learner.is_apart(step):
            sums = learner.exchange(learner.backward(step, batches(step), ISLANDS), stop=False)
            learner.update(step, sums, learner.gradient_norm(sums))
            step += 1
            continue
        end = learner.round_end(step, due)
        learner.begin_round(step)
        for apart in range(step, end):
            learner.train_apart(apart, batches(apart), ISLANDS)
        learner.meet(stop=False, save=False)
        learner.move_together(end)
        step = end
    return {name: value.detach().clone() for name, value in learner.model.named_parameters()}


def by_hand(training: TrainingSpec, sync: SyncSpec, due: frozenset[int] = frozenset()) -> dict[str, Tensor]:
    """DiLoCo with torch's own optimizers, inner and outer, fragment by fragment and so many steps late."""
    shared = build()
    fresh = Learner(
        RECIPE,
        training.model_copy(update={"sync": None}),
        ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")),
    )
    shared.load_state_dict(fresh.model.state_dict())
    outer = torch.optim.SGD(
        shared.parameters(), lr=sync.outer.lr, momentum=sync.outer.momentum, nesterov=sync.outer.nesterov
    )
    models = [copy.deepcopy(shared) for _ in range(ISLANDS)]
    inner = [torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5) for model in models]
    ends = list(itertools.accumulate(map(len, cut_evenly(dict(shared.named_parameters()), sync.fragments)), initial=0))
    pieces = [range(*ends_of) for ends_of in itertools.pairwise(ends)]
    underway: list[tuple[int, range, list[list[Tensor]]]] = []

    def weights(model: nn.Module, piece: range) -> list[Tensor]:
        return [list(model.parameters())[place].data for place in piece]

    def arrive(piece: range, left: list[list[Tensor]]) -> None:
        for place, before in zip(piece, weights(shared, piece), strict=True):
            moved = [before - of_island[place - piece.start] for of_island in left]
            list(shared.parameters())[place].grad = torch.stack(moved).mean(dim=0)
        outer.step()
        outer.zero_grad()
        for model, gone in zip(models, left, strict=True):
            for value, before, now in zip(weights(model, piece), gone, weights(shared, piece), strict=True):
                value.sub_(before).add_(now)

    for step in range(NUM_STEPS):
        rows = [batch(RECIPE, training, step, replica) for replica in range(ISLANDS)]
        is_apart = step >= sync.start_after_steps
        losses = [
            nn.functional.cross_entropy(model(own["x"]), own["label"][:, 0])
            for model, own in zip(models, rows, strict=True)
        ]
        for optimizer, loss in zip(inner, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
        if not is_apart:
            for together in zip(*(model.parameters() for model in models), strict=True):
                mean = torch.stack([each.grad for each in together]).mean(dim=0)
                for each in together:
                    each.grad = mean.clone()
        for optimizer in inner:
            optimizer.step()
        done = step + 1
        if not is_apart:
            shared.load_state_dict(models[0].state_dict())
            continue
        underway, arriving = [], underway
        for at, piece, left in arriving:
            if done in (at, NUM_STEPS):
                arrive(piece, left)
            else:
                underway.append((at, piece, left))
        period, rest = divmod(done - sync.start_after_steps, sync.every_steps // sync.fragments)
        if done == NUM_STEPS or (done in due and sync.fragments == 1 and not sync.delay_steps):
            leaving = pieces
        else:
            leaving = [] if rest else [pieces[(period - 1) % sync.fragments]]
        for piece in leaving:
            left = [[value.clone() for value in weights(model, piece)] for model in models]
            if sync.delay_steps and done < NUM_STEPS:
                underway.append((done + sync.delay_steps, piece, left))
            else:
                arrive(piece, left)
    return {name: value.detach() for name, value in shared.named_parameters()}


@pytest.mark.parametrize(
    ("sync", "due"),
    [
        ({"every_steps": 3}, ()),
        ({"every_steps": 4, "start_after_steps": 2}, ()),
        ({"every_steps": 3, "outer": {"lr": 0.7, "momentum": 0.9}}, ()),
        ({"every_steps": 3, "outer": {"lr": 0.7, "momentum": 0.9, "nesterov": True}}, (5,)),
        ({"every_steps": 4, "fragments": 2, "outer": {"momentum": 0.5}}, ()),
        ({"every_steps": 4, "delay_steps": 3, "outer": {"lr": 0.8}}, (5, 6)),
        ({"every_steps": 4, "fragments": 2, "delay_steps": 1, "start_after_steps": 1}, (4,)),
    ],
)
def test_islands_end_where_models_do_that_are_trained_one_by_one_and_averaged(
    sync: dict[str, Any], due: tuple[int, ...]
) -> None:
    training = spec(sync=SyncSpec.model_validate(sync))
    assert training.sync is not None
    expected = by_hand(training, training.sync, frozenset(due))
    found = trained(training, due.__contains__)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def test_islands_that_meet_at_every_step_are_plain_gradient_descent() -> None:
    one = INNER.model_copy(update={"momentum": 0.0})
    apart = spec(sync=SyncSpec(every_steps=1)).model_copy(update={"optimizer": one})
    learner = Learner(
        RECIPE,
        apart.model_copy(update={"sync": None}),
        ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")),
    )
    for step in range(NUM_STEPS):
        rows = [batch(RECIPE, apart, step, replica) for replica in range(ISLANDS)]
        sums = learner.exchange(learner.backward(step, rows, ISLANDS), stop=False)
        learner.update(step, sums, learner.gradient_norm(sums))
    for name, value in trained(apart).items():
        torch.testing.assert_close(value, dict(learner.model.named_parameters())[name].detach(), rtol=1e-4, atol=1e-6)


def test_changes_of_islands_are_counted_so_that_a_checkpoint_of_two_moments_is_seen() -> None:
    """A save that is still staged goes by torch's counts, and an optimizer counts by the parameter."""
    training = spec(sync=SyncSpec(every_steps=4, delay_steps=3))
    learner = IslandLearner(RECIPE, training, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))

    def counts() -> dict[str, int]:
        return {name: piece.local._version for name, piece in pieces_of(learner.moments()).items()}

    for first, end in ((0, 4), (4, 5)):
        before = counts()
        learner.begin_round(first)
        for step in range(first, end):
            learner.train_apart(step, [batch(RECIPE, training, step, replica) for replica in range(ISLANDS)], ISLANDS)
        learner.meet(stop=False, save=False)
        learner.move_together(end)
    unchanged = {name for name, count in counts().items() if count == before[name]}
    assert unchanged == {name for name in before if name.startswith("exchange.left.")}, "nothing has left or arrived"
