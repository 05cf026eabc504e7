"""Rows that break a quarantine rule: found in one scan for all rules, and not at all in files that are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.scans.exact_checks import breaks_sql, one_value
from headway.data_contracts.scans.file_states import MAX_STATE_GROUPS, FileStates
from headway.data_contracts.scans.rows_database import ALL_ROWS, BROKEN, FILES, NAMED_ROWS, RowsDatabase, literal
from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import RowName
from headway.data_contracts.tables.rows_files import FILE_COLUMN, PATH_COLUMN, ROW_COLUMN

HITS = "hits"
MAX_CHECKS = 60
"""Checks a scan can tell apart: one bit each of a 64-bit integer."""


def find_broken(
    connection: duckdb.DuckDBPyConnection,
    database: RowsDatabase,
    checks: Sequence[Check],
    states: FileStates | None = None,
) -> tuple[dict[str, int], dict[str, str]]:
    """Put the rows that break a check into `BROKEN`, under the check's quarantine rule.

    Returns:
        Rows that break each check, by `rule_id`; and for those that raised, by `rule_id`, the kind of error.
    """
    # All checks share one query, and one that does not bind would fail the others with it.
    raised = {check.rule_id: error for check in checks if (error := _binding_error(connection, check))}
    sound = [check for check in checks if check.rule_id not in raised]
    num_by_check: dict[str, int] = {}
    for start in range(0, len(sound), MAX_CHECKS):
        chunk = sound[start : start + MAX_CHECKS]
        try:
            # A packed table holds one row per file, so that there is no file of rows to remember.
            num_by_check |= _find(connection, database, chunk, None if database.rows.is_packed else states)
        except duckdb.Error as error:
            # One query serves all checks of the chunk, so it is not known which of them raised.
            raised |= {check.rule_id: type(error).__name__ for check in chunk}
    return num_by_check, raised


def first_broken(connection: duckdb.DuckDBPyConnection, check: Check, limit: int) -> tuple[RowName, ...]:
    """The first of the rows that remain and break a row-level check, by file and number.

    Raises:
        duckdb.Error: the check cannot be evaluated.
    """
    name = f"{FILE_COLUMN}, {ROW_COLUMN}"
    # The few are found first: a join of all broken rows with their files' names would be large.
    found = f"SELECT {name} FROM {NAMED_ROWS} WHERE {breaks_sql(check)} ORDER BY {name} LIMIT {limit}"
    sql = f"SELECT {PATH_COLUMN}, {ROW_COLUMN} FROM ({found}) JOIN {FILES} USING ({FILE_COLUMN}) ORDER BY {name}"
    return tuple(RowName(path=path, row=row) for path, row in connection.execute(sql).fetchall())


def _binding_error(connection: duckdb.DuckDBPyConnection, check: Check) -> str:
    try:
        connection.execute(f"SELECT {breaks_sql(check)} FROM {ALL_ROWS} LIMIT 0")
    except duckdb.Error as error:
        return type(error).__name__
    return ""


def _find(
    connection: duckdb.DuckDBPyConnection, database: RowsDatabase, checks: Sequence[Check], states: FileStates | None
) -> dict[str, int]:
    conditions = [breaks_sql(check) for check in checks]
    name = sha256_of(["broken", *conditions])[:24]
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {HITS} (file BIGINT, row BIGINT, bits BIGINT)")
    known = {} if states is None else states.known(name)
    for place, rows in known.items():
        if rows:
            connection.executemany(f"INSERT INTO {HITS} VALUES (?, ?, ?)", [(place, row, bits) for row, bits in rows])
    missing = [place for place in range(len(database.rows.files)) if place not in known]
    if missing:
        source = database.rows_of(missing, is_quarantined=False) if known else ALL_ROWS
        connection.execute(f"INSERT INTO {HITS} {_hits_sql(conditions, source)}")
    if states is not None:
        _keep(connection, states, name, missing)
    return _settle(connection, checks)


def _hits_sql(conditions: Sequence[str], source: str) -> str:
    bits = " | ".join(
        f"(CASE WHEN {condition} THEN {1 << place} ELSE 0 END)" for place, condition in enumerate(conditions)
    )
    return (
        f"SELECT * FROM (SELECT {FILE_COLUMN} AS file, {ROW_COLUMN} AS row, ({bits})::BIGINT AS bits FROM {source}) "
        "WHERE bits <> 0"
    )


def _keep(connection: duckdb.DuckDBPyConnection, states: FileStates, name: str, places: Sequence[int]) -> None:
    counted: dict[int, int] = dict(connection.execute(f"SELECT file, count(*) FROM {HITS} GROUP BY file").fetchall())
    for place in places:
        # A file that breaks rules everywhere would make the state grow with the data; it is scanned every time.
        if counted.get(place, 0) <= MAX_STATE_GROUPS:
            sql = f"SELECT row, bits FROM {HITS} WHERE file = {place} ORDER BY row"
            rows = connection.execute(sql).fetchall() if place in counted else []
            states.keep(place, name, [list(row) for row in rows])


def _settle(connection: duckdb.DuckDBPyConnection, checks: Sequence[Check]) -> dict[str, int]:
    by_rule: dict[str, int] = {}
    for place, check in enumerate(checks):
        by_rule[check.quarantine_rule] = by_rule.get(check.quarantine_rule, 0) | 1 << place
    # A rule may have several checks, and a row that breaks two of them is one row of the rule.
    for rule, bits in by_rule.items():
        connection.execute(
            f"INSERT INTO {BROKEN} SELECT file, row, {literal(rule)} FROM {HITS} WHERE bits & {bits} <> 0"
        )
    return {
        check.rule_id: int(one_value(connection, f"SELECT count(*) FROM {HITS} WHERE bits & {1 << place} <> 0"))
        for place, check in enumerate(checks)
    }
