"""What a notebook shows of a run, a model or a search: one small card, without style sheet, script or picture.

Its colours are the notebook's own, but for the verdict's, which can be read on light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import quote

from headway.data_contracts.store.plain_text import MAX_FIELD_CHARS, html, one_line

Verdict = Literal["good", "bad", "open"]
BACKS: Mapping[Verdict, str] = {"good": "#1a7f37", "bad": "#b3151c", "open": "#7a5200"}
CARD = "border: 1px solid #8c959f80; border-radius: 8px; padding: 0.7em 1em; max-width: 60em; line-height: 1.5"
CELL = "text-align: left; padding: 0.15em 1.2em 0.15em 0; vertical-align: top; overflow-wrap: anywhere"
ROW, TABLE = "background: none", "margin: 0.5em 0 0; border-collapse: collapse"
SOFT = "opacity: 0.7; font-weight: normal; white-space: nowrap"


def notebook_card(
    title: str,
    *,
    verdict: str = "",
    kind: Verdict = "open",
    facts: Mapping[str, str],
    links: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> str:
    """HTML of one card; whatever is given is text.

    Args:
        links: a title to a path or URI.
        columns, rows: a table below the facts; none without rows.
    """
    badge = f"background: {BACKS[kind]}; color: #fff; border-radius: 6px; padding: 0.05em 0.6em"
    head = f"<strong>{_text(title)}</strong>"
    if verdict:
        head += f' <span style="{badge}">{_text(verdict)}</span>'
    listed = {name: _text(value) for name, value in facts.items() if value}
    if links:
        listed["reports"] = " · ".join(_link(name, place) for name, place in links.items())
    lines = [
        f'<tr style="{ROW}"><th style="{CELL}; {SOFT}">{_text(name)}</th><td style="{CELL}">{value}</td></tr>'
        for name, value in listed.items()
    ]
    below = f'<table style="{TABLE}">{"".join(lines)}</table>{_table(columns, rows)}'
    return f'<div style="{CARD}">{head}{below}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th style="{CELL}; {SOFT}">{_text(name)}</th>' for name in columns)
    cells = ("".join(f'<td style="{CELL}">{_text(cell)}</td>' for cell in row) for row in rows)
    body = "".join(f'<tr style="{ROW}">{each}</tr>' for each in cells)
    return f'<table style="{TABLE}"><tr style="{ROW}">{head}</tr>{body}</table>'


def _text(text: str) -> str:
    return html(one_line(text, MAX_FIELD_CHARS))


def _link(title: str, place: str) -> str:
    """A path, or a URI of a scheme that runs nothing; of any other its colon is no more one."""
    if place.startswith("/"):
        target = f"file://{quote(place, errors='replace')}"
    else:
        is_known = place.startswith(("http://", "https://", "s3://", "gs://", "abfs://"))
        target = quote(place, safe=":/?#@!$&*+,;=%~" if is_known else "/", errors="replace")
    return f'<a href="{html(target)}" title="{_text(place)}">{_text(title)}</a>'
