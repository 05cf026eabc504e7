"""Schedules and update rules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from data_contracts.errors import IntegrityError
from training.config import OptimizerSpec, ScheduleSpec
from training.optimizer import ScheduledOptimizer, lr_factor, orthogonalise


def test_wsd_warms_up_stays_and_decays_towards_zero():
    schedule = ScheduleSpec(kind="wsd", warmup_steps=10, decay_fraction=0.5)
    factors = [lr_factor(schedule, step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert set(factors[10:51]) == {1.0}
    assert factors[51:] == sorted(factors[51:], reverse=True)
    assert factors[-1] == pytest.approx(0.02)


def test_cosine_falls_from_one_to_near_zero():
    schedule = ScheduleSpec(kind="cosine", warmup_steps=0)
    factors = [lr_factor(schedule, step, 100) for step in range(100)]
    assert factors[0] == 1.0
    assert factors[50] == pytest.approx(0.5)
    assert factors == sorted(factors, reverse=True)
    assert 0 < factors[-1] < 0.001


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 48, 16), (2, 16, 48)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_loses_its_scales(shape):
    torch.manual_seed(0)
    matrices = torch.randn(*shape) * torch.logspace(-2, 2, shape[0])[:, None, None]
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)

    turned = orthogonalise(matrices)

    singular = (u.mT @ turned @ v.mT).diagonal(dim1=-2, dim2=-1)
    assert singular.min() > 0.3 and singular.max() < 1.3


def _trained(optimizer_step, parameters, num_steps):
    torch.manual_seed(3)
    for step in range(num_steps):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer_step(step)


def test_adamw_agrees_with_torchs_own():
    spec = OptimizerSpec(kind="adamw", lr=0.01, weight_decay=0.1)
    ours = {"matrix": nn.Parameter(torch.ones(4, 3)), "gain": nn.Parameter(torch.ones(5))}
    theirs = [nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(5))]
    own = ScheduledOptimizer(
        ours, ["matrix"], spec=spec, schedule=ScheduleSpec(warmup_steps=0, decay_fraction=1e-9), max_steps=10
    )
    reference = torch.optim.AdamW(
        [{"params": theirs[:1], "weight_decay": 0.1}, {"params": theirs[1:], "weight_decay": 0.0}],
        lr=0.01,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
    )

    _trained(own.step, list(ours.values()), 5)
    _trained(lambda _step: reference.step(), theirs, 5)

    for mine, other in zip(ours.values(), theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_state_taken_over_half_way_continues_bit_for_bit(kind):
    def fresh():
        parameters = {
            "a": nn.Parameter(torch.ones(6, 4)),
            "b": nn.Parameter(torch.ones(4, 6)),
            "gain": nn.Parameter(torch.ones(4)),
        }
        optimizer = ScheduledOptimizer(
            parameters, ["a", "b"], spec=OptimizerSpec(kind=kind), schedule=ScheduleSpec(warmup_steps=2), max_steps=8
        )
        return parameters, optimizer

    def run(parameters, optimizer, steps):
        for step in steps:
            torch.manual_seed(step)
            for parameter in parameters.values():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step(step)

    whole, optimizer = fresh()
    run(whole, optimizer, range(8))
    first, optimizer = fresh()
    run(first, optimizer, range(4))
    second, restored = fresh()
    restored.load({name: value.clone() for name, value in optimizer.tensors().items()})
    for name, parameter in second.items():
        parameter.data.copy_(first[name].data)
    run(second, restored, range(4, 8))

    assert all(torch.equal(second[name], whole[name]) for name in whole)


def test_state_that_does_not_fit_is_refused_by_name():
    parameters = {"a": nn.Parameter(torch.ones(6, 4))}
    optimizer = ScheduledOptimizer(parameters, ["a"], spec=OptimizerSpec(), schedule=ScheduleSpec(), max_steps=8)
    for state in ({}, {"momentum.a": torch.ones(4, 6)}, {"momentum.a": torch.ones(6, 4), "momentum.b": torch.ones(1)}):
        with pytest.raises(IntegrityError, match=r"optimizer.momentum.[ab] does not fit"):
            optimizer.load(state)
