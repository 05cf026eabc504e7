"""Who becomes champion: a pure decision over an evaluation report. Nothing is promoted unproven."""

from __future__ import annotations

from dataclasses import dataclass

from data_contracts.documents import EvaluationReport, Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    promote: bool
    reason: str


def decide(report: EvaluationReport) -> Verdict:
    """A first model must beat its baseline; a challenger must beat the champion beyond doubt.

    "Beyond" means with the whole bootstrap interval: the first model's own, or the paired difference's.
    """
    if report.comparison is None:
        return _against_baseline(report)
    difference = report.comparison.difference
    champion = report.comparison.champion_value
    better = difference.low > 0 if report.greater_is_better else difference.high < 0
    shown = f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"
    if better:
        return Verdict(promote=True, reason=f"beats the champion's {champion:.4f} {report.metric} by {shown}")
    return Verdict(promote=False, reason=f"does not beat the champion's {champion:.4f} {report.metric}: {shown}")


def _against_baseline(report: EvaluationReport) -> Verdict:
    own: Interval = report.metrics[report.metric]
    baseline = report.baselines[report.gate_baseline]
    better = own.low > baseline if report.greater_is_better else own.high < baseline
    shown = f"{own.value:.4f} [{own.low:.4f}, {own.high:.4f}] against the {report.gate_baseline}'s {baseline:.4f}"
    if better:
        return Verdict(promote=True, reason=f"first model: {report.metric} {shown}")
    return Verdict(promote=False, reason=f"first model falls short: {report.metric} {shown}")
