"""Label leaks: one input column that alone tells the label. A model of it looks perfect, and is worth nothing where
that column is known only afterwards. Whole set, out of core, and no value of the data in what is said of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from data_contracts.contract import LABEL_LEAK
from data_contracts.documents import ExpectationVerdict
from data_contracts.rows_database import ROWS, identifier
from data_contracts.type_families import Family, family

DESCRIPTION = "No input column alone tells the label"
MIN_ERRORS = 20
"""Fewer rows that differ from the commonest class, and chance may tell them apart."""
MAX_ERRORS_LEFT = 0.005
"""Share of the errors of always saying the commonest class that one column leaves: below it, it tells the label."""
MIN_ROWS_PER_VALUE = 20
"""With fewer, the column names rows, and says of each its label whatever that means."""
MIN_R_SQUARED = 0.9999
MAX_CLASSES = 1000
FIRST_ROWS = 20_000
"""Of which ranks are compared before those of all rows are."""
MAX_SORTED_ROWS = 2_000_000
"""Of more, to sort each column would take longer than the contract's own checks."""
NUMBERS: tuple[Family, ...] = ("bool", "integer", "float", "decimal")
ORDERED: tuple[Family, ...] = ("integer", "float", "decimal")


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """What a pipeline predicts, and from what."""

    column: str
    is_class: bool
    inputs: tuple[str, ...]


def judge_label(connection: duckdb.DuckDBPyConnection, label: Label, types: dict[str, str]) -> ExpectationVerdict:
    """A warning where an input alone tells the label; its promotion is decided elsewhere.

    Args:
        types: of the rows' columns, by name; what is not there is not judged.
    """
    inputs = [name for name in label.inputs if name in types]
    try:
        if label.column not in types or not inputs:
            found: list[str] | None = []
        elif label.is_class:
            found = _telling_a_class(connection, label.column, inputs, types)
        else:
            found = _telling_a_number(connection, label.column, inputs, types)
    except duckdb.Error as error:
        return _verdict(passed=False, observed=f"could not be judged ({type(error).__name__})")
    if not found:
        return _verdict(passed=True, observed=f"none of {len(inputs):,}")
    names = ", ".join(f"`{name}`" for name in found)
    return _verdict(passed=False, observed=f"{names} alone {'tells' if len(found) == 1 else 'tell'} `{label.column}`")


def _verdict(*, passed: bool, observed: str) -> ExpectationVerdict:
    return ExpectationVerdict(
        rule_id=LABEL_LEAK, description=DESCRIPTION, severity="warning", passed=passed, observed=observed
    )


def _telling_a_class(
    connection: duckdb.DuckDBPyConnection, label: str, inputs: Sequence[str], types: dict[str, str]
) -> list[str]:
    named = identifier(label)
    of_class = connection.execute(
        f"SELECT count(*) FROM {ROWS} WHERE {named} IS NOT NULL GROUP BY {named} LIMIT {MAX_CLASSES + 1}"
    ).fetchall()
    sizes = [int(size) for (size,) in of_class]
    errors = sum(sizes) - max(sizes, default=0)
    if errors < MIN_ERRORS or len(sizes) > MAX_CLASSES:
        return []
    allowed = errors * MAX_ERRORS_LEFT
    return [
        name
        for name in inputs
        if _errors_left(connection, name, label, sum(sizes)) <= allowed
        or (family(types[name]) in ORDERED and _classes_lie_apart(connection, name, label, types[name], allowed))
    ]


def _errors_left(connection: duckdb.DuckDBPyConnection, name: str, label: str, num_rows: int) -> float:
    """Rows that are wrong when each value of the column says the commonest class of its rows; null is a value."""
    column, named = identifier(name), identifier(label)
    # A sketch, for it decides alone whether to count: exact counts of every value of a key would fill the disk.
    (num_values,) = connection.execute(f"SELECT approx_count_distinct({column}) FROM {ROWS}").fetchone() or (0,)
    if num_values * MIN_ROWS_PER_VALUE > num_rows:
        return float("inf")
    counted = f"SELECT {column} AS v, count(*) AS k FROM {ROWS} WHERE {named} IS NOT NULL GROUP BY {column}, {named}"
    sql = f"SELECT sum(n - most) FROM (SELECT sum(k) AS n, max(k) AS most FROM ({counted}) GROUP BY v)"
    (left,) = connection.execute(sql).fetchone() or (None,)
    return float("inf") if left is None else float(left)


def _classes_lie_apart(
    connection: duckdb.DuckDBPyConnection, name: str, label: str, type_name: str, allowed: float
) -> bool:
    """Whether the column's values of no two classes overlap, so that thresholds tell the classes.

    A share of each class, the least and the greatest of it, may lie elsewhere, and as many rows may have no value. Of
    more rows than are sorted in passing none may.
    """
    column, named = identifier(name), identifier(label)
    is_value = f"isfinite({column})" if family(type_name) == "float" else f"{column} IS NOT NULL"
    count = f"SELECT count_if(NOT coalesce({is_value}, FALSE)), count(*) FROM {ROWS} WHERE {named} IS NOT NULL"
    num_missing, num_rows = connection.execute(count).fetchone() or (0, 0)
    if num_missing > allowed or num_missing == num_rows:
        return False
    values = f"SELECT {column} AS v, {named} AS y FROM {ROWS} WHERE {named} IS NOT NULL AND {is_value}"
    if num_rows > MAX_SORTED_ROWS:
        sql = f"SELECT min(v), max(v) FROM ({values}) GROUP BY y ORDER BY 1"
    else:
        ranked = (
            "SELECT v, y, rank() OVER (PARTITION BY y ORDER BY v) - 1 AS below, "
            "rank() OVER (PARTITION BY y ORDER BY v DESC) - 1 AS above, "
            f"floor({MAX_ERRORS_LEFT / 2} * count(*) OVER (PARTITION BY y)) AS trimmed FROM ({values})"
        )
        low, high = "min(v) FILTER (below >= trimmed)", "max(v) FILTER (above >= trimmed)"
        sql = f"SELECT {low}, {high} FROM ({ranked}) GROUP BY y ORDER BY 1"
    spans = connection.execute(sql).fetchall()
    return all(before[1] < after[0] for before, after in itertools.pairwise(spans))


def _telling_a_number(
    connection: duckdb.DuckDBPyConnection, label: str, inputs: Sequence[str], types: dict[str, str]
) -> list[str]:
    return [
        name
        for name in inputs
        if (family(types[name]) in NUMBERS and _goes_along(connection, name, label))
        or _each_value_has_its_number(connection, name, label)
    ]


def _goes_along(connection: duckdb.DuckDBPyConnection, name: str, label: str) -> bool:
    """Whether the label is a line of the column, or goes up or down with it whatever the curve."""
    rows = f"SELECT {identifier(label)}::DOUBLE AS y, {identifier(name)}::DOUBLE AS x FROM {ROWS}"
    finite = "isfinite(y) AND isfinite(x)"
    row = connection.execute(
        f"SELECT corr(y, x) FILTER ({finite}), count(*) FILTER ({finite}), count(y) FROM ({rows})"
    ).fetchone()
    r, num_pairs, num_labels = row or (None, 0, 0)
    if num_pairs < MIN_ERRORS or num_pairs * 2 <= num_labels:
        return False
    if _tells(r):
        return True
    # Sorting costs: a curve that all rows keep to, the first of them do.
    for most in (FIRST_ROWS, MAX_SORTED_ROWS):
        if not _tells(_rank_correlation(connection, f"{rows} LIMIT {most}", finite)):
            return False
    return bool(num_pairs <= MAX_SORTED_ROWS)


def _tells(r: float | None) -> bool:
    # Rounded: sums of floats depend on the order in which threads add them up, and a receipt must not.
    return r is not None and round(r * r, 6) >= MIN_R_SQUARED


def _rank_correlation(connection: duckdb.DuckDBPyConnection, rows: str, finite: str) -> float | None:
    """Spearman's; equal values share the middle of their ranks."""
    pairs = f"SELECT y, x FROM ({rows}) WHERE {finite}"
    middle = "rank() OVER (ORDER BY {0}) - rank() OVER (ORDER BY {0} DESC) AS {0}"
    row = connection.execute(
        f"SELECT corr(y, x) FROM (SELECT {middle.format('y')}, {middle.format('x')} FROM ({pairs}))"
    ).fetchone()
    return None if row is None else row[0]


def _each_value_has_its_number(connection: duckdb.DuckDBPyConnection, name: str, label: str) -> bool:
    """Whether rows of one value of the column have, nearly, one number; null is a value."""
    column, y = identifier(name), f"{identifier(label)}::DOUBLE"
    (num_values, num_rows) = connection.execute(
        f"SELECT approx_count_distinct({column}), count(*) FROM {ROWS} WHERE isfinite({y})"
    ).fetchone() or (0, 0)
    if num_rows < MIN_ERRORS or num_values * MIN_ROWS_PER_VALUE > num_rows:
        return False
    of_value = f"SELECT count(*) AS n, var_pop({y}) AS v FROM {ROWS} WHERE isfinite({y}) GROUP BY {column}"
    row = connection.execute(
        f"SELECT (SELECT sum(n * v) / sum(n) FROM ({of_value})), (SELECT var_pop({y}) FROM {ROWS} WHERE isfinite({y}))"
    ).fetchone()
    within, over_all = row or (None, None)
    return bool(within is not None and over_all and round(within / over_all, 6) <= 1 - MIN_R_SQUARED)
