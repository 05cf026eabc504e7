"""A contract drafted from a profile: valid YAML that the profiled data keep, and comments for the person who decides.

A comment says what was seen; where a line is a guess about data still to come, it says DECIDE. Of a column that may
hold personal data no value is written, and no bound made from one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from headway.data_contracts.drafting.bounds import fewest_rows
from headway.data_contracts.drafting.columns import Line, column_lines
from headway.data_contracts.drafting.profile import TableProfile
from headway.data_contracts.drafting.set_rules import set_rule_lines
from headway.data_contracts.store.plain_text import one_line

COMMENT_COLUMN = 36
COMMENT_CHARS = 100
QUARANTINE_LIMIT_RATIO = 0.01


def draft_contract(profile: TableProfile, *, name: str, source: str, is_text: bool, now_unix_s: float) -> str:
    """The text of a contract.

    Args:
        source: what was profiled, in words, for the comment at the top.
        is_text: whether each row is a text file, in the columns that Headway computes.
        now_unix_s: what the age of the newest row is told by.
    """
    columns = [line for column in profile.columns for line in column_lines(column, is_text=is_text)]
    rules = _utf8_rule() if is_text else ()
    lines = [*_head(name, source), *_rows(profile), ("", ""), ("columns:", ""), *columns, *rules]
    lines += set_rule_lines(profile, now_unix_s=now_unix_s)
    return formatted(lines)


def formatted(lines: Sequence[Line]) -> str:
    """YAML with its comments side by side; a comment without YAML is wrapped where it stands."""
    return "\n".join(text for line in lines for text in _formatted(*line)) + "\n"


def _formatted(text: str, comment: str) -> Iterator[str]:
    comment = one_line(comment)  # the name of a folder, say: what YAML takes for the end of a line ends a comment
    if not comment:
        yield text
    elif text.strip():
        yield f"{text:<{COMMENT_COLUMN - 2}}  # {comment}"
    else:
        pieces = textwrap.wrap(comment, COMMENT_CHARS, break_long_words=False, break_on_hyphens=False)
        yield from (f"{text}# {piece}" for piece in pieces)


def _head(name: str, source: str) -> Iterator[Line]:
    yield "", f"Drafted from {source}."
    yield (
        "",
        (
            "It passes on the very data it was drafted from. What may come is for a person to say: go through the "
            "lines marked DECIDE, correct or delete them, and take out the comments that have done their work."
        ),
    )
    yield f"name: {name}", ""
    yield "version: 1.0.0", "to refuse what this version accepts takes 2.0.0"
    yield "description: >-", ""
    yield "  DECIDE: what the data are, and who answers for them.", ""
    yield "", ""


def _rows(profile: TableProfile) -> Iterator[Line]:
    yield "rows:", ""
    yield (
        f"  min: {fewest_rows(profile.num_rows)}",
        (f"{profile.num_rows:,} were seen, the bound is half. DECIDE: how few mean that something is lost?"),
    )


def _utf8_rule() -> Iterator[Line]:
    yield "", ""
    yield f"quarantine_limit_ratio: {QUARANTINE_LIMIT_RATIO}", ""
    yield "rules:", ""
    yield "  - id: utf-8", ""
    yield "    description: A tokenizer is trained on text", ""
    yield "    column: is_utf8", ""
    yield "    in: [true]", ""
    yield "    action: quarantine", ""
