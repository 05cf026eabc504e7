"""Who becomes champion: a pure decision over an evaluation report. Nothing is promoted unproven."""

from __future__ import annotations

from dataclasses import dataclass

from data_contracts.documents import EvaluationReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    promote: bool
    reason: str


def decide(report: EvaluationReport) -> Verdict:
    """A first model must beat its baseline; a challenger must beat the champion beyond doubt.

    "Beyond doubt" means that the whole interval of the difference, paired on the same examples, is on the good side.
    What cannot be compared with the champion is never promoted.
    """
    if report.incomparable is not None:
        return Verdict(
            promote=False,
            reason=f"cannot be compared with the champion, which stays: {report.incomparable.reason}. Give it data "
            "that it can read, or start anew under another registry.model, where this model has to beat the "
            f"{report.gate_baseline} alone",
        )
    if report.comparison is None:
        rival, value, difference = (
            report.gate_baseline,
            report.baselines[report.gate_baseline],
            report.baseline_difference,
        )
    else:
        rival, value, difference = "champion", report.comparison.champion_value, report.comparison.difference
    better = difference.low > 0 if report.greater_is_better else difference.high < 0
    own = report.metrics[report.metric].value
    shown = f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"
    words = "beats" if better else "does not beat"
    first = "first model, " if report.comparison is None else ""
    return Verdict(
        promote=better, reason=f"{first}{report.metric} {own:.4f} {words} the {rival}'s {value:.4f}: difference {shown}"
    )
