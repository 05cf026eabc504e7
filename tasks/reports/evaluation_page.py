"""The page of an evaluation: one HTML file that needs nothing else.

The verdict first, then who stands beside the model, how it trained, what it gets wrong, and what the page stands on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.data_contracts.report.page import banner, definitions, folded, page, section, table, tiles, value
from headway.data_contracts.store.documents import EvaluationReport
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types import report_text
from headway.data_contracts.types.report_text import figure
from headway.tasks.registry.evaluation_report import (
    INEXACT,
    OWN,
    ReportContext,
    difference_title,
    examples_words,
    folds_words,
    headline,
    lead,
    leaderboard,
    set_apart_words,
    shown,
    slice_rows,
    slice_titles,
    words,
)
from headway.tasks.registry.promotion import versus_rival
from headway.tasks.reports.evidence import NO_EVIDENCE, Evidence
from headway.tasks.reports.pictures import (
    MAX_LISTED,
    class_sections,
    continuation_section,
    curve_section,
    importance_section,
    number_sections,
    worst_section,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PageFacts:
    """What the run's documents say, for whoever wants to look further."""

    target: str = "the label"
    """Column that is predicted, for numbers."""
    class_names: tuple[str, ...] = ()
    """By number."""
    links: tuple[tuple[str, str, str], ...] = ()
    """Name, relative path and text each."""
    dates: tuple[tuple[str, str], ...] = field(default=())
    """Name and moment each."""


NO_FACTS = PageFacts()


def render_html(
    report: EvaluationReport,
    context: ReportContext,
    evidence: Evidence = NO_EVIDENCE,
    facts: PageFacts = NO_FACTS,
) -> str:
    versus = versus_rival(report)
    apart = f". {set_apart_words(report)}." if report.num_ranking_examples else ""
    apart += f". {folds_words(report)}." if report.num_folds else ""
    evaluated = f", {report_text.moment(context.evaluated_unix_s)} UTC" if context.evaluated_unix_s is not None else ""
    sections = (
        banner(
            "good" if versus.status == "passed" else "warn",
            f"Evaluation of {html(context.pipeline)}{evaluated}",
            headline(report, context),
            html(f"{versus.detail}{apart}"),
        ),
        _tiles(report),
        _leaderboard(report, context),
        curve_section([] if evidence.curve is None else [(OWN, evidence.curve)], facts.target),
        _measures(report),
        ""
        if report.class_figures is None
        else class_sections(report.class_figures, evidence.outputs, facts.class_names),
        "" if report.number_figures is None else number_sections(report.number_figures, evidence.outputs, facts.target),
        importance_section(report),
        _slices(report),
        worst_section(report),
        continuation_section(report),
        section("Look further", _links(facts)) if facts.links else "",
        section("What this stands on", _documents(report, facts)),
    )
    return page(f"{headline(report, context)}: {context.pipeline}", sections)


def _tiles(report: EvaluationReport) -> str:
    beside, measure = report.comparison, lead(report)
    beside = None if beside is not None and beside.heldout is not None else beside  # on other rows than the rest
    champion = (
        figure(measure.of(beside.champion_value)) if beside is not None else "none" if report.incomparable else ""
    )
    names = sorted((name for name in report.metrics if name != measure.name), key=lambda name: name == report.metric)
    others = [(figure(report.metrics[name].value), words(name)) for name in names]
    return tiles(
        [
            (figure(report.metrics[measure.name].value), words(measure.name)),
            *others[:2],
            (f"{report.num_examples:,}", examples_words(report)),
            (figure(measure.of(report.baselines[report.gate_baseline])), report.gate_baseline),
            *([(champion, "figure of the champion" if report.incomparable else "champion")] if champion else []),
        ]
    )


def _leaderboard(report: EvaluationReport, context: ReportContext) -> str:
    lines = leaderboard(report, context.champion)
    widest = max(max(each.value, 0.0) for each in lines) or 1.0
    rows = "".join(
        f"<tr class='{'own' if each.name == OWN else ''}'><td class='words'>{html(each.name)}</td>"
        f"<td class='bar'><i style='width:{100 * max(each.value, 0.0) / widest:.1f}%'></i></td>"
        f"<td class='number'>{html(each.text)}</td>"
        f"<td class='number'>{html('' if each.difference is None else shown(each.difference))}</td></tr>"
        for each in lines
    )
    head = (
        f"<thead><tr><th></th><th class='bar'></th><th class='number'>{html(words(lead(report).name))}</th>"
        f"<th class='number'>{html(difference_title(report))}</th></tr></thead>"
    )
    direction = "Higher is better" if report.greater_is_better else "Lower is better"
    drawn = f"keys of the examples ({report.num_keys:,})" if report.num_keys else "examples"
    note = f"{direction}; intervals are bootstrapped over the {drawn}, which are the same for all."
    return section("Leaderboard", f"<div class='scroll'><table>{head}<tbody>{rows}</tbody></table></div>", note=note)


def _measures(report: EvaluationReport) -> str:
    if len(report.metrics) < 2 and not report.no_outputs:
        return ""
    note = f"Nothing is shown of single predictions: {html(report.no_outputs)}." if report.no_outputs else ""
    rows = [(words(name), shown(each)) for name, each in report.metrics.items()]
    return section("Measures", table(("Measure", "Value"), rows), count=len(rows), note=note)


def _slices(report: EvaluationReport) -> str:
    if not report.slices:
        return ""
    titles = [title[:1].upper() + title[1:] for title in slice_titles(report)]
    return section("Slices", folded(titles, slice_rows(report), first=MAX_LISTED), count=len(report.slices))


def _links(facts: PageFacts) -> str:
    return definitions((html(name), f'<a href="{html(path)}">{html(text)}</a>') for name, path, text in facts.links)


def _documents(report: EvaluationReport, facts: PageFacts) -> str:
    digests = (
        ("Report", report.sha256),
        ("Checkpoint", report.checkpoint.sha256),
        ("Shards", report.manifest.sha256),
        ("Examples", report.examples_sha256),
        ("Fold models", "" if report.cross_validation is None else report.cross_validation.sha256),
        ("Outputs", "" if report.outputs is None else report.outputs.path),
        (INEXACT, report.inexact),
        ("Champion", "" if report.compared_with is None else report.compared_with.sha256),
        *facts.dates,
    )
    return definitions((html(name), value(each)) for name, each in digests if each)
