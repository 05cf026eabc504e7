"""What an evaluation came to, in words and rows: for the Prefect UI, for cards, and for pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headway.data_contracts.store.documents import EvaluationReport, Interval
from headway.data_contracts.store.plain_text import markdown, markdown_table
from headway.data_contracts.types import report_text
from headway.data_contracts.types.report_text import count, figure
from headway.tasks.registry.promotion import versus_rival
from headway.training.evaluation.measures import ShownMeasure, shown_measure

OWN = "this model"
INEXACT = "Not to the bit an undisturbed run"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportContext:
    """What the registry says of the two models, at the time of the report."""

    pipeline: str
    model: str
    version: str
    """That this model has, or will have if nobody else registers first."""
    champion_version: str | None = None
    champion_since_unix_s: float | None = None
    evaluated_unix_s: float | None = None
    """When the report was made; None where it was found."""

    @property
    def champion(self) -> str:
        version = "" if self.champion_version is None else f" version {self.champion_version}"
        since = "" if self.champion_since_unix_s is None else f", since {_moment(self.champion_since_unix_s)}"
        return f"champion{version}{since}"


def _moment(unix_s: float) -> str:
    return f"{report_text.moment(unix_s)} UTC"


def shown(interval: Interval) -> str:
    return f"{figure(interval.value)} [{figure(interval.low)}, {figure(interval.high)}]"


def lead(report: EvaluationReport) -> ShownMeasure:
    """What people are shown first."""
    return shown_measure(report.metric, report.metrics)


def difference_title(report: EvaluationReport, own: str = OWN) -> str:
    """Of a column; differences are of the figure that decides, also where its root is shown."""
    return f"{own} minus it{f', {words(report.metric)}' if lead(report).is_root else ''}"


class Contestant(NamedTuple):
    """A line of the leaderboard."""

    name: str
    value: float
    interval: Interval | None
    """None where it was not scored example by example."""
    difference: Interval | None
    """The evaluated model minus this one, paired; None where there is none."""

    @property
    def text(self) -> str:
        return figure(self.value) if self.interval is None else shown(self.interval)


def leaderboard(report: EvaluationReport, champion: str, own: str = OWN) -> list[Contestant]:
    """Everything that was scored on these examples, the best first.

    Args:
        champion, own: what to call the two.
    """
    lines = [Contestant(own, report.metrics[report.metric].value, report.metrics[report.metric], None)]
    # On other rows than the rest it would stand beside figures that it does not compare with.
    if (beside := report.comparison) is not None and beside.heldout is None:
        lines.append(Contestant(champion, beside.champion_value, None, beside.difference))
    for name, number in report.baselines.items():
        role = "to be beaten" if name == report.gate_baseline else "for scale"
        # Older reports have a difference for the gate's baseline alone.
        gate = report.baseline_difference if name == report.gate_baseline else None
        paired = report.baseline_differences.get(name, gate)
        lines.append(Contestant(f"{name} ({role})", number, report.baseline_intervals.get(name), paired))
    measure = lead(report)
    lines = [
        line._replace(
            value=measure.of(line.value), interval=None if line.interval is None else measure.interval(line.interval)
        )
        for line in lines
    ]
    return sorted(lines, key=lambda line: line.value, reverse=report.greater_is_better)


def leaderboard_table(report: EvaluationReport, champion: str, own: str = OWN) -> list[str]:
    """Lines of Markdown."""
    rows = [
        (each.name, each.text, "" if each.difference is None else shown(each.difference))
        for each in leaderboard(report, champion, own)
    ]
    return markdown_table(("", words(lead(report).name), difference_title(report, own)), rows)


def examples_words(report: EvaluationReport) -> str:
    """What the examples behind the figures are called."""
    examples = "out-of-fold examples" if report.num_folds else "held-out examples"
    return f"{examples} of {count(report.num_keys, 'key')}" if report.num_keys else examples


def folds_words(report: EvaluationReport, own: str = "The registered model") -> str:
    """Whose figures they are, where they are of folds."""
    return (
        f"The figures are of {report.num_folds} fold models, each scored on the rows of its fold, which it never saw. "
        f"{own} is none of them: it was trained with the same settings on the usual training split"
    )


def set_apart_words(report: EvaluationReport) -> str:
    """Why fewer examples judge than are held out, where that is so."""
    num = report.num_ranking_examples
    return (
        f"{num:,} further held-out example{'s' if num > 1 else ''} rank trials, or ranked trials or validated runs "
        "before, and judge nothing"
    )


def headline(report: EvaluationReport, context: ReportContext) -> str:
    """What the figures say; whether it is promoted is the policy's to decide."""
    rival = f"the {report.gate_baseline}" if report.compared_with is None else "the champion"
    if report.incomparable is not None:
        words = "cannot be compared with"
    else:
        versus = versus_rival(report)
        if versus.too_few_examples:
            return f"Too few examples to judge {context.model} version {context.version} beside {rival}"
        words = "beats" if versus.status == "passed" else "does not beat"
    return f"{context.model} version {context.version} {words} {rival}"


def render_markdown(report: EvaluationReport, context: ReportContext) -> str:
    others = [name for name in report.metrics if name != lead(report).name]
    lines = [
        f"### {markdown(words(lead(report).name))} on {report.num_examples:,} {examples_words(report)}",
        "",
        f"**{markdown(headline(report, context))}**: {markdown(versus_rival(report).detail)}",
        "",
        *([f"{INEXACT}: {markdown(report.inexact)}", ""] if report.inexact else []),
        *([f"{set_apart_words(report)}.", ""] if report.num_ranking_examples else []),
        *([f"{folds_words(report)}.", ""] if report.num_folds else []),
        *leaderboard_table(report, context.champion),
        "",
        *(f"{markdown(words(name))} {shown(report.metrics[name])}\n" for name in others),
        *slice_table(report),
    ]
    return "\n".join(lines) + "\n"


def slice_table(report: EvaluationReport) -> list[str]:
    """Lines of Markdown: each slice's figures and, where there is a champion, the difference to it."""
    return markdown_table(slice_titles(report), slice_rows(report))


def slice_titles(report: EvaluationReport) -> tuple[str, ...]:
    others = (words(name) for name in report.slice_metrics)
    beside = ("minus champion",) if report.comparison is not None else ()
    return ("slice", "examples", words(report.metric), *others, *beside)


def slice_rows(report: EvaluationReport) -> list[tuple[str, ...]]:
    beside = {} if report.comparison is None else report.comparison.slices
    rows: list[tuple[str, ...]] = []
    for name, interval in report.slices.items():
        others = (shown(each[name]) if name in each else "" for each in report.slice_metrics.values())
        row: tuple[str, ...] = (name, f"{report.slice_sizes.get(name, 0):,}", shown(interval), *others)
        if report.comparison is not None:
            row = (*row, shown(beside[name]) if name in beside else "")
        rows.append(row)
    return rows


def words(metric: str) -> str:
    return metric.replace("_", " ")
