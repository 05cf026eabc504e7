"""The report's pictures: a card a column, what is there now against what was accepted before; trouble first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.data_contracts.report.distribution_picture import Bar, categorical_picture, numeric_picture, percent
from headway.data_contracts.store.plain_text import html

State = Literal["bad", "warn", "good"]
MIN_UNFOLDED, MAX_UNFOLDED = 3, 9
"""Columns that are drawn at once: as many as broke, which the table of rules has named already."""
MARKS: dict[State, str] = {"bad": "✖ broken", "warn": "! look", "good": "✔ held"}
ORDER: tuple[State, ...] = ("bad", "warn", "good")


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftFigure:
    """How far a column moved, and how far it may."""

    measure: str
    value: float
    limit: float | None

    @property
    def ratio(self) -> float:
        """Of the limit; 0 without one."""
        return self.value / self.limit if self.limit else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnCard:
    name: str
    type: str
    state: State
    problems: tuple[str, ...]
    """What was observed where a rule of this column failed."""
    bars: tuple[Bar, ...]
    is_numeric: bool
    ends: tuple[str, str, str]
    """What stands below the first, the middle and the last bin, for numbers."""
    null_share: float
    baseline_null_share: float | None
    drift: tuple[DriftFigure, ...]


def columns_section(cards: Sequence[ColumnCard], *, baseline: str) -> str:
    """The section, broken columns first, then those nearest to their limit.

    Args:
        baseline: the digest of the accepted snapshot's receipt; empty when there is none.
    """
    if not cards:
        return ""
    ordered = sorted(cards, key=_urgency)
    num_open = min(MAX_UNFOLDED, max(MIN_UNFOLDED, sum(card.state != "good" for card in cards)))
    drawn = "".join(_card(card) for card in ordered[:num_open])
    rest = "".join(_card(card) for card in ordered[num_open:])
    folded = f"<summary>{len(ordered) - num_open:,} more</summary><div class='cards'>{rest}</div>"
    more = f"<details>{folded}</details>" if rest else ""
    then = (
        f" <span class='key then'></span> in the accepted snapshot (receipt <code>{html(baseline[:12])}</code>). "
        "Bins of numbers held about as many rows each when they were cut."
        if baseline
        else ". No snapshot was accepted before, so there is nothing to compare with."
    )
    return (
        f"<section><h2>Columns <span class='count'>{len(cards)}</span></h2>"
        f"<p class='note'>Share of the rows with a value: <span class='key now'></span> in this snapshot{then}</p>"
        f"<div class='cards'>{drawn}</div>{more}</section>"
    )


def _urgency(card: ColumnCard) -> tuple[int, float]:
    return ORDER.index(card.state), -max((figure.ratio for figure in card.drift), default=0.0)


def _card(card: ColumnCard) -> str:
    problems = "".join(f"<p class='problem'>{html(text)}</p>" for text in card.problems)
    badge = f"<span class='badge {card.state}'>{MARKS[card.state]}</span>"
    return (
        f"<article class='card {card.state}'><div class='name'><h3><code>{html(card.name)}</code></h3>"
        f"<span class='type'>{html(card.type)}</span>{badge}</div>"
        f"{problems}{_picture(card)}<dl class='figures'>{_figures(card)}</dl></article>"
    )


def _picture(card: ColumnCard) -> str:
    caption = f"Distribution of {card.name}"
    if not card.bars:
        return "<p class='nothing'>no values</p>"
    if not card.is_numeric:
        return categorical_picture(card.bars, caption=caption)
    ends = "<div class='ends'>" + "".join(f"<span>{html(end)}</span>" for end in card.ends) + "</div>"
    return numeric_picture(card.bars, caption=caption) + ends


def _figures(card: ColumnCard) -> str:
    pairs = [(figure.measure, _drift(figure)) for figure in card.drift]
    before = (
        ""
        if card.baseline_null_share is None
        else f" <span class='before'>was {percent(card.baseline_null_share)}</span>"
    )
    pairs.append(("nulls", f"{percent(card.null_share)}{before}"))
    return "".join(f"<div><dt>{html(name)}</dt><dd>{value}</dd></div>" for name, value in pairs)


def _drift(figure: DriftFigure) -> str:
    if figure.limit is None:
        return f"{figure.value:.3f}"
    state = "over" if figure.value > figure.limit else "within"
    return f"<span class='{state}'>{figure.value:.3f}</span> <span class='before'>limit {figure.limit:g}</span>"
