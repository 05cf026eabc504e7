"""A contract drafted from a profile: valid YAML that the profiled data keep, and comments for the person who decides.

A comment says what was seen; where a line is a guess about data still to come, it says DECIDE. Of a column that may
hold personal data no value is written, and no bound made from one.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from headway.data_contracts.drafting.bounds import fewest_rows
from headway.data_contracts.drafting.columns import Line, column_lines, scalar, share_of
from headway.data_contracts.drafting.leaking_inputs import NO_LEAKS, LeakingInputs
from headway.data_contracts.drafting.profile import ColumnProfile, TableProfile, is_key_name
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.types import report_text

COMMENT_COLUMN = 36
COMMENT_CHARS = 100
QUARANTINE_LIMIT_RATIO = 0.01


def draft_contract(
    profile: TableProfile,
    *,
    name: str,
    source: str,
    is_text: bool,
    now_unix_s: float,
    label: str = "",
    leaks: LeakingInputs = NO_LEAKS,
) -> str:
    """The text of a contract.

    Args:
        source: what was profiled, in words, for the comment at the top.
        is_text: whether each row is a text file, in the columns that Headway computes.
        label: the column to predict: a closed set where it has few values, and no row without one.
        now_unix_s: what the age of the newest row is told by.
        leaks: inputs that alone tell the label.
    """
    columns = [
        line
        for column in profile.columns
        for line in column_lines(column, is_text=is_text, is_label=column.name == label, leaks=leaks)
    ]
    gaps = next((column for column in profile.columns if column.name == label and column.num_nulls), None)
    rules = _utf8_rule() if is_text else () if gaps is None else _label_rule(gaps)
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


def _label_rule(label: ColumnProfile) -> Iterator[Line]:
    ratio = min(0.99, math.ceil(150 * label.num_nulls / label.num_rows) / 100)
    yield "", ""
    yield f"quarantine_limit_ratio: {ratio}", f"{share_of(label.num_nulls, label.num_rows)} have no label"
    yield "rules:", ""
    yield "  - id: label-is-there", ""
    yield "    description: A model learns from rows with a label", ""
    yield f"    column: {scalar(label.name)}", ""
    yield "    not_null: true", ""
    yield "    action: quarantine", "DECIDE: `fail`, if a row without a label is a mistake"


MAX_PSI = 0.2
"""A population stability index above 0.2 is commonly called a shift."""
MAX_DRIFT_COLUMNS = 100
HOUR_S = 3600.0
MAX_AGE_OF_LIVE_DATA_H = 90 * 24
"""Older than a season is an archive: whoever drafts a contract of it does not wait for fresh rows."""
MAX_AHEAD_H = 24


def set_rule_lines(profile: TableProfile, *, now_unix_s: float) -> Iterator[Line]:
    """The lines of a contract below its columns and rules."""
    if profile.key:
        yield "", ""
        yield "keys:", ""
        names = scalar(list(profile.key))
        is_meant = any(is_key_name(name) for name in profile.key)
        advisory = "" if is_meant else ", severity: warning"
        yield f"  - {{id: row-key, columns: {names}{advisory}}}", "no two rows share them. DECIDE: a key, or chance?"
    if profile.num_repeated:
        yield "", ""
        yield "keys:", ""
        names = scalar([column.name for column in profile.columns])
        seen = (
            f"{share_of(profile.num_repeated, profile.num_rows)} repeat an earlier one. DECIDE: a mistake, or chance?"
        )
        yield f"  - {{id: no-row-twice, columns: {names}, severity: warning}}", seen
    yield "", ""
    yield "volume: {min_ratio: 0.5, max_ratio: 2.0}", "rows against the last accepted snapshot; the first has none"
    yield from _drift(profile)
    yield from _freshness(profile, now_unix_s)


def _drift(profile: TableProfile) -> Iterator[Line]:
    watched = [column.name for column in profile.columns if is_watched(column)]
    if not watched:
        return
    yield "", ""
    if len(watched) > MAX_DRIFT_COLUMNS:
        yield "", f"{len(watched):,} columns could be watched; the first {MAX_DRIFT_COLUMNS} are."
    yield "drift:", ""
    yield "  - id: drift", "the shape of each column against the last accepted snapshot"
    yield f"    columns: {scalar(watched[:MAX_DRIFT_COLUMNS])}", ""
    yield f"    max_psi: {MAX_PSI}", "population stability index; above 0.2 is commonly called a shift"
    yield "    severity: warning", "DECIDE: critical, once you know how far a good day moves it"


def is_watched(column: ColumnProfile) -> bool:
    """Whether a column has a distribution worth comparing: numbers that are no key, and small sets of values."""
    if column.is_unique or column.is_partition or column.suspicions or column.num_distinct < 2:
        return False
    return column.family in ("integer", "float", "decimal", "bool") or bool(column.values)


def _freshness(profile: TableProfile, now_unix_s: float) -> Iterator[Line]:
    times = [column for column in profile.columns if column.family in ("date", "timestamp") and column.high is not None]
    ages_h = {column.name: (now_unix_s - (column.high or 0)) / HOUR_S for column in times}
    past = {name: age_h for name, age_h in ages_h.items() if age_h >= -MAX_AHEAD_H}
    if not past:
        return
    newest = min(past, key=lambda name: (abs(past[name]), name))
    age_h = max(past[newest], 0.0)
    written = next(report_text.moment(column.high) for column in times if column.name == newest)
    yield "", ""
    if age_h > MAX_AGE_OF_LIVE_DATA_H:
        yield (
            "",
            (
                f"The newest {scalar(newest)} is {written}, so no freshness is asked for. DECIDE: if rows are to "
                "arrive, `freshness: [{id: fresh, column: ..., max_age_h: 24}]` says how late they may be."
            ),
        )
        return
    yield "freshness:", ""
    yield "  - id: fresh", "checked against the clock whenever the data pass the gate"
    yield f"    column: {scalar(newest)}", f"the newest is {written} UTC"
    yield f"    max_age_h: {max(24, math.ceil(2 * age_h))}", "DECIDE: how late may the newest row be?"
    yield "    severity: warning", ""
