"""Learning rates over the steps, and over the size of the global batch."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec, learning_rate_line
from headway.training.optimizers.scheduled import lr_factor


def factors(**schedule) -> list[float]:
    return [lr_factor(ScheduleSpec(**schedule), step, 100) for step in range(100)]


def test_wsd_warms_up_stays_and_decays_towards_zero():
    found = factors(kind="wsd", warmup_steps=10, decay_fraction=0.5)
    assert found[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert set(found[10:51]) == {1.0}
    assert found[51:] == sorted(found[51:], reverse=True)
    assert found[-1] == pytest.approx(0.02)


def test_cosine_falls_from_one_to_near_zero():
    found = factors(kind="cosine", warmup_steps=0)
    assert found[0] == 1.0
    assert found[50] == pytest.approx(0.5)
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < 0.001


def test_linear_loses_the_same_every_step():
    found = factors(kind="linear", warmup_steps=0)
    assert found == pytest.approx([1 - step / 100 for step in range(100)])


def test_constant_stays_after_warm_up():
    found = factors(kind="constant", warmup_steps=4)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0] and set(found[3:]) == {1.0}


def test_inverse_sqrt_meets_its_warm_up_at_the_peak_and_halves_at_four_times_the_steps():
    found = factors(kind="inverse-sqrt", warmup_steps=16)
    assert found[15] == 1.0 == max(found)
    assert found[63] == pytest.approx(0.5)
    assert factors(kind="inverse-sqrt", warmup_steps=0)[3] == pytest.approx(0.5)


@pytest.mark.parametrize("kind", ["wsd", "cosine", "linear"])
def test_a_final_factor_is_what_a_decay_ends_at(kind):
    schedule = ScheduleSpec(kind=kind, warmup_steps=0, final_factor=0.1)
    assert lr_factor(schedule, 0, 100) == 1.0
    assert lr_factor(schedule, 100, 100) == pytest.approx(0.1)


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_learning_rates_grow_with_the_global_batch_as_asked_and_a_person_is_told(scaling, factor):
    spec = OptimizerSpec(kind="adamw", lr=0.001, scale_with_batch=scaling, reference_batch=16)
    assert spec.lr_scale(64) == factor
    assert spec.lr_scale(16) == 1.0
    line = learning_rate_line(spec, ScheduleSpec(), global_batch=64, max_steps=100)
    assert f"= {0.001 * factor:g};" in line and "64 / 16 rows" in line


def test_without_scaling_the_batch_changes_no_learning_rate():
    assert OptimizerSpec().lr_scale(10**6) == 1.0
    assert "muon" in learning_rate_line(OptimizerSpec(), ScheduleSpec(), global_batch=64, max_steps=100)
    line = learning_rate_line(OptimizerSpec(), ScheduleSpec(), global_batch=64, max_steps=100, has_matrices=False)
    assert "muon" not in line and line.startswith("all (adamw) 0.02;")


@pytest.mark.parametrize(
    "fields",
    [
        {"scale_with_batch": "linear"},
        {"reference_batch": 8},
        {"nesterov": True, "momentum": 0.0},
        {"groups": [{"parameters": ["*"], "frozen": True, "lr_multiplier": 2.0}]},
        {"groups": [{"parameters": []}]},
    ],
)
def test_what_does_not_go_together_is_refused(fields):
    with pytest.raises(ValidationError):
        OptimizerSpec.model_validate(fields)


def test_a_spec_survives_being_written_down():
    spec = OptimizerSpec.model_validate({"groups": [{"parameters": ["a"], "frozen": True}, {"parameters": ["b"]}]})
    assert OptimizerSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.process
def test_the_specs_cost_no_torch():
    import subprocess
    import sys

    code = "import sys, headway.training.config.training_spec; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["wsd", "cosine", "linear", "constant", "inverse-sqrt"])
def test_every_schedule_warms_up_in_a_straight_line_and_reaches_the_peak(kind):
    found = factors(kind=kind, warmup_steps=20, final_factor=0.1, decay_fraction=1.0)
    assert found[:20] == [(step + 1) / 20 for step in range(20)]
    assert max(found) == found[19] == 1.0
    assert found[20:] == sorted(found[20:], reverse=True), "it only falls from there"


@pytest.mark.parametrize(
    ("kind", "course"),
    [
        ("cosine", lambda part: 0.5 * (1 + math.cos(math.pi * part))),
        ("linear", lambda part: 1 - part),
        ("wsd", lambda part: min(1.0, (1 - part) * 80 / 40)),
    ],
)
@pytest.mark.parametrize("final", [0.0, 0.1])
def test_a_decay_follows_its_closed_form_over_the_steps_behind_the_warm_up(kind, course, final):
    found = factors(kind=kind, warmup_steps=20, final_factor=final, decay_fraction=0.4)
    expected = [final + (1 - final) * course((step - 20) / 80) for step in range(20, 100)]
    assert found[20:] == pytest.approx(expected, abs=1e-12)
    assert lr_factor(ScheduleSpec(kind=kind, warmup_steps=20, final_factor=final), 100, 100) == pytest.approx(final)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_cosine_and_linear_are_torchs_own_behind_a_warm_up(kind):
    from torch import nn
    from torch.optim import SGD
    from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

    optimizer = SGD([nn.Parameter(nn.Linear(1, 1).weight.detach())], lr=1.0)
    warm_up = LambdaLR(optimizer, lambda step: (step + 1) / 20)
    decay = {
        "cosine": lambda: CosineAnnealingLR(optimizer, T_max=80, eta_min=0.1),
        "linear": lambda: LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=80),
    }[kind]()
    schedule = SequentialLR(optimizer, [warm_up, decay], milestones=[20])
    torchs = []
    for _ in range(100):
        torchs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert factors(kind=kind, warmup_steps=20, final_factor=0.1) == pytest.approx(torchs, abs=1e-9)


def test_inverse_sqrt_and_constant_have_no_final_factor():
    found = factors(kind="inverse-sqrt", warmup_steps=16, final_factor=0.5)
    assert found[63] == pytest.approx(0.5), "the square root of 16 / 64"
    assert set(factors(kind="constant", warmup_steps=0, final_factor=0.3)) == {1.0}


def test_a_warm_up_as_long_as_the_run_is_told():
    line = learning_rate_line(OptimizerSpec(), ScheduleSpec(warmup_steps=100), global_batch=64, max_steps=50)
    assert "peak is not reached in 50 steps" in line
    line = learning_rate_line(OptimizerSpec(), ScheduleSpec(warmup_steps=10), global_batch=64, max_steps=50)
    assert "not reached" not in line
