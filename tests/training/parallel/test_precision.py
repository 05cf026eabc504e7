"""Precision: fp32 weights under cheaper arithmetic, and a loss scale that finds its way."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import nn

from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.training_spec import LossScaleSpec, OptimizerSpec, TrainingSpec
from headway.training.engine.learner import Learner
from headway.training.parallel.precision import SMALLEST_EXPONENT, LossScaler
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Losses

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))


class Regression:
    """A linear model whose inputs decide how large its gradient is; it notes what it computes in."""

    def __init__(self):
        self.dtypes = []

    def build(self):
        return nn.Linear(4, 1)

    def hidden_matrices(self, model):
        return ()

    def losses(self, model, batch):
        predicted = model(batch["x"])
        self.dtypes.append(predicted.dtype)
        nats = predicted.float().square()
        return Losses(nats=nats, valid=torch.ones_like(nats, dtype=torch.bool))


def spec(**changes):
    common = {"optimizer": OptimizerSpec(lr=0.01), "global_batch_sequences": 4, "micro_batch_sequences": 2}
    return TrainingSpec(**{**common, **changes})


class Step(NamedTuple):
    lr: float
    grad_norm: float
    skipped: bool


def step(learner, number, size=1.0):
    batches = [{"x": size * torch.randn(2, 4, generator=torch.Generator().manual_seed(index))} for index in range(2)]
    sums = learner.exchange(learner.backward(number, batches), stop=False)
    norm = learner.gradient_norm(sums)
    skipped = learner.overflowed(sums, norm)
    return Step(0.0 if skipped else learner.update(number, sums, norm), norm, skipped)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_the_model_computes_in_its_precision_and_keeps_weights_and_moments_in_fp32(precision, dtype):
    recipe = Regression()
    learner = Learner(recipe, spec(precision=precision), ALONE)
    update = step(learner, 0)
    assert set(recipe.dtypes) == {dtype}
    assert {value.dtype for value in learner.tensors().values()} == {torch.float32}
    assert not update.skipped


def test_every_precision_makes_about_the_same_step_whatever_the_loss_scale():
    norms, weights = [], []
    for changes in ({}, {"precision": "bf16"}, {"precision": "fp16"}, {"precision": "fp16", "exponent": 3}):
        scale = LossScaleSpec(initial_exponent=changes.pop("exponent", 8))
        learner = Learner(Regression(), spec(loss_scale=scale, **changes), ALONE)
        norms.append(step(learner, 0).grad_norm)
        weights.append(learner.model.weight.detach())
    assert norms[1:] == pytest.approx([norms[0]] * 3, rel=0.02)
    assert norms[2] == pytest.approx(norms[3], rel=1e-3)
    for value in weights[1:]:
        torch.testing.assert_close(value, weights[0], rtol=0.02, atol=1e-4)


def test_a_gradient_that_overflows_skips_the_step_until_the_scale_fits():
    learner = Learner(Regression(), spec(precision="fp16", loss_scale=LossScaleSpec(initial_exponent=20)), ALONE)
    before = {name: value.clone() for name, value in learner.tensors().items()}
    first = step(learner, 0)
    assert first.skipped and not math.isfinite(first.grad_norm)
    assert all(torch.equal(value, before[name]) for name, value in learner.tensors().items())
    assert learner.scalars() == {
        "loss_scale_exponent": 19,
        "loss_scale_good_steps": 0,
        "loss_scale_skipped_steps": 1,
    }
    number = 1
    while step(learner, number).skipped:
        number += 1
        assert number < 20
    assert learner.scalars()["loss_scale_exponent"] == 20 - number
    assert not torch.equal(learner.model.weight, before["model.weight"])


def test_skipped_steps_are_no_steps_to_the_optimizers_bias_correction():
    """The first update after skipped steps has the size of a first update."""
    moved = []
    for exponent in (8, 20):
        learner = Learner(
            Regression(), spec(precision="fp16", loss_scale=LossScaleSpec(initial_exponent=exponent)), ALONE
        )
        number, start = 0, learner.model.weight.detach().clone()
        while (update := step(learner, number)).skipped:
            number += 1
        moved.append((learner.model.weight.detach() - start).abs().max() / update.lr)
    assert float(moved[1]) == pytest.approx(float(moved[0]), rel=1e-2)


def test_an_overflow_that_no_scale_can_help_and_one_without_fp16_are_left_to_the_guard():
    for name in ("fp16", "fp32"):
        learner = Learner(
            Regression(), spec(precision=name, loss_scale=LossScaleSpec(initial_exponent=SMALLEST_EXPONENT)), ALONE
        )
        sums = learner.exchange(learner.backward(0, [{"x": torch.ones(2, 4)}] * 2), stop=False)
        learner.model.weight.grad[0, 0] = float("inf")
        norm = learner.gradient_norm(sums)
        assert not math.isfinite(norm) and not learner.overflowed(sums, norm)


def test_the_scale_doubles_after_enough_good_steps_in_a_row_and_its_state_can_be_taken_over():
    chosen = spec(precision="fp16", loss_scale=LossScaleSpec(initial_exponent=4, growth_interval_steps=3))
    scaler = LossScaler(chosen)
    seen = []
    for good in (1, 1, 0, 1, 1, 1, 1, 1, 1):
        (scaler.succeed if good else scaler.back_off)()
        seen.append(scaler.scale)
        again = LossScaler(chosen)
        again.load(scaler.scalars())
        scaler = again
    assert seen == [16, 16, 8, 8, 8, 16, 16, 16, 32]
    with pytest.raises(IntegrityError, match="loss_scale_exponent is missing"):
        scaler.load({})


def test_without_fp16_there_is_no_scale_and_no_state_of_one():
    scaler = LossScaler(spec(precision="bf16"))
    assert not scaler.back_off()
    for _ in range(3000):
        scaler.succeed()
    assert (scaler.scale, scaler.scalars()) == (1.0, {})


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"gradient_compression": "bf16"},
        {"loss_scale": LossScaleSpec(initial_exponent=3)},
        {"compile": True},
        {"num_threads": 2},
        {"micro_batch_sequences": 1},
        {"optimizer": OptimizerSpec(kind="adamw", lr=0.01)},
    ],
)
def test_whatever_changes_bits_is_part_of_the_configuration_and_so_of_the_runs_key(change):
    assert spec(**change).model_dump(mode="json") != spec().model_dump(mode="json")
