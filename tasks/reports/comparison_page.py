"""The page of two versions beside each other: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from headway.data_contracts.report.page import banner, definitions, folded, page, section, table, tiles, value
from headway.data_contracts.report.plots import Axis, Plot, figure, pictures
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types import report_text
from headway.data_contracts.types.report_text import figure as shown_figure
from headway.tasks.registry.evaluation_report import shown, words
from headway.tasks.reports.comparison import Comparison
from headway.tasks.reports.evidence import TrainingCurve
from headway.tasks.reports.pictures import MAX_LISTED, curve_section


def render_html(found: Comparison, curves: Sequence[tuple[str, TrainingCurve]], compared_unix_s: float) -> str:
    """
    Args:
        curves: of the two, as far as this machine has them.
    """
    metric, decisive = words(found.metric), found.measures[0]
    lead = (
        f"{metric} {shown_figure(decisive.second.value)} beside {shown_figure(decisive.first.value)}: difference "
        f"{shown(found.difference)} on {found.examples_words}"
    )
    columns = (found.first.name, found.second.name)
    sections = (
        banner(
            "good" if found.is_decided else "warn",
            f"{html(columns[0])} beside {html(columns[1])}, {report_text.moment(compared_unix_s)} UTC",
            found.headline,
            html(lead),
        ),
        tiles(
            [
                (shown_figure(decisive.first.value), f"{metric}, {columns[0]}"),
                (shown_figure(decisive.second.value), f"{metric}, {columns[1]}"),
                (f"{found.num_examples:,}", "held-out examples"),
            ]
        ),
        section(
            "Measures",
            table(("Measure", *columns), [(words(m.name), shown(m.first), shown(m.second)) for m in found.measures]),
            note=f"{'Higher' if found.greater_is_better else 'Lower'} {html(metric)} is better.",
        ),
        _slices(found, columns),
        _disagreements(found, columns),
        curve_section(curves),
        section("What this stands on", _documents(found)),
    )
    return page(found.headline, sections)


def _slices(found: Comparison, columns: tuple[str, str]) -> str:
    if not found.slices:
        return ""
    rows = [
        (each.name, f"{each.num_examples:,}", shown(each.first), shown(each.second), shown(each.difference))
        for each in found.slices
    ]
    note = "The difference is the second minus the first; its intervals are widened so that all hold together."
    titles = ("Slice", "Examples", *columns, "Difference")
    drawn = _slice_picture(found) if len(found.slices) > 1 else ""
    return section("Slices", drawn + folded(titles, rows, first=MAX_LISTED), count=len(rows), note=note)


def _slice_picture(found: Comparison) -> str:
    """Each slice's difference with its interval, by its place in the table."""
    slices = found.slices[:MAX_LISTED]
    ends = [end for each in slices for end in (each.difference.low, each.difference.high)]
    x = Axis(label="slice, by its place below", low=0.5, high=len(slices) + 0.5, is_whole=True)
    plot = Plot(caption="Difference by slice", x=x, y=Axis.over(f"difference in {words(found.metric)}", [0.0, *ends]))
    plot.rule((x.low, 0), (x.high, 0))
    plot.whiskers(
        (place + 1, each.difference.value, each.difference.low, each.difference.high, each.name)
        for place, each in enumerate(slices)
    )
    return pictures([figure(plot.svg(), "Difference by slice", "Below the line the second costs less.")])


def _disagreements(found: Comparison, columns: tuple[str, str]) -> str:
    tally = ""
    if (each := found.agreement) is not None:
        rows = [
            ("Both right", f"{each.both_right:,}"),
            (f"Only {columns[0]} right", f"{each.only_first:,}"),
            (f"Only {columns[1]} right", f"{each.only_second:,}"),
            ("Both wrong", f"{each.both_wrong:,}"),
        ]
        if each.num_taken_for_others is not None:
            rows.append(("Taken for different classes", f"{each.num_taken_for_others:,}"))
        tally = table(("", "Examples"), rows)
    listed = [
        (each.name, shown_figure(each.first), shown_figure(each.second), shown_figure(each.second - each.first))
        for each in found.disagreements
    ]
    if not tally and not listed:
        return ""
    note = "Examples by name or number, the greatest difference first. Rows count from 0 in the held-out split."
    titles = ("Example", *columns, "Difference")
    return section("Where they disagree", tally + folded(titles, listed, first=MAX_LISTED), note=note)


def _documents(found: Comparison) -> str:
    rows = [
        *((f"{each.name}, registration", each.registration.sha256) for each in (found.first, found.second)),
        *((f"{each.name}, checkpoint", each.checkpoint.sha256) for each in (found.first, found.second)),
        ("Shards of the examples", found.examples_of.sha256),
    ]
    return definitions((html(name), value(digest)) for name, digest in rows)
