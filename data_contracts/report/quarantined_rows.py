"""The report's list of rows quarantined: how many by rule, and the names of some. Their values are shown nowhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.engine.quarantine import QuarantinedRow
from headway.data_contracts.store.documents import ExpectationVerdict
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types import report_text

MAX_ROWS_OF_RULE = 10
MAX_RULES = 5
"""That are named at once."""
MAX_EXAMPLES = 3
"""Ranges beside a failing rule."""
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantineSample:
    """What a quarantine file lists, cut short."""

    num_by_rule: dict[str, int] = field(default_factory=dict)
    """Rows that break a rule, most first; a row that breaks two counts for both."""
    rows: tuple[QuarantinedRow, ...] = ()
    """The first rows of every rule, in the file's order."""


def sample_quarantine(table: Path | BytesIO) -> QuarantineSample:
    """Read a quarantine file within bounded memory."""
    import pyarrow.parquet as pq

    num_by_rule, rows = Counter[str](), []
    with pq.ParquetFile(table) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            paths, numbers, rules = (batch.column(name) for name in ("path", "row", "rule_ids"))
            for place, rule_ids in enumerate(rules.to_pylist()):
                num_by_rule.update(rule_ids)
                if any(num_by_rule[rule] <= MAX_ROWS_OF_RULE for rule in rule_ids):
                    rows.append(QuarantinedRow(paths[place].as_py(), numbers[place].as_py(), tuple(rule_ids)))
    ordered = sorted(num_by_rule.items(), key=lambda item: (-item[1], item[0]))
    return QuarantineSample(num_by_rule=dict(ordered), rows=tuple(rows))


def quarantine_section(sample: QuarantineSample, *, num_quarantined: int, num_rows: int, limit_ratio: float) -> str:
    """The section; empty when no row is quarantined.

    Args:
        num_rows: rows that remain.
    """
    if not num_quarantined:
        return ""
    share = 100 * num_quarantined / (num_quarantined + num_rows)
    rules = list(sample.num_by_rule.items())
    drawn = [_rule(rule, number, sample, is_open=place == 0) for place, (rule, number) in enumerate(rules)]
    listed, rest = "".join(drawn[:MAX_RULES]), "".join(drawn[MAX_RULES:])
    if rest:
        listed += (
            f"<details><summary>{report_text.count(len(drawn) - MAX_RULES, 'more rule')}</summary>{rest}</details>"
        )
    return (
        f"<section><h2>Quarantined <span class='count'>{num_quarantined:,}</span></h2>"
        f"<p class='note'>{share:.2g} % of all rows, left out of training; at most {limit_ratio * 100:.4g} % may be. "
        f"Rows count from 0 in their file. Values are redacted: look a row up by its name.</p>{listed}</section>"
    )


def _rule(rule: str, number: int, sample: QuarantineSample, *, is_open: bool) -> str:
    """Only the first is unfolded: of forty rules the page would be a list of rows."""
    rows = [row for row in sample.rows if rule in row.rule_ids][:MAX_ROWS_OF_RULE]
    listed = "".join(_range(span, rule) for span in ranges_of(rows))
    more = f"<p class='note'>and {number - len(rows):,} more.</p>" if number > len(rows) else ""
    counted = f"<span class='count'>{report_text.count(number, 'row')}</span>"
    return (
        f"<details{' open' if is_open else ''}><summary><code>{html(rule)}</code> {counted}</summary>"
        "<div class='scroll'><table><thead><tr><th>File</th><th class='row'>Row</th><th>Also breaks</th></tr>"
        f"</thead><tbody>{listed}</tbody></table></div>{more}</details>"
    )


class RowRange(NamedTuple):
    """Rows of a file that follow one another and break the same rules."""

    path: str
    first: int
    last: int
    rule_ids: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.first:,}" if self.first == self.last else f"{self.first:,} to {self.last:,}"


def ranges_of(rows: Sequence[QuarantinedRow]) -> list[RowRange]:
    found: list[RowRange] = []
    for row in rows:
        last = found[-1] if found else None
        if last is not None and (row.path, row.row, row.rule_ids) == (last.path, last.last + 1, last.rule_ids):
            found[-1] = last._replace(last=row.row)
        else:
            found.append(RowRange(row.path, row.row, row.row, row.rule_ids))
    return found


def _range(span: RowRange, rule: str) -> str:
    others = ", ".join(f"<code>{html(other)}</code>" for other in span.rule_ids if other != rule)
    cells = f"<td class='path'><code>{html(span.path)}</code></td><td class='row'>{span.text}</td><td>{others}</td>"
    return f"<tr>{cells}</tr>"


def examples_of(verdict: ExpectationVerdict, sample: QuarantineSample) -> str:
    """Where rows break a rule, as HTML: names of files and numbers of rows, no values; empty where none is known."""
    rule = verdict.rule_id
    rows = [QuarantinedRow(each.path, each.row, (rule,)) for each in verdict.broken_rows]
    rows = rows or [row for row in sample.rows if rule in row.rule_ids][:MAX_ROWS_OF_RULE]
    spans = ranges_of(rows)[:MAX_EXAMPLES]
    if not spans:
        return ""
    listed = "; ".join(f"<code>{html(span.path)}</code> {span.text}" for span in spans)
    return f"<div class='before'>rows {listed}</div>"
