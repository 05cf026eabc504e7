"""Label leaks: one input column that alone tells the label. A model of it looks perfect, and is worth nothing where
that column is known only afterwards. Whole set, out of core, and no value of the data in what is said of it.

Two verdicts: what tells the label (nearly) without an error is hardly ever honest, and its model is not promoted; what
tells it but for a few errors may be a leak with noise or a very good input, which only a person knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import duckdb

from headway.data_contracts.rules.contract import LABEL_LEAK, LIKELY_LEAK
from headway.data_contracts.scans.rows_database import ROWS, identifier
from headway.data_contracts.store.documents import ExpectationVerdict
from headway.data_contracts.types.type_families import Family, family

DESCRIPTION = "No input column alone tells the label"
LIKELY_DESCRIPTION = "No input column alone nearly tells the label"
MIN_ERRORS = 20
"""Fewer rows that differ from the commonest class, and chance may tell them apart."""
MAX_ERRORS_LEFT = 0.005
"""Share of the errors of always saying the commonest class that one column leaves: below it, it tells the label."""
MAX_LIKELY_ERRORS_LEFT = 0.1
"""Up to here it nearly does: a leak with one wrong row in a hundred leaves so much of a class that has a tenth of the
rows. An honest input that is right in 94 % of the rows of two equal classes leaves 0.12."""
MIN_ROWS_PER_VALUE = 20
"""With fewer, the column names rows, and says of each its label whatever that means."""
MIN_R_SQUARED = 0.9999
MIN_LIKELY_R_SQUARED = 0.97
"""A leak of which one row in a hundred has another row's number keeps about 0.98."""
MAX_CLASSES = 1000
FIRST_ROWS = 20_000
"""Of which ranks are compared before those of all rows are."""
MAX_SORTED_ROWS = 2_000_000
"""Of more, to sort each column would take longer than the contract's own checks."""
NUMBERS: tuple[Family, ...] = ("bool", "integer", "float", "decimal")
ORDERED: tuple[Family, ...] = ("integer", "float", "decimal", "date", "timestamp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """What a pipeline predicts, and from what."""

    column: str
    is_class: bool
    inputs: tuple[str, ...]


Left = dict[str, float]
"""By input, what it leaves of a label: a share of the errors, or of the variance."""


def evaluate_label(
    connection: duckdb.DuckDBPyConnection, label: Label, types: Mapping[str, str]
) -> tuple[ExpectationVerdict, ...]:
    """A warning where an input alone tells the label, and one where it nearly does; promotion is decided elsewhere.

    Args:
        types: of the rows' columns, by name; what is not there is not evaluated.
    """
    try:
        certain, likely = find_leaks(connection, label, types)
    except duckdb.Error as error:
        return (
            _verdict(
                LABEL_LEAK, DESCRIPTION, passed=False, observed=f"could not be evaluated ({type(error).__name__})"
            ),
        )
    num_inputs = sum(name in types for name in label.inputs)
    return (
        _verdict(
            LABEL_LEAK,
            DESCRIPTION,
            passed=not certain,
            observed=_sentence(certain, label.column, num_inputs),
            columns=certain,
        ),
        _verdict(
            LIKELY_LEAK,
            LIKELY_DESCRIPTION,
            passed=not likely,
            observed=_sentence(likely, label.column, num_inputs, how="nearly "),
            columns=likely,
        ),
    )


class FoundLeaks(NamedTuple):
    certain: tuple[str, ...]
    """Without an error, but for chance."""
    likely: tuple[str, ...]


def find_leaks(connection: duckdb.DuckDBPyConnection, label: Label, types: Mapping[str, str]) -> FoundLeaks:
    """Inputs that alone tell the label of the view of rows, and those that nearly do. Arguments as above.

    Raises:
        duckdb.Error: the rows cannot be asked.
    """
    inputs = [name for name in label.inputs if name in types]
    if label.column not in types or not inputs:
        left: Left = {}
    elif label.is_class:
        left = _left_of_a_class(connection, label.column, inputs, types)
    else:
        left = _left_of_a_number(connection, label.column, inputs, types)
    certain, likely = (
        (MAX_ERRORS_LEFT, MAX_LIKELY_ERRORS_LEFT)
        if label.is_class
        else (_unexplained(MIN_R_SQUARED), _unexplained(MIN_LIKELY_R_SQUARED))
    )
    return FoundLeaks(
        tuple(name for name, share in left.items() if share <= certain),
        tuple(name for name, share in left.items() if certain < share <= likely),
    )


def _sentence(found: Sequence[str], label: str, num_inputs: int, *, how: str = "") -> str:
    if not found:
        return f"none of {num_inputs:,}"
    names = ", ".join(f"`{name}`" for name in found)
    return f"{names} alone {how}{'tells' if len(found) == 1 else 'tell'} `{label}`"


def _verdict(
    rule_id: str, description: str, *, passed: bool, observed: str, columns: tuple[str, ...] = ()
) -> ExpectationVerdict:
    return ExpectationVerdict(
        rule_id=rule_id, description=description, severity="warning", passed=passed, observed=observed, columns=columns
    )


def _left_of_a_class(
    connection: duckdb.DuckDBPyConnection, label: str, inputs: Sequence[str], types: Mapping[str, str]
) -> Left:
    named = identifier(label)
    # One group more than the bound is enough to see that there are too many.
    of_class = connection.execute(
        f"SELECT count(*) FROM {ROWS} WHERE {named} IS NOT NULL GROUP BY {named} LIMIT {MAX_CLASSES + 1}"
    ).fetchall()
    sizes = [int(size) for (size,) in of_class]
    errors = sum(sizes) - max(sizes, default=0)
    if errors < MIN_ERRORS or len(sizes) > MAX_CLASSES:
        return {}
    left: Left = {}
    for name in inputs:
        left[name] = _errors_left(connection, name, label, sum(sizes)) / errors
        # Sorting costs most, so it is skipped where the column is already known to tell the label.
        if left[name] > MAX_ERRORS_LEFT and family(types[name]) in ORDERED:
            left[name] = min(left[name], _left_by_thresholds(connection, name, label, types[name], errors))
    return left


def _errors_left(connection: duckdb.DuckDBPyConnection, name: str, label: str, num_rows: int) -> float:
    """Rows that are wrong when each value of the column says the commonest class of its rows; null is a value."""
    column, named = identifier(name), identifier(label)
    # A sketch, for it decides alone whether to count: exact counts of every value of a key would fill the disk.
    (num_values,) = connection.execute(f"SELECT approx_count_distinct({column}) FROM {ROWS}").fetchone() or (0,)
    # Of a column that names rows, whether it is there may tell: such as the day on which a customer left.
    value = f"{column} IS NULL" if num_values * MIN_ROWS_PER_VALUE > num_rows else column
    counted = f"SELECT {value} AS v, count(*) AS k FROM {ROWS} WHERE {named} IS NOT NULL GROUP BY 1, {named}"
    sql = f"SELECT sum(n - most) FROM (SELECT sum(k) AS n, max(k) AS most FROM ({counted}) GROUP BY v)"
    (left,) = connection.execute(sql).fetchone() or (None,)
    return float("inf") if left is None else float(left)


def _left_by_thresholds(
    connection: duckdb.DuckDBPyConnection, name: str, label: str, type_name: str, errors: int
) -> float:
    """The least share that is looked at with which the column's values of no two classes overlap; else infinity.

    So great a share of each class, the least and the greatest of it, may lie elsewhere, and that of the errors may have
    no value. Of more rows than are sorted in passing none may lie elsewhere.
    """
    column, named = identifier(name), identifier(label)
    is_value = f"isfinite({column})" if family(type_name) == "float" else f"{column} IS NOT NULL"
    count = f"SELECT count_if(NOT coalesce({is_value}, FALSE)), count(*) FROM {ROWS} WHERE {named} IS NOT NULL"
    num_missing, num_rows = connection.execute(count).fetchone() or (0, 0)
    shares = [share for share in (MAX_ERRORS_LEFT, MAX_LIKELY_ERRORS_LEFT) if num_missing <= share * errors]
    if not shares or num_missing == num_rows:
        return float("inf")
    values = f"SELECT {column} AS v, {named} AS y FROM {ROWS} WHERE {named} IS NOT NULL AND {is_value}"
    if num_rows > MAX_SORTED_ROWS:
        spans = f"SELECT min(v) AS low, max(v) AS high FROM ({values}) GROUP BY y"
        (is_apart,) = connection.execute(f"SELECT {_lie_apart_sql(spans)}").fetchone() or (False,)
        return shares[0] if is_apart else float("inf")
    ranked = (
        "SELECT v, y, row_number() OVER (PARTITION BY y ORDER BY v) - 1 AS below, "
        "row_number() OVER (PARTITION BY y ORDER BY v DESC) - 1 AS above, "
        f"count(*) OVER (PARTITION BY y) AS n FROM ({values})"
    )
    ends = ", ".join(
        f"min(v) FILTER (below >= floor({share / 2} * n)) AS low_{place}, "
        f"max(v) FILTER (above >= floor({share / 2} * n)) AS high_{place}"
        for place, share in enumerate(shares)
    )
    apart = ", ".join(
        _lie_apart_sql(f"SELECT low_{place} AS low, high_{place} AS high FROM ends") for place in range(len(shares))
    )
    sql = f"WITH ends AS MATERIALIZED (SELECT {ends} FROM ({ranked}) GROUP BY y) SELECT {apart}"
    are_apart = connection.execute(sql).fetchone() or ()
    return next((share for share, is_apart in zip(shares, are_apart, strict=True) if is_apart), float("inf"))


def _lie_apart_sql(spans: str) -> str:
    """Whether no two of these spans, rows of `low` and `high`, overlap."""
    # In SQL, where values stay what they are: moments beyond the year 9999 are texts to Python.
    following = f"SELECT low, lag(high) OVER (ORDER BY low, high) AS before FROM ({spans})"
    return f"(SELECT coalesce(bool_and(before < low), TRUE) FROM ({following}))"


def _left_of_a_number(
    connection: duckdb.DuckDBPyConnection, label: str, inputs: Sequence[str], types: Mapping[str, str]
) -> Left:
    left: Left = {}
    for name in inputs:
        left[name] = _off_any_curve(connection, name, label) if family(types[name]) in NUMBERS else float("inf")
        if left[name] > _unexplained(MIN_R_SQUARED):
            left[name] = min(left[name], _within_values(connection, name, label))
    return left


def _off_any_curve(connection: duckdb.DuckDBPyConnection, name: str, label: str) -> float:
    """What is left of the label as a line of the column, or as what goes up or down with it whatever the curve."""
    rows = f"SELECT {identifier(label)}::DOUBLE AS y, {identifier(name)}::DOUBLE AS x FROM {ROWS}"
    finite = "isfinite(y) AND isfinite(x)"
    row = connection.execute(
        f"SELECT corr(y, x) FILTER ({finite}), count(*) FILTER ({finite}), count(y) FROM ({rows})"
    ).fetchone()
    r, num_pairs, num_labels = row or (None, 0, 0)
    # A curve through half of the labelled rows or fewer says too little of the label.
    if num_pairs < MIN_ERRORS or num_pairs * 2 <= num_labels:
        return float("inf")
    of_line = _unexplained_by(r)
    if of_line <= _unexplained(MIN_R_SQUARED) or num_pairs > MAX_SORTED_ROWS:
        return of_line
    of_curve = 0.0
    # Sorting costs: a curve that all rows keep to, the first of them do.
    for most in (FIRST_ROWS, MAX_SORTED_ROWS):
        of_curve = max(of_curve, _unexplained_by(_rank_correlation(connection, f"{rows} LIMIT {most}", finite)))
        if of_curve >= of_line or of_curve > _unexplained(MIN_LIKELY_R_SQUARED):
            return of_line
    return of_curve


def _unexplained(r_squared: float) -> float:
    # Rounded: sums of floats depend on the order in which threads add them up, and a receipt must not.
    return round(1 - r_squared, 6)


def _unexplained_by(r: float | None) -> float:
    return float("inf") if r is None else _unexplained(r * r)


def _rank_correlation(connection: duckdb.DuckDBPyConnection, rows: str, finite: str) -> float | None:
    """Spearman's; equal values share the middle of their ranks."""
    pairs = f"SELECT y, x FROM ({rows}) WHERE {finite}"
    # Rank up less rank down is twice the middle rank less a constant, and correlation ignores both.
    middle = "rank() OVER (ORDER BY {0}) - rank() OVER (ORDER BY {0} DESC) AS {0}"
    row = connection.execute(
        f"SELECT corr(y, x) FROM (SELECT {middle.format('y')}, {middle.format('x')} FROM ({pairs}))"
    ).fetchone()
    return None if row is None else row[0]


def _within_values(connection: duckdb.DuckDBPyConnection, name: str, label: str) -> float:
    """What is left of the label among rows that have one value of the column; null is a value."""
    column, y = identifier(name), f"{identifier(label)}::DOUBLE"
    (num_values, num_rows) = connection.execute(
        f"SELECT approx_count_distinct({column}), count(*) FROM {ROWS} WHERE isfinite({y})"
    ).fetchone() or (0, 0)
    if num_rows < MIN_ERRORS or num_values * MIN_ROWS_PER_VALUE > num_rows:
        return float("inf")
    of_value = f"SELECT count(*) AS n, var_pop({y}) AS v FROM {ROWS} WHERE isfinite({y}) GROUP BY {column}"
    row = connection.execute(
        f"SELECT (SELECT sum(n * v) / sum(n) FROM ({of_value})), (SELECT var_pop({y}) FROM {ROWS} WHERE isfinite({y}))"
    ).fetchone()
    within, over_all = row or (None, None)
    return float("inf") if within is None or not over_all else round(within / over_all, 6)
