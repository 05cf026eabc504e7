"""What each alert looks at, before a drill and after it. Thresholds over days are none of a drill's business."""

from __future__ import annotations

from collections.abc import Mapping

from headway.flows.drill.evidence import Metrics
from headway.flows.drill.objectives import FailureMode
from headway.flows.drill.report import AlertFigure
from headway.flows.monitoring.alerts import ALERTS

FAILED = "headway_retrain_failed_timestamp_seconds"
PRESSURE, MOST_PRESSURE = "train_node_pressure_seconds_total", 0.8
STEPS, UNEVEN = "train_step_duration_seconds", 3.0
OF_CPU = {"resource": "cpu", "share": "some"}
COUNTERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "F3": ("train_interruptions_total", {}),
    "F4": ("train_checkpoint_total", {"op": "verify", "outcome": "corrupt"}),
    "F5": ("train_nonfinite_total", {}),
    "F6": ("train_interruptions_total", {"cause": "oom"}),
    "F7": ("train_interruptions_total", {}),
}
"""That grow by what is planted."""


def read_alert(mode: FailureMode, before: Metrics, after: Metrics, pipeline: str) -> AlertFigure:
    severity = next(alert.severity for alert in ALERTS if alert.name == mode.alert)
    if mode.code == "F2":
        family, then, now = f"p99 over p50 of {STEPS}", 1.0, uneven(before, after)
        raised = now > UNEVEN
    elif mode.code == "F8":
        family, then, now = f"rate of {_named(PRESSURE, OF_CPU)}", 0.0, pressure(before, after)
        raised = now > MOST_PRESSURE
    else:
        name, labels = COUNTERS.get(mode.code, (FAILED, {"pipeline": pipeline}))
        family, then, now = _named(name, labels), before.total(name, labels), after.total(name, labels)
        raised = now > then
    return AlertFigure(
        alert=mode.alert, severity=severity, family=family, before=round(then, 3), after=round(now, 3), raised=raised
    )


def _named(name: str, labels: Mapping[str, str]) -> str:
    return name + ("{" + ", ".join(f'{label}="{value}"' for label, value in labels.items()) + "}" if labels else "")


def pressure(before: Metrics, after: Metrics) -> float:
    """The share of the time in which somebody waited for a processor."""
    waited_s = after.total(PRESSURE, OF_CPU) - before.total(PRESSURE, OF_CPU)
    return waited_s / max(after.unix_s - before.unix_s, 1e-9)


def uneven(before: Metrics, after: Metrics) -> float:
    """How many times the median the slowest steps take, by the bounds of the histogram's buckets."""
    whole = {"phase": "step"}
    counts = {
        bound: number - before.buckets(STEPS, whole).get(bound, 0.0)
        for bound, number in after.buckets(STEPS, whole).items()
    }
    most = max(counts.values(), default=0.0)
    if not most:
        return 0.0
    p50, p99 = (min(bound for bound, number in counts.items() if number >= share * most) for share in (0.5, 0.99))
    return p99 / p50
