"""How dates are written that are texts so far: by all rows of all files, of which first lines alone may not tell."""

from __future__ import annotations

from typing import NamedTuple

import duckdb

from headway.data_contracts.drafting.profile import TableProfile
from headway.data_contracts.scans.rows_database import ROWS, identifier
from headway.data_contracts.sources.delimited import DATE_OR_ISO, LAST_MONTH, date_formats


class TextDates(NamedTuple):
    """How dates are written in columns that are texts, by all of their values."""

    formats: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    """Of which nothing tells one from the other."""


def text_dates(connection: duckdb.DuckDBPyConnection, profile: TableProfile) -> TextDates:
    """One value of each sort says what all values of a column would: its shape, and which number is no month."""
    columns: list[list[str]] = []
    for column in profile.columns:
        if column.family != "string" or not column.num_values:
            continue
        name = identifier(column.name)
        values = f"FROM {ROWS} WHERE {name} <> ''"
        is_date = f"SELECT bool_and(regexp_full_match({name}, $date)) {values}"
        if not (connection.execute(is_date, {"date": DATE_OR_ISO}).fetchone() or (False,))[0]:
            continue
        shape = f"regexp_replace(regexp_replace({name}, '[0-9]{{4}}', 'Y'), '[0-9]+', '0', 'g')"
        first, then = (
            f"TRY_CAST(regexp_extract({name}, '^([0-9]+)[^0-9]([0-9]+)', {place}) AS INTEGER) > {LAST_MONTH}"
            for place in (1, 2)
        )
        sorts = connection.execute(f"SELECT any_value({name}) {values} GROUP BY {shape}, {first}, {then}").fetchall()
        columns.append([column.name, *(value for (value,) in sorts)])
    formats, unclear = date_formats(columns)
    return TextDates(tuple(formats), tuple(unclear))
