"""Inputs that alone tell a drafted label: found as the contract's check finds them, in a bounded sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import duckdb

from headway.data_contracts.scans.label_leaks import Label, find_leaks
from headway.data_contracts.scans.rows_database import NAMED_ROWS, identifier, rows_in_memory
from headway.data_contracts.tables.rows_files import FILE_COLUMN, ROW_COLUMN

MAX_ROWS = 100_000
MAX_CELLS = 1 << 25
"""Values that are held in memory: of a wide table fewer rows are looked at."""


class LeakingInputs(NamedTuple):
    """What a draft says of leaks."""

    label: str = ""
    certain: tuple[str, ...] = ()
    """Inputs that each tell the label but for a chance error."""
    likely: tuple[str, ...] = ()
    """Inputs that do so but for a few errors: a leak with noise, or very good ones."""
    rows: str = ""
    """Which rows were looked at, in words; empty where they could not be asked."""

    def named(self, column: str) -> str:
        """What a column does; empty where it is no leak."""
        if column in self.certain:
            return f"alone tells {self.label}"
        return f"alone nearly tells {self.label}" if column in self.likely else ""


NO_LEAKS = LeakingInputs()


def leaking_inputs(
    connection: duckdb.DuckDBPyConnection, label: Label, types: Mapping[str, str], num_rows: int
) -> LeakingInputs:
    """Look at all rows of the views, or at as many as are held in memory, chosen by a hash of their places.

    Of rows that cannot be asked nothing is known: the contract's check looks at all of them later.

    Args:
        types: of the rows' columns, by name.
        num_rows: of the view.
    """
    wanted = {name: types[name] for name in dict.fromkeys((label.column, *label.inputs))}
    every = -(-num_rows // min(MAX_ROWS, max(1, MAX_CELLS // len(wanted))))
    chosen = f" WHERE hash({FILE_COLUMN}, {ROW_COLUMN}) % {every} = 0" if every > 1 else ""
    names = ", ".join(identifier(name) for name in wanted)
    try:
        # A cursor of its own: the profile's last answer may not be read to its end.
        rows = connection.cursor().sql(f"SELECT {names} FROM {NAMED_ROWS}{chosen}").to_arrow_table()
        with rows_in_memory(rows) as sample:
            certain, likely = find_leaks(sample, label, wanted)
    except duckdb.Error:
        return LeakingInputs(label.column)
    seen = f"{rows.num_rows:,} of {num_rows:,} rows" if chosen else "all rows"
    return LeakingInputs(label.column, certain, likely, seen)
