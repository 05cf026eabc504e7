"""The report's list of rows quarantined: how many by rule, and the names of some. Their values are shown nowhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from headway.data_contracts.engine.quarantine import QuarantinedRow
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types import report_text

MAX_ROWS_OF_RULE = 10
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
    listed = "".join(_rule(rule, number, sample) for rule, number in sample.num_by_rule.items())
    return (
        f"<section><h2>Quarantined <span class='count'>{num_quarantined:,}</span></h2>"
        f"<p class='note'>{share:.2g} % of all rows, left out of training; at most {limit_ratio * 100:.4g} % may be. "
        f"Rows count from 0 in their file. Values are redacted: look a row up by its name.</p>{listed}</section>"
    )


def _rule(rule: str, number: int, sample: QuarantineSample) -> str:
    rows = [row for row in sample.rows if rule in row.rule_ids][:MAX_ROWS_OF_RULE]
    listed = "".join(_row(row, rule) for row in rows)
    more = f"<p class='note'>and {number - len(rows):,} more.</p>" if number > len(rows) else ""
    counted = f"<span class='count'>{report_text.count(number, 'row')}</span>"
    return (
        f"<details open><summary><code>{html(rule)}</code> {counted}</summary>"
        "<div class='scroll'><table><thead><tr><th>File</th><th class='row'>Row</th><th>Also breaks</th></tr>"
        f"</thead><tbody>{listed}</tbody></table></div>{more}</details>"
    )


def _row(row: QuarantinedRow, rule: str) -> str:
    others = ", ".join(f"<code>{html(other)}</code>" for other in row.rule_ids if other != rule)
    return (
        f"<tr><td class='path'><code>{html(row.path)}</code></td><td class='row'>{row.row:,}</td><td>{others}</td></tr>"
    )
