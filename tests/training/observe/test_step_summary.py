"""What steps came to, from their records alone."""

from __future__ import annotations

import math
import tracemalloc

import pytest

from headway.training.observe.step_summary import finite, quantile, summarise_steps


def step(duration_s: float, **fields):
    parts = {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.4, "sync_s": 0.1, "optimizer_s": 0.1}
    scaled = {name: share * duration_s for name, share in parts.items()}
    return {
        "event": "step",
        "duration_s": duration_s,
        "tokens": 100,
        "memory_bytes": 7,
        "sent_bytes": 5,
        "traffic": {"all_reduce": {"num_calls": 2, "sent_bytes": 5, "busy_s": 0.5}},
        **scaled,
    } | fields


def test_percentiles_rates_and_shares_come_from_the_records():
    events = [step(0.1) for _ in range(95)] + [step(0.2) for _ in range(4)] + [step(1.0, memory_bytes=99)]
    events += [{"event": "checkpoint", "duration_s": 0.7}, {"event": "step.excluded", "duration_s": 0.1}]
    summary = summarise_steps(events)
    assert (summary.p50_s, summary.p95_s, summary.p99_s) == (0.1, 0.1, 0.2)
    assert summary.tokens_per_s == pytest.approx(10_000 / (9.5 + 0.8 + 1.0 + 0.7))
    assert sum(summary.shares.values()) == pytest.approx(1.0)
    assert summary.shares["backward"] == pytest.approx(0.4)
    assert (summary.num_steps, summary.num_excluded, summary.peak_memory_bytes) == (100, 1, 99)
    assert (summary.checkpoint_stall_s, summary.sent_bytes, summary.mfu) == (0.7, 500, None)
    assert summary.parts_s["sync"].model_dump() == pytest.approx({"p50": 0.01, "p95": 0.01, "p99": 0.02})
    assert summary.parts_s["checkpoint"].p99 == 0.7
    assert summary.traffic["all_reduce"].model_dump() == {"num_calls": 200, "sent_bytes": 500, "busy_s": 50.0}
    assert "p99 200 ms" in summary.line() and "MFU" not in summary.line()


def test_losses_and_norms_that_were_not_finite_are_in_no_figure():
    summary = summarise_steps([step(0.1, loss=3.0, grad_norm=1.0), step(0.1, loss=2.0, grad_norm=5.0), step(0.1)])
    assert (summary.loss, summary.grad_norm.p50, summary.grad_norm.p99) == (2.0, 1.0, 5.0)
    assert summarise_steps([step(0.1)]).grad_norm is None


def test_utilisation_is_the_median_where_a_peak_is_known():
    summary = summarise_steps([step(0.1, mfu=0.3), step(0.1, mfu=0.5), step(0.1, mfu=0.4)])
    assert summary.mfu == 0.4 and "MFU 40.0 %" in summary.line()


def test_the_gradient_noise_scale_is_that_of_the_last_step_and_none_once_noise_hides_the_gradient():
    known = [step(0.1, gradient_noise_scale=3.0), step(0.1, gradient_noise_scale=1234.5)]
    summary = summarise_steps(known)
    assert summarise_steps([*known, step(0.1)]).gradient_noise_scale is None
    assert summary.gradient_noise_scale == 1234.5 and summary.line().endswith("; gradient noise scale 1.23e+03 rows")
    assert "noise" not in summarise_steps([step(0.1)]).line()


@pytest.mark.parametrize("written", [math.nan, math.inf, "nan", "many", None, [1.0]])
def test_a_figure_that_is_no_number_is_none(written):
    figures = {"loss": written, "mfu": written, "grad_norm": written, "gradient_noise_scale": written}
    summary = summarise_steps([step(0.1) | figures])
    assert (summary.mfu, summary.grad_norm, summary.gradient_noise_scale) == (None, None, None)


def test_of_a_million_steps_none_is_kept_as_an_object():
    num_steps = 5_000
    tracemalloc.start()
    summary = summarise_steps(step(0.1, mfu=0.3, grad_norm=1.0) for _ in range(num_steps))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary.num_steps == num_steps and peak_bytes < 400 * num_steps


def test_without_a_step_there_is_no_summary():
    assert summarise_steps([{"event": "restore", "duration_s": 1.0}]) is None


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 1), (0.25, 1), (0.5, 2), (0.51, 3), (1.0, 4)])
def test_a_quantile_is_one_of_the_values(fraction, expected):
    assert quantile([4, 2, 3, 1], fraction) == expected


@pytest.mark.parametrize("value", [10**400, -(10**400), math.nan, math.inf, "1", None])
def test_what_cannot_be_counted_with_is_none(value):
    assert finite(value) is None
