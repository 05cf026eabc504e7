"""What MLflow is told of a run's steps as a whole."""

from __future__ import annotations

from headway.tasks.registry.track import SUMMARY, summary_metrics
from headway.training.observe.step_summary import PARTS, summarise_steps


def test_percentiles_of_every_part_and_bytes_of_every_kind_of_collective_reach_mlflow() -> None:
    traffic = {"all_reduce": {"num_calls": 1, "sent_bytes": 800, "busy_s": 0.1}}
    step = {"event": "step", "duration_s": 1.0, "tokens": 5, "grad_norm": 2.0, "traffic": traffic}
    parts = {f"{part}_s": 0.2 for part in PARTS}
    summary = summarise_steps([step | parts, step | parts, {"event": "checkpoint", "duration_s": 3.0}])
    assert summary is not None
    metrics = summary_metrics({"event": SUMMARY, **summary.model_dump()})
    expected = {"duration_s": 1.0, **{f"{part}_s": 0.2 for part in PARTS}, "checkpoint_s": 3.0, "grad_norm": 2.0}
    assert metrics == {"sent_bytes_all_reduce": 1600.0} | {
        f"{name}_{percentile}": value for name, value in expected.items() for percentile in ("p50", "p95", "p99")
    }


def test_a_run_without_checkpoint_or_finite_gradient_has_the_other_figures() -> None:
    summary = summarise_steps([{"event": "step", "duration_s": 1.0, "tokens": 5}])
    assert summary is not None
    names = summary_metrics({"event": SUMMARY, **summary.model_dump()}).keys()
    assert "sync_s_p99" in names and not any(name.startswith(("checkpoint", "grad_norm")) for name in names)
