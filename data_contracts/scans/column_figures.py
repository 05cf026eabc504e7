"""Figures of whole columns: sums, means, least and greatest values, exact and in any order of rows."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.scans.exact_checks import num_broken_sql, num_evaluated_sql
from headway.data_contracts.scans.figures import Figure, Scalar, exact_sum, sum_of
from headway.data_contracts.scans.rows_database import identifier
from headway.data_contracts.scans.tallies import Tallies
from headway.data_contracts.types.type_families import family

SUMMED = ("bool", "integer")
"""Families whose sum is a plain integer."""
METRIC_STATISTICS = {"column.mean": "mean", "column.sum": "sum", "column.min": "min", "column.max": "max"}


def figures_of(check: Check, type_name: str | None) -> list[Figure]:
    """What a check needs counted; nothing for those that are scanned, and for what cannot be merged.

    Args:
        type_name: the column's type in the data; None where it is missing.
    """
    if check.is_row_level:
        return [Scalar(num_broken_sql(check)), Scalar(num_evaluated_sql(check))]
    if check.kind == "num_rows":
        return [Scalar("count(*)")]
    if check.kind == "statistic" and type_name is not None:
        return statistic_figures(check.arguments["statistic"], check.column, type_name)
    return []


def statistic_figures(statistic: str, column: str, type_name: str) -> list[Figure]:
    """The figures that make up a statistic; none where it does not add up over files."""
    name, kind = identifier(column), family(type_name)
    if statistic in ("min", "max") and kind in ("integer", "float"):
        return [Scalar(f"{statistic}({name})", merge="min" if statistic == "min" else "max")]
    if statistic not in ("mean", "sum") or kind not in (*SUMMED, "float"):
        return []
    total: Figure = exact_sum(name) if kind == "float" else Scalar(f"sum({name})")
    return [total, Scalar(f"count({name})")]


def statistic_value(statistic: str, values: list[Any]) -> float | int | None:
    """A statistic from the values of `statistic_figures`. None: no row has a value."""
    if statistic in ("min", "max"):
        return None if values[0] is None else _number(values[0])
    total: Any = sum_of(values[0]) if isinstance(values[0], dict) else values[0]
    if not values[1]:
        return None
    if isinstance(total, float):
        return total
    # Exact until here: one rounding at the end gives the same number in any order of files.
    return _as_float(Fraction(total) / values[1] if statistic == "mean" else Fraction(total))


def column_metric(tallies: Tallies, name: str, column: str, type_name: str) -> list[Any]:
    """The value of a metric of Great Expectations, in a list of one; none where it does not add up over files."""
    statistic = METRIC_STATISTICS.get(name)
    figures = statistic_figures(statistic, column, type_name) if statistic and type_name else []
    if statistic is None or not figures:
        return []
    values = tallies.total(figures)
    errors = [value for value in values if isinstance(value, Exception)]
    return errors[:1] or [statistic_value(statistic, values)]


def _as_float(value: Fraction) -> float:
    # The exact sum of finite doubles may lie beyond the greatest double.
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _number(value: Any) -> float | int:
    return value if isinstance(value, int) else float(value)
