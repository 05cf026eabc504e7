"""The optimizer of a model: its state is named tensors, and taken over it goes on bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headway.training.config.training_spec import TrainingSpec
from headway.training.optimizers.scheduled import ScheduledOptimizer
from headway.training.parallel.strategy import UnshardedModel

RECIPE = SimpleNamespace(hidden_matrices=lambda model: ("a", "b"))


def model() -> nn.Module:
    made = nn.Module()
    made.a, made.b = nn.Parameter(torch.ones(6, 4)), nn.Parameter(torch.ones(4, 6))
    made.gain, made.still = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    return made


class Whole(UnshardedModel):
    def __init__(self, model: nn.Module) -> None:
        self.model = model


def optimizer_of(made: nn.Module, training: TrainingSpec) -> ScheduledOptimizer:
    return ScheduledOptimizer(Whole(made), RECIPE, training)


def spec(optimizer: dict, **training) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {"optimizer": optimizer, "schedule": {"warmup_steps": 2}, "max_steps": 8, **training}
    )


def run(made: nn.Module, optimizer: ScheduledOptimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        for parameter in made.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(step)


@pytest.mark.parametrize(
    "optimizer",
    [{"kind": kind, "implementation": how} for kind in ("muon", "adamw", "sgd") for how in ("fused", "foreach")],
)
def test_state_taken_over_half_way_continues_bit_for_bit(optimizer):
    training = spec(optimizer | {"groups": [{"parameters": ["still"], "frozen": True}]})
    whole, first, second = model(), model(), model()
    run(whole, optimizer_of(whole, training), range(8))
    half = optimizer_of(first, training)
    run(first, half, range(4))
    restored = optimizer_of(second, training)
    for name, moment in half.tensors().items():
        restored.tensors()[name].copy_(moment)
    with torch.no_grad():
        for name, parameter in second.named_parameters():
            parameter.copy_(first.get_parameter(name))
    run(second, restored, range(4, 8))

    assert all(torch.equal(value, whole.get_parameter(name)) for name, value in second.named_parameters())
    assert torch.equal(whole.still, torch.ones(4)) and not torch.equal(whole.gain, torch.ones(4))
    assert not any("still" in name for name in restored.tensors())


def test_a_groups_learning_rate_is_multiplied_and_all_of_them_grow_with_the_batch():
    training = spec(
        {
            "kind": "sgd",
            "momentum": 0,
            "lr": 0.1,
            "groups": [{"parameters": ["gain"], "lr_multiplier": 3}],
            "scale_with_batch": "linear",
            "reference_batch": 4,
        },
        schedule={"kind": "constant", "warmup_steps": 0},
        global_batch_sequences=8,
    )
    made = model()
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert optimizer_of(made, training).step(0) == pytest.approx(0.2)
    assert made.a[0, 0].item() == pytest.approx(1 - 0.2)
    assert made.gain[0].item() == pytest.approx(1 - 0.6)
