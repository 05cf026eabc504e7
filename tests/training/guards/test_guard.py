"""The guard decides from numbers alone, within its budget, and decides the same again."""

from __future__ import annotations

import math
import random

import pytest

from headway.data_contracts.store.errors import IntegrityError, TrainingFailed
from headway.training.config.guards import GuardSpec, NonFinitePolicy, SpikePolicy
from headway.training.guards.plan import ExcludedSpan
from headway.training.guards.spike import SpikeDetector, robust_z
from headway.training.guards.step_guard import RollBack, StepGuard

NAN, INF = math.nan, math.inf


def guard(*, non_finite="stop", spike="note", budget=2, rewind_steps=4) -> tuple[StepGuard, list]:
    alarms: list = []
    spec = GuardSpec(
        non_finite=NonFinitePolicy(action=non_finite, budget=budget),
        spike=SpikePolicy(action=spike, budget=budget, window_steps=8, threshold=6.0),
        rewind_steps=rewind_steps,
    )
    return StepGuard(spec, on_alarm=alarms.append), alarms


def warmed(**changes) -> tuple[StepGuard, list]:
    """After eight steps with losses around 2."""
    made, alarms = guard(**changes)
    for step in range(8):
        assert made.check(step, 2.0 + 0.05 * (step % 3), 1.0)
    return made, alarms


@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (INF, 1.0), (2.0, NAN), (2.0, INF)])
def test_by_default_a_number_that_is_not_finite_stops_the_run_with_advice(loss, norm):
    made, alarms = guard()
    with pytest.raises(TrainingFailed, match=r"step 1: .*not finite.*learning rates"):
        made.check(0, loss, norm)
    what = f"step 1: non-finite, loss {loss:.4g}, gradient norm {norm:.4g}: stop."
    assert alarms == [
        {
            "what": what,
            "step": 1,
            "window": 0,
            "alarm": "non-finite",
            "action": "stop",
            "loss": str(loss),
            "grad_norm": str(norm),
        }
    ]


def test_where_ranks_do_not_wait_an_alarm_names_the_batch_and_its_rank():
    made, alarms = guard()
    with pytest.raises(TrainingFailed, match="step 8, batch 11 on rank 2") as raised:
        made.check(7, NAN, 1.0, (11, 2))
    assert "skip" not in raised.value.advice, "later updates stand on it"
    assert alarms[0]["window"] == 11 and "batch 11 on rank 2" in alarms[0]["what"]


def test_skipping_leaves_out_one_window_and_tries_the_step_again_until_the_budget_is_spent():
    made, alarms = guard(non_finite="skip")
    assert made.check(0, 2.0, 1.0)
    assert not made.check(1, NAN, 1.0)
    assert not made.check(1, 2.0, INF)
    assert made.plan.excluded == (ExcludedSpan(1, 2, "non-finite"), ExcludedSpan(2, 3, "non-finite"))
    assert made.check(1, 2.0, 1.0)
    with pytest.raises(TrainingFailed, match="budget of 2 is spent"):
        made.check(2, NAN, 1.0)
    assert [alarm["action"] for alarm in alarms] == ["skip", "skip", "stop"]
    assert [alarm["window"] for alarm in alarms] == [1, 2, 4]


def test_rolling_back_leaves_out_the_newest_windows_and_goes_back_to_before_them():
    made, _ = guard(non_finite="roll_back", rewind_steps=4)
    for step in range(10):
        made.check(step, 2.0, 1.0)
    with pytest.raises(RollBack) as wanted:
        made.check(10, NAN, 1.0)
    assert wanted.value.step == 7
    assert made.plan.excluded == (ExcludedSpan(7, 11, "non-finite"),)
    assert made.plan.window(7) == 11


def test_rolling_back_one_window_is_skipping_it():
    made, _ = guard(non_finite="roll_back", rewind_steps=1)
    assert not made.check(0, NAN, 1.0)
    assert made.plan.window(0) == 1


def test_rolling_back_never_goes_before_the_first_window():
    made, _ = guard(non_finite="roll_back", rewind_steps=4)
    made.check(0, 2.0, 1.0)
    with pytest.raises(RollBack) as wanted:
        made.check(1, NAN, 1.0)
    assert wanted.value.step == 0
    assert made.plan.excluded == (ExcludedSpan(0, 2, "non-finite"),)


def test_a_loss_far_above_the_recent_ones_is_a_spike_and_a_fall_is_none():
    made, alarms = warmed(spike="skip")
    assert made.check(8, 0.1, 1.0)
    assert made.check(9, 2.1, 1.0)
    assert not made.check(10, 6.0, 1.0)
    assert [alarm["alarm"] for alarm in alarms] == ["spike"]


def test_a_spike_is_only_noted_by_default_and_too_few_losses_make_none():
    made, alarms = guard()
    for step in range(7):
        assert made.check(step, 2.0, 1.0)
    assert made.check(7, 9.0, 1.0) and not alarms
    noting, alarms = warmed()
    assert noting.check(8, 9.0, 1.0)
    assert alarms[0]["action"] == "note" and noting.plan.excluded == ()


def test_a_skipped_spike_does_not_become_what_later_losses_are_compared_with():
    made, _ = warmed(spike="skip", budget=3)
    for _ in range(3):
        assert not made.check(8, 6.0, 1.0)
    with pytest.raises(TrainingFailed, match="spike above"):
        made.check(8, 6.0, 1.0)


def test_losses_that_hardly_differ_do_not_make_noise_a_spike():
    assert robust_z(2.0001, [2.0] * 8) < 1
    assert robust_z(2.2, [2.0] * 8) == pytest.approx(10)


def test_a_guard_restored_from_a_checkpoint_decides_as_the_one_that_saved():
    saved, _ = warmed(spike="skip")
    saved.check(8, 6.0, 1.0)
    restored, _ = guard(spike="skip")
    restored.restore(saved.state())
    assert restored.state() == saved.state() and restored.plan == saved.plan
    for loss in (2.1, 6.0, 2.0):
        assert restored.check(9, loss, 1.0) == saved.check(9, loss, 1.0)
    assert restored.state() == saved.state()


def test_going_back_to_an_older_checkpoint_keeps_what_was_left_out_since():
    made, _ = guard(non_finite="skip")
    made.check(0, 2.0, 1.0)
    older = made.state()
    made.check(1, NAN, 1.0)
    made.restore(older)
    assert made.plan.excludes(1)


def heavy_tailed(num_steps: int, seed: int) -> list[float]:
    """Losses of a table learnt by heart in small batches: next to nothing, and a hard row now and then."""
    draw = random.Random(seed)
    return [
        min(0.7, math.exp(draw.gauss(0, 1) - step / 100)) + draw.uniform(0.4, 1.0) * (draw.random() < 0.03)
        for step in range(num_steps)
    ]


def falling(num_steps: int, seed: int) -> list[float]:
    """Losses of a language model."""
    draw = random.Random(seed)
    return [1.8 + 6 * math.exp(-step / 150) + draw.gauss(0, 0.08) for step in range(num_steps)]


def default_guard() -> tuple[StepGuard, list]:
    alarms: list = []
    return StepGuard(GuardSpec(), on_alarm=alarms.append), alarms


def spikes_of(losses: list[float]) -> int:
    detector = SpikeDetector(SpikePolicy().window_steps, SpikePolicy().threshold)
    found = 0
    for loss in losses:
        found += detector.is_spike(loss)
        detector.add(loss)
    return found


@pytest.mark.parametrize("losses", [heavy_tailed, falling])
def test_in_1000_steps_of_a_healthy_run_there_is_one_false_alarm_at_most(losses):
    num_runs, num_steps = 10, 2000
    assert sum(spikes_of(losses(num_steps, seed)) for seed in range(num_runs)) <= num_runs * num_steps // 1000


@pytest.mark.parametrize(("losses", "spike"), [(heavy_tailed, 5.0), (falling, 3.6)])
def test_a_planted_spike_is_found_wherever_it_comes(losses, spike):
    for seed in range(5):
        for step in (500, 1000, 1500):
            made = losses(step, seed)
            assert spikes_of([*made, made[-1] + spike]) == spikes_of(made) + 1


def test_a_flood_of_noted_alarms_is_a_few_lines_and_none_is_lost():
    made, alarms = default_guard()
    num_spikes = 0
    for step in range(2400):
        is_spike = step >= 100 and step % 12 == 0
        num_spikes += is_spike
        # each higher than what came before it has made usual
        assert made.check(step, 2.0 + 0.01 * (step % 5) + is_spike * 3.0 ** (step / 12), 1.0)
    made.finish()
    assert [alarm["step"] for alarm in alarms[:3]] == [109, 121, 133]
    assert len(alarms) <= 3 + 2400 // 500 + 1
    assert sum(alarm.get("count", 1) for alarm in alarms) == num_spikes > 190
    sums = alarms[3:]
    assert sums[0]["what"].startswith(f"steps 145 to {sums[0]['step']}: {sums[0]['count']} more alarms (spike), the ")


def test_what_follows_from_an_alarm_is_told_each_time():
    made, alarms = guard(spike="skip", budget=6)
    for step in range(8):
        made.check(step, 2.0 + 0.05 * (step % 3), 1.0)
    for _ in range(6):
        assert not made.check(8, 6.0, 1.0)
    assert [alarm["action"] for alarm in alarms] == ["skip"] * 6


@pytest.mark.parametrize("state", ["", "[]", '{"excluded": [[1]], "recent": []}', '{"excluded": []}'])
def test_a_state_that_is_none_is_refused(state):
    with pytest.raises(IntegrityError, match="guard's state"):
        guard()[0].restore(state)
