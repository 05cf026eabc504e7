"""What MLflow is told of a run's steps: series by prefix, and what they came to in words."""

from __future__ import annotations

import pytest

from headway.tasks.registry import track
from headway.tasks.registry.track import SUMMARY, SystemSamples, steps_in_words
from headway.tasks.tracking.records import Metric
from headway.training.observe.step_summary import PARTS, summarise_steps


def test_percentiles_of_every_part_and_bytes_of_every_kind_of_collective_reach_mlflow() -> None:
    traffic = {"all_reduce": {"num_calls": 1, "sent_bytes": 800, "busy_s": 0.1}}
    step = {"event": "step", "duration_s": 1.0, "tokens": 5, "grad_norm": 2.0, "traffic": traffic}
    parts = {f"{part}_s": 0.2 for part in PARTS}
    summary = summarise_steps([step | parts, step | parts, {"event": "checkpoint", "duration_s": 3.0}])
    assert summary is not None
    page = steps_in_words({"event": SUMMARY, **summary.model_dump()}, "examples")
    assert "examples/s" in page.partition("\n")[0] and "reduce 1,600 bytes" in page
    expected = {"step, s": 1, **{f"{part}, s": 0.2 for part in PARTS}, "checkpoint, s": 3}
    for name, value in expected.items():
        assert f"| {name} | {value} | {value} | {value} |" in page


def test_a_run_without_checkpoint_or_finite_gradient_has_the_other_figures() -> None:
    summary = summarise_steps([{"event": "step", "duration_s": 1.0, "tokens": 5}])
    assert summary is not None
    page = steps_in_words({"event": SUMMARY, **summary.model_dump()}, "tokens")
    assert "| sync, s |" in page and "checkpoint" not in page and "grad" not in page and "Sent" not in page


@pytest.mark.process
def test_the_machine_is_sampled_below_system_and_one_sample_alone_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = SystemSamples(0.0, Metric)
    assert samples.take() == [], "none is due"
    monkeypatch.setattr(track, "SAMPLE_EVERY_S", 1e-9)
    assert samples.take() == []
    both, third = samples.take(), samples.take()
    assert {metric.key for metric in third} >= {"system/cpu_utilization_percentage"}
    assert len(both) == 2 * len(third) and len({metric.step for metric in both}) == 2
