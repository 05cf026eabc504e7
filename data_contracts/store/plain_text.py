"""Text that comes from data, files, people or YAML stays text, wherever it is shown: one function for each sink.

Nothing else escapes. What a terminal, a Markdown or HTML renderer, or a CI system would take for a command, a style,
a link or the end of a field is spelled out: a person sees that it is there, and nothing comes of it.

    line       what is printed by itself
    one_line   a field of a terminal, a table, a log record, an attribute, a tag
    distinct_line  the same of what is told apart by it, such as a category's name
    lines      the same of several lines, such as an error's message
    markdown   inside a line or a table's cell: cards, artifacts of Prefect, descriptions in MLflow, summaries of CI
    markdown_table
    code       the same, between backticks
    code_block a block between fences
    html       the content of an element, or of a quoted attribute
    xml        what XML 1.0 can hold; its writer escapes the rest
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape

MAX_FIELD_CHARS = 2_000
"""Of one field in a page or a table; documents and JSON hold the whole."""

_WORKFLOW_COMMAND = re.compile(r"(?<!\S):(?=:[A-Za-z])|#(?=#\w*\[)")
"""GitHub reads `::name::` where a line begins, `##[name]` anywhere; Azure and TeamCity `##vso[` and `##teamcity[`.
Where a line begins is for whoever wraps it to say, so every word counts; whether `::` follows on the line is not looked
for, which would cost the square of a line's length."""
_EMOJI_CODE = re.compile(r":(?=[^\W\d]|[+-])|(?<!\d):(?=\d)")
"""Of `:smile:` the first half is enough: what follows may be a colon of ours."""
_LINK = re.compile(r":(?=//)|(?<=\bwww)\.|(?<=mailto):|(?<=xmpp):", re.IGNORECASE)
_INTERVAL = r"\[[-+\d.,einf]+, [-+\d.,einf]+\](?!\s*[(\[:])"
"""A figure's interval cannot be part of a link, and is in every card."""
_MARKED = re.compile(rf"{_INTERVAL}|[\\`*~|\[\]]|(?<![^\W_])_|_(?![^\W_])")
_BLOCK = re.compile(r"^(?:#|[=+-](?=[\s=+-]|$))")
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
_ENTITY = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "$": "&#36;"}
"""GitHub and Jupyter set what is between two `$` as mathematics, a backslash before them or not."""
_LIKE_A_DIGEST = re.compile(r" \(sha256 [0-9a-f]{12}\)$")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def one_line(text: str, max_chars: int | None = None) -> str:
    """Printable characters alone; line feeds, controls, directions, half surrogates are spelled, such as `\\x1b`.

    Args:
        max_chars: what is longer is cut, with a mark.
    """
    # Cut first: spelling out a long text of control characters would cost its whole length.
    if max_chars is not None and len(text) > max_chars:
        text = f"{text[: max_chars - 1]}…"
    # Most text is printable as it is; the slow way is for the rest.
    return _without_commands(text if text.isprintable() else "".join(map(_spelled, text)))


def distinct_line(text: str, max_chars: int, *, is_plain: bool = True) -> str:
    """As `one_line`, with a digest behind what is not the text itself: two texts never look the same.

    Args:
        is_plain: whether the text may stand for itself where it can be shown as it is.
    """
    shown = one_line(text, max_chars)
    if is_plain and shown == text and not _LIKE_A_DIGEST.search(text):
        return text
    # By digest: two names that are shown alike, such as with other control characters, stay apart.
    return f"{shown} (sha256 {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]})"


def line(text: str) -> str:
    """As `one_line`, but that line feeds at its ends stay: those are the writer's."""
    body = text.strip("\n")
    before, _, after = text.partition(body) if body else (text, "", "")
    return f"{before}{one_line(body)}{after}"


def lines(text: str) -> str:
    """As `one_line`, but that line feeds stay: for text that may have several lines, such as an error's."""
    # Tabs become blanks before controls are spelled out.
    return "\n".join(one_line(each.expandtabs()) for each in text.split("\n"))


def markdown(text: str) -> str:
    """Text within a line, or within a cell of a table, that no renderer takes for markup, a link or a mention.

    It holds for CommonMark with GitHub's extensions and for showdown, which MLflow uses.
    """
    # Entities first: an ampersand that a later step brings in must not be escaped again.
    plain = _EMOJI_CODE.sub("&#58;", _LINK.sub(_as_entity, _entities(one_line(text.strip(), MAX_FIELD_CHARS))))
    return _NUMBERED.sub(r"\1\\\2", _BLOCK.sub(_as_entity, _MARKED.sub(_backslashed, plain)))


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table whose cells are text."""
    head, *body = ([markdown(each) for each in row] for row in (titles, *rows))
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def code(text: str) -> str:
    """Text between backticks, also in a cell: what a person may copy."""
    # A pipe ends a table's cell even between backticks.
    plain = one_line(text, MAX_FIELD_CHARS).replace("|", "\\|")
    # A fence longer than any run inside cannot be closed by the text.
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    space = " " if plain[:1] == "`" or plain[-1:] == "`" or not plain else ""
    return f"{fence}{space}{plain}{space}{fence}"


def code_block(text: str) -> str:
    """Lines between fences that they cannot close."""
    plain = lines(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}text\n{plain}\n{fence}"


def html(text: str) -> str:
    """The content of an element or of a quoted attribute; a name in it cannot imitate another."""
    return escape(one_line(text))


def xml(text: str) -> str:
    """What XML 1.0 can hold."""
    return _NOT_IN_XML.sub(lambda found: _spelled(found[0]), lines(text))


def _spelled(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def _without_commands(text: str) -> str:
    # The first character is spelled: the command is still to be seen, and no longer one.
    return _WORKFLOW_COMMAND.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _entities(text: str) -> str:
    return re.sub("[&<>@$]", lambda found: _ENTITY[found[0]], text)


def _as_entity(found: re.Match[str]) -> str:
    # Entities are not looked into by renderers for links and emoji.
    return "".join(f"&#{ord(each)};" if not each.isalnum() else each for each in found[0])


def _backslashed(found: re.Match[str]) -> str:
    return found[0] if len(found[0]) > 1 else f"\\{found[0]}"
