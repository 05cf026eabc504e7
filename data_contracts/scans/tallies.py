"""Tallies: figures of the rows that remain, counted in as few scans as can be, file by file where they are kept.

A figure of an unchanged file is never counted twice: `FileStates` remembers it from one snapshot to the next. Merging
is exact, so that the totals are the same whether anything was remembered or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

from headway.data_contracts.scans.figures import Figure, Grouped, Scalar
from headway.data_contracts.scans.file_states import MAX_STATE_GROUPS, FileStates
from headway.data_contracts.scans.rows_database import NAMED_ROWS, RowsDatabase
from headway.data_contracts.tables.rows_files import FILE_COLUMN

LARGE_FILE_ROWS = 100_000
"""A file of so many rows is scanned by itself, faster by row; smaller ones are scanned together and grouped."""
Part = int
WHOLE: Part = -1
"""The part that is all rows: when nothing is kept, files need not be told apart."""


class Tallies:
    """Totals over the rows that remain after quarantine.

    Args:
        connection: to `database`, whose views are made and whose broken rows are quarantined.
        is_quarantined: whether any row was.
        states: what earlier snapshots' files counted; None scans everything at once and keeps nothing.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        database: RowsDatabase,
        *,
        is_quarantined: bool,
        states: FileStates | None = None,
    ) -> None:
        self._connection = connection
        self._database = database
        self._is_quarantined = is_quarantined
        self._states = None if database.rows.is_packed else states
        self._parts: list[Part] = [WHOLE] if self._states is None else list(range(len(database.rows.files)))
        self._values: dict[str, dict[Part, Any]] = {}
        self._errors: dict[str, duckdb.Error] = {}

    def total(self, figures: Sequence[Figure]) -> list[Any]:
        """The value of each figure for all rows; an error in its place where DuckDB raised one."""
        # Several checks may need one figure, such as the number of rows; it is counted once.
        self._count([figure for figure in dict.fromkeys(figures) if figure.name not in self._errors])
        return [
            self._errors[figure.name] if figure.name in self._errors else figure.merged(self._kept(figure))
            for figure in figures
        ]

    def _kept(self, figure: Figure) -> Iterator[Any]:
        counted = self._values[figure.name]
        return (counted[part] for part in self._parts)

    def _count(self, figures: Sequence[Figure]) -> None:
        for figure in figures:
            if figure.name not in self._values:
                self._values[figure.name] = self._remembered(figure)
        missing: dict[tuple[Part, ...], list[Figure]] = {}
        for figure in figures:
            parts = tuple(part for part in self._parts if part not in self._values[figure.name])
            if parts:
                missing.setdefault(parts, []).append(figure)
        for parts, uncounted in missing.items():
            self._scan(parts, [figure for figure in uncounted if isinstance(figure, Scalar)])
            # Each grouped figure has its own groups, so it needs its own query.
            for figure in uncounted:
                if isinstance(figure, Grouped):
                    self._attempt(parts, [figure])

    def _remembered(self, figure: Figure) -> dict[Part, Any]:
        return {} if self._states is None else self._states.known(figure.name)

    def _scan(self, parts: tuple[Part, ...], figures: Sequence[Scalar]) -> None:
        """One scan for all figures; if one of them raises, halves of them find out which."""
        if figures and not self._attempt(parts, figures) and len(figures) > 1:
            middle = len(figures) // 2
            self._scan(parts, figures[:middle])
            self._scan(parts, figures[middle:])

    def _attempt(self, parts: tuple[Part, ...], figures: Sequence[Figure]) -> bool:
        found: dict[Part, list[Any]] = {}
        try:
            for places in self._scans(parts):
                found |= self._query(places, figures)
        except duckdb.Error as error:
            if len(figures) == 1:
                self._errors[figures[0].name] = error
            return False
        for position, figure in enumerate(figures):
            # A file whose rows were all quarantined forms no group in the query; it counts as scanned all the same.
            empty: Any = {} if isinstance(figure, Grouped) else None
            for part in parts:
                value = found[part][position] if part in found else empty
                self._values[figure.name][part] = value
                if self._states is not None and not (isinstance(value, dict) and len(value) > MAX_STATE_GROUPS):
                    self._states.keep(part, figure.name, value)
        return True

    def _scans(self, parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
        """Parts that one query reads together."""
        if parts == (WHOLE,):
            yield parts
            return
        files = self._database.rows.files
        yield from ((part,) for part in parts if files[part].num_rows >= LARGE_FILE_ROWS)
        small = tuple(part for part in parts if files[part].num_rows < LARGE_FILE_ROWS)
        if small:
            yield small

    def _query(self, places: tuple[Part, ...], figures: Sequence[Figure]) -> dict[Part, list[Any]]:
        source = NAMED_ROWS
        if places != (WHOLE,):
            source = self._database.rows_of(places, is_quarantined=self._is_quarantined)
        by_file = len(places) > 1
        if isinstance(figures[0], Grouped):
            return self._query_groups(source, places, by_file, figures[0])
        selected = ", ".join(figure.sql for figure in figures if isinstance(figure, Scalar))
        if not by_file:
            rows = self._connection.execute(f"SELECT {selected} FROM {source}").fetchall()
            return {places[0]: list(rows[0])}
        sql = f"SELECT {FILE_COLUMN}, {selected} FROM {source} GROUP BY {FILE_COLUMN}"
        return {row[0]: list(row[1:]) for row in self._connection.execute(sql).fetchall()}

    def _query_groups(
        self, source: str, places: tuple[Part, ...], by_file: bool, figure: Grouped
    ) -> dict[Part, list[Any]]:
        file = FILE_COLUMN if by_file else places[0]
        keyed = f"SELECT {file} AS part, {figure.key_sql} AS key, {figure.weight_sql} AS weight FROM {source}"
        sql = f"SELECT part, key, sum(weight) FROM ({keyed}) GROUP BY part, key"
        found: dict[Part, list[Any]] = {part: [{}] for part in places}
        for part, key, weight in self._connection.execute(sql).fetchall():
            found[part][0][int(key)] = int(weight)
        return found
