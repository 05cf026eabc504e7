"""What Headway's HTML reports share: a page that needs nothing else, a verdict on top, tiles, definitions."""

from __future__ import annotations

from collections.abc import Iterable
from string import Template
from typing import Literal

from headway.data_contracts.report.style import STYLE
from headway.data_contracts.store.plain_text import html

State = Literal["good", "warn", "bad"]
MARKS: dict[State, str] = {"good": "✔", "warn": "!", "bad": "✖"}

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
$body
</main>
</body>
</html>
""")


def page(title: str, sections: Iterable[str]) -> str:
    """
    Args:
        sections: HTML; empty ones are left out.
    """
    return PAGE.substitute(title=html(title), style=STYLE, body="\n".join(each for each in sections if each))


def banner(state: State, kicker: str, word: str, lead: str) -> str:
    """The verdict; colour never stands alone.

    Args:
        kicker: HTML above the word: what is judged.
        lead: HTML below it: what follows.
    """
    return (
        f"<header class='{state}'><p class='mark' aria-hidden='true'>{MARKS[state]}</p>"
        f"<div><p class='kicker'>{kicker}</p><h1>{html(word)}</h1><p class='lead'>{lead}</p></div></header>"
    )


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Each a figure and its name, as text."""
    cells = "".join(f"<div><dt>{html(name)}</dt><dd>{html(figure)}</dd></div>" for figure, name in pairs)
    return f"<dl class='tiles'>{cells}</dl>"


def section(title: str, content: str, *, count: int | None = None, note: str = "") -> str:
    """
    Args:
        note: HTML, as `content` is.
    """
    number = "" if count is None else f" <span class='count'>{count:,}</span>"
    message = f"<p class='note'>{note}</p>" if note else ""
    return f"<section><h2>{html(title)}{number}</h2>{message}{content}</section>"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Each a name and a value, as HTML."""
    return "<dl class='facts'>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"


def value(text: str) -> str:
    """A value's HTML; a digest's looks like one."""
    is_digest = len(text) == 64 and " " not in text
    return f"<code>{html(text)}</code>" if is_digest else html(text)
