"""The evaluation report for people: Markdown for the Prefect UI, one self-contained HTML page for offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.data_contracts.report.page import banner, definitions, page, section, tiles, value
from headway.data_contracts.store.documents import EvaluationReport, Interval
from headway.data_contracts.store.plain_text import html, markdown, markdown_table
from headway.data_contracts.types import report_text
from headway.tasks.registry.promotion import versus_rival

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


def figure(number: float) -> str:
    return f"{number:.4f}" if abs(number) < 1000 else f"{number:,.1f}"


def shown(interval: Interval) -> str:
    return f"{figure(interval.value)} [{figure(interval.low)}, {figure(interval.high)}]"


def figures(report: EvaluationReport, context: ReportContext) -> list[tuple[str, float, str]]:
    """Name, value and shown text of everything worth comparing, best first."""
    own = report.metrics[report.metric]
    rows = [(OWN, own.value, shown(own))]
    if report.comparison is not None:
        rows.append((context.champion, report.comparison.champion_value, figure(report.comparison.champion_value)))
    for name, number in report.baselines.items():
        role = "to be beaten" if name == report.gate_baseline else "for scale"
        rows.append((f"{name} ({role})", number, figure(number)))
    return sorted(rows, key=lambda row: row[1], reverse=report.greater_is_better)


def headline(report: EvaluationReport, context: ReportContext) -> str:
    """What the figures say; whether it is promoted is the policy's to decide."""
    rival = f"the {report.gate_baseline}" if report.compared_with is None else "the champion"
    if report.incomparable is not None:
        words = "cannot be compared with"
    else:
        words = "beats" if versus_rival(report).status == "passed" else "does not beat"
    return f"{context.model} version {context.version} {words} {rival}"


def render_markdown(report: EvaluationReport, context: ReportContext) -> str:
    others = [name for name in report.metrics if name != report.metric]
    lines = [
        f"### {markdown(_words(report.metric))} on {report.num_examples:,} held-out examples",
        "",
        f"**{markdown(headline(report, context))}**: {markdown(versus_rival(report).detail)}",
        "",
        *([f"{INEXACT}: {markdown(report.inexact)}", ""] if report.inexact else []),
        *markdown_table(("", _words(report.metric)), [(name, text) for name, _, text in figures(report, context)]),
        "",
        *(f"{markdown(_words(name))} {shown(report.metrics[name])}\n" for name in others),
        *slice_table(report),
    ]
    return "\n".join(lines) + "\n"


def slice_table(report: EvaluationReport) -> list[str]:
    """Lines of Markdown: each slice's figure and, where there is a champion, the difference to it."""
    columns = ("slice", "examples", "value", *(("minus champion",) if report.comparison is not None else ()))
    return markdown_table(columns, slice_rows(report))


def slice_rows(report: EvaluationReport) -> list[tuple[str, ...]]:
    beside = {} if report.comparison is None else report.comparison.slices
    rows: list[tuple[str, ...]] = []
    for name, interval in report.slices.items():
        row: tuple[str, ...] = (name, f"{report.slice_sizes.get(name, 0):,}", shown(interval))
        if report.comparison is not None:
            row = (*row, shown(beside[name]) if name in beside else "")
        rows.append(row)
    return rows


def render_html(report: EvaluationReport, context: ReportContext) -> str:
    versus = versus_rival(report)
    own = report.metrics[report.metric]
    evaluated = "" if context.evaluated_unix_s is None else f", {_moment(context.evaluated_unix_s)}"
    direction = "Higher is better" if report.greater_is_better else "Lower is better"
    sections = (
        banner(
            "good" if versus.status == "passed" else "warn",
            f"Evaluation of {html(context.pipeline)}{evaluated}",
            headline(report, context),
            html(versus.detail),
        ),
        tiles(
            [
                (figure(own.value), _words(report.metric)),
                (f"{report.num_examples:,}", "held-out examples"),
                (figure(report.baselines[report.gate_baseline]), report.gate_baseline),
                *([] if report.comparison is None else [(figure(report.comparison.champion_value), "champion")]),
                *([] if report.incomparable is None else [("none", "figure of the champion")]),
            ]
        ),
        section(
            "Beside other models",
            _bars(report, context),
            note=f"{direction}; intervals are bootstrapped over the examples, which are the same for all.",
        ),
        section("Measures", _measures(report), count=len(report.metrics)) if len(report.metrics) > 1 else "",
        section("Slices", _slices(report), count=len(report.slices)) if report.slices else "",
        section(
            "What this stands on",
            definitions(
                (name, value(digest))
                for name, digest in (
                    ("Report", report.sha256),
                    ("Checkpoint", report.checkpoint.sha256),
                    ("Shards", report.manifest.sha256),
                    ("Examples", report.examples_sha256),
                    (INEXACT, report.inexact),
                    ("Champion", "" if report.compared_with is None else report.compared_with.sha256),
                )
                if digest
            ),
        ),
    )
    return page(f"{headline(report, context)}: {context.pipeline}", sections)


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _bars(report: EvaluationReport, context: ReportContext) -> str:
    rows = figures(report, context)
    widest = max(number for _, number, _ in rows) or 1.0
    cells = "".join(
        f"<tr class='{'own' if name == OWN else ''}'><td class='words'>{html(name)}</td>"
        f"<td class='bar'><i style='width:{100 * max(number, 0.0) / widest:.1f}%'></i></td>"
        f"<td class='number'>{html(text)}</td></tr>"
        for name, number, text in rows
    )
    return f"<div class='scroll'><table><tbody>{cells}</tbody></table></div>"


def _measures(report: EvaluationReport) -> str:
    return _table(("Measure", "Value"), [(_words(name), shown(each)) for name, each in report.metrics.items()])


def _slices(report: EvaluationReport) -> str:
    beside = ("Minus champion",) if report.comparison is not None else ()
    return _table(("Slice", "Examples", _words(report.metric).capitalize(), *beside), slice_rows(report))


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Words first, figures after them."""

    def cells(tag: str, row: tuple[str, ...]) -> str:
        first, *rest = (html(each) for each in row)
        numbers = "".join(f"<{tag} class='number'>{each}</{tag}>" for each in rest)
        return f"<tr><{tag}>{first}</{tag}>{numbers}</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f"<div class='scroll'><table><thead>{cells('th', titles)}</thead><tbody>{body}</tbody></table></div>"
