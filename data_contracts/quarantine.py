"""Quarantine: rows that break a rule with `action: quarantine` are listed by path and rules, and left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from data_contracts.checks import Check
from data_contracts.documents import QuarantinedRow
from data_contracts.exact_checks import breaks_sql, one_value
from data_contracts.rows_database import ALL_ROWS, literal

MAX_LISTED_ROWS = 1000
"""How many rows are listed once the limit is broken: nothing is trained then, and a receipt must stay small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantine:
    num_rows: int
    """Rows before quarantine."""
    num_quarantined: int
    num_allowed: int
    rows: tuple[QuarantinedRow, ...]
    num_by_check: dict[str, int]
    """Rows set aside by each check, by `rule_id`."""
    raised: dict[str, str]
    """Checks that could not be judged, by `rule_id`, and the kind of error."""

    @property
    def is_within_limit(self) -> bool:
        return self.num_quarantined <= self.num_allowed


def set_aside(connection: duckdb.DuckDBPyConnection, checks: Sequence[Check], limit_ratio: float) -> Quarantine:
    """Fill the table of broken rows, which takes them out of the view of rows, and list them.

    A rule that raises sets nothing aside and is reported: its check fails.
    """
    raised: dict[str, str] = {}
    num_by_check: dict[str, int] = {}
    for check in checks:
        try:
            num_by_check[check.rule_id] = _insert(connection, check)
        except duckdb.Error as error:
            raised[check.rule_id] = type(error).__name__
    num_rows = int(one_value(connection, f"SELECT count(*) FROM {ALL_ROWS}"))
    num_quarantined = int(one_value(connection, "SELECT count(*) FROM set_aside"))
    num_allowed = int(num_rows * limit_ratio)
    return Quarantine(
        num_rows=num_rows,
        num_quarantined=num_quarantined,
        num_allowed=num_allowed,
        rows=_listed(connection, num_quarantined if num_quarantined <= num_allowed else MAX_LISTED_ROWS),
        num_by_check=num_by_check,
        raised=raised,
    )


def _insert(connection: duckdb.DuckDBPyConnection, check: Check) -> int:
    rule = literal(check.quarantine_rule)
    row = connection.execute(
        f"INSERT INTO broken SELECT file_row_number, path, {rule} FROM {ALL_ROWS} WHERE {breaks_sql(check)}"
    ).fetchone()
    assert row is not None
    return int(row[0])


def _listed(connection: duckdb.DuckDBPyConnection, limit: int) -> tuple[QuarantinedRow, ...]:
    found = connection.execute(
        "SELECT coalesce(any_value(path), '') AS path, list_sort(list(DISTINCT rule_id)) FROM broken "
        f"GROUP BY file_row_number ORDER BY path, file_row_number LIMIT {limit}"
    ).fetchall()
    return tuple(QuarantinedRow(path=path, rule_ids=tuple(rule_ids)) for path, rule_ids in found)
