"""A report of sections, of which a page and Markdown are made: the same words for a browser, a mail and a wiki."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway.data_contracts.report import page as html_page
from headway.data_contracts.report.page import State
from headway.data_contracts.store import plain_text

FIRST = 20
"""Rows of a table before it is folded."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text; columns of words come first, figures follow."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_words: int = 1
    most: int = FIRST
    """Rows in Markdown, which folds nothing."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    paragraphs: Sequence[str] = ()
    table: Table | None = None
    points: Sequence[str] = ()
    """A list below them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenReport:
    """All is text, wherever it came from."""

    title: str
    kicker: str
    """What it is about, and of when."""
    state: State
    word: str
    lead: str
    tiles: Sequence[tuple[str, str]]
    """Each a figure and its name."""
    sections: Sequence[Section]


def to_html(report: WrittenReport) -> str:
    """One file that needs nothing else."""
    kicker, lead = plain_text.html(report.kicker), plain_text.html(report.lead)
    sections = (_html(section) for section in report.sections)
    return html_page.page(
        report.title,
        (html_page.banner(report.state, kicker, report.word, lead), html_page.tiles(report.tiles), *sections),
    )


def _html(section: Section) -> str:
    parts = [f"<p>{plain_text.html(text)}</p>" for text in section.paragraphs]
    if section.table is not None and section.table.rows:
        table = section.table
        parts.append(html_page.folded(table.titles, table.rows, first=FIRST, num_words=table.num_words))
    if section.points:
        parts.append("<ul>" + "".join(f"<li>{plain_text.html(point)}</li>" for point in section.points) + "</ul>")
    return html_page.section(section.title, "".join(parts)) if parts else ""


def to_markdown(report: WrittenReport) -> str:
    """CommonMark with GitHub's tables."""
    return "\n".join(_markdown(report)).rstrip() + "\n"


def _markdown(report: WrittenReport) -> Iterator[str]:
    yield f"# {plain_text.markdown(report.title)}\n"
    yield f"{plain_text.markdown(report.kicker)}\n"
    yield f"**{plain_text.markdown(report.word)}.** {plain_text.markdown(report.lead)}\n"
    yield from plain_text.markdown_table(("figure", ""), [(name, figure) for figure, name in report.tiles])
    yield ""
    for section in report.sections:
        if not (section.paragraphs or section.points or (section.table and section.table.rows)):
            continue
        yield f"## {plain_text.markdown(section.title)}\n"
        for text in section.paragraphs:
            yield f"{plain_text.markdown(text)}\n"
        if section.table is not None and section.table.rows:
            yield from plain_text.markdown_table(section.table.titles, section.table.rows[: section.table.most])
            if num_more := len(section.table.rows[section.table.most :]):
                yield f"\nAnd {num_more:,} more."
            yield ""
        if section.points:
            yield from (f"- {plain_text.markdown(point)}" for point in section.points)
            yield ""
