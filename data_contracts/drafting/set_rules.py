"""Rules about the whole set, drafted: keys, volume, drift and freshness, with what to watch before they refuse."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headway.data_contracts.drafting.columns import Line, scalar
from headway.data_contracts.drafting.profile import ColumnProfile, TableProfile
from headway.data_contracts.types import report_text

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
        yield f"  - {{id: row-key, columns: {names}}}", "no two rows share them. DECIDE: a key, or chance?"
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
    if column.is_unique or column.suspicions or column.num_distinct < 2:
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
