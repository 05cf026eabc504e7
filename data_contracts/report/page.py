"""What Headway's HTML reports share: a page that needs nothing else, a verdict on top, tiles, definitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class Markup(str):
    """HTML of ours, which a table takes as it is; whatever was made of text is text again."""

    __slots__ = ()


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, num_words: int = 1) -> str:
    """Cells of text, or of `Markup`.

    Args:
        num_words: columns of words, which come first; figures follow.
    """

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ("" if place < num_words else " class='number'" for place in range(len(row)))
        inner = (each if isinstance(each, Markup) else html(each) for each in row)
        return (
            "<tr>" + "".join(f"<{tag}{kind}>{each}</{tag}>" for kind, each in zip(kinds, inner, strict=True)) + "</tr>"
        )

    body = "".join(cells("td", row) for row in rows)
    return f"<div class='scroll'><table><thead>{cells('th', titles)}</thead><tbody>{body}</tbody></table></div>"


def folded(titles: Sequence[str], rows: Sequence[Sequence[str]], *, first: int, num_words: int = 1) -> str:
    """The same with only so many rows to be seen at once; one more is no reason to fold."""
    if len(rows) <= first + 1:
        return table(titles, rows, num_words=num_words)
    rest = table(titles, rows[first:], num_words=num_words)
    return (
        f"{table(titles, rows[:first], num_words=num_words)}"
        f"<details><summary>{len(rows) - first:,} more</summary>{rest}</details>"
    )
