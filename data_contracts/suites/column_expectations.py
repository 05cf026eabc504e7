"""Expectations of a given suite about whole columns, and about the table: sums, sets of values, quantiles, names.

NaN is a value here: it makes a mean, sum, deviation, median or quantile NaN, which is within no bounds, it is the
greatest value, and one more distinct one. pandas leaves it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from headway.data_contracts.scans.column_figures import statistic_value
from headway.data_contracts.scans.exact_checks import nearest_float
from headway.data_contracts.scans.figures import Figure, Scalar, exact_sum
from headway.data_contracts.scans.rows_database import ROWS
from headway.data_contracts.suites.literals import (
    NUMERIC,
    UnsupportedExpectation,
    comparable_sql,
    member_sql,
    read_bound,
    set_sql,
)
from headway.data_contracts.suites.results import CompiledExpectation, ExpectationResult, ResultContext
from headway.data_contracts.suites.row_expectations import GivenExpectation, in_set_sql, require_order, require_whole
from headway.data_contracts.types.type_families import family

ALMOST_REL, ALMOST_ABS = 1e-4, 1e-8
"""How near to a bound Great Expectations takes a quantile for within it."""
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _within(expectation: GivenExpectation, value: Any, type_name: str) -> bool:
    """Whether a figure is within the bounds asked; a missing figure and NaN are not."""
    # In Great Expectations, too, a missing figure and NaN are within no bounds.
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    # A double is compared with the double next to what is written, and all else exactly: integers beyond 2**53, too.
    low, high = (
        None if (bound := expectation.kwargs.get(name)) is None else read_bound(bound, type_name)
        for name in ("min_value", "max_value")
    )
    if isinstance(value, float):
        low, high = (None if bound is None else nearest_float(bound, type_name) for bound in (low, high))
    if low is not None and (value < low or (value == low and expectation.kwargs.get("strict_min"))):
        return False
    return high is None or bool(value < high or (value == high and not expectation.kwargs.get("strict_max")))


def _bounded(expectation: GivenExpectation, type_name: str) -> None:
    require_order(expectation.kwargs.get("min_value"), expectation.kwargs.get("max_value"), type_name)


def _counted(expectation: GivenExpectation) -> None:
    require_whole(expectation, "a count", "min_value", "max_value")
    _bounded(expectation, "int64")


def _decided(expectation: GivenExpectation, value: Any, type_name: str) -> ExpectationResult:
    return ExpectationResult(passed=_within(expectation, value, type_name))


def _limited(expectation: GivenExpectation, expression: str) -> str:
    """An expression that is null where the expectation does not speak of the row."""
    return expression if expectation.where == "TRUE" else f"CASE WHEN {expectation.where} THEN {expression} END"


def min_between(expectation: GivenExpectation) -> CompiledExpectation:
    return _extreme(expectation, "min")


def max_between(expectation: GivenExpectation) -> CompiledExpectation:
    return _extreme(expectation, "max")


def _extreme(expectation: GivenExpectation, name: str) -> CompiledExpectation:
    type_name = expectation.type_name
    _bounded(expectation, type_name)
    # Where a condition leaves rows out, they are null, and aggregates pass nulls by.
    selected = f"{name}({_limited(expectation, comparable_sql(expectation.column, type_name))})"
    if family(type_name) == "decimal":
        return CompiledExpectation(
            answer=lambda asker: _decided(expectation, asker.row(f"SELECT {selected} FROM {ROWS}")[0], type_name)
        )
    figure = Scalar(selected, merge="min" if name == "min" else "max")
    return CompiledExpectation(
        answer=lambda asker: _decided(expectation, asker.totals([figure])[0], type_name), figures=(figure,)
    )


def mean_between(expectation: GivenExpectation) -> CompiledExpectation:
    return _total(expectation, "mean")


def sum_between(expectation: GivenExpectation) -> CompiledExpectation:
    return _total(expectation, "sum")


def _total(expectation: GivenExpectation, statistic: str) -> CompiledExpectation:
    """Exact, then rounded once. The sum of nothing is 0, the mean of nothing is within no bounds."""
    kind = _numeric(expectation)
    _bounded(expectation, "double")
    expression = _limited(expectation, expectation.column)

    def decided(value: Any) -> ExpectationResult:
        found = 0.0 if value is None and statistic == "sum" else value
        # Up to 2**53 an integer is a double exactly; beyond, the comparison stays exact.
        return _decided(
            expectation, float(found) if isinstance(found, int) and abs(found) <= 1 << 53 else found, "double"
        )

    if kind == "decimal":
        return CompiledExpectation(answer=lambda asker: decided(_decimal_total(asker, expression, statistic)))
    # Sums of doubles depend on their order; the exact sum does not, over files and threads.
    summed: Figure = exact_sum(f"({expression})") if kind == "float" else Scalar(f"sum({expression})")
    figures = (summed, Scalar(f"count({expression})"))
    return CompiledExpectation(
        answer=lambda asker: decided(statistic_value(statistic, asker.totals(figures))), figures=figures
    )


def _decimal_total(asker: ResultContext, expression: str, statistic: str) -> float | None:
    total, count = asker.row(f"SELECT sum({expression}), count({expression}) FROM {ROWS}")
    if not count:
        return None
    # Decimals divide exactly as fractions, and are rounded once.
    return float(Fraction(Decimal(total)) / (count if statistic == "mean" else 1))


def _numeric(expectation: GivenExpectation) -> str:
    kind = family(expectation.type_name)
    if kind not in NUMERIC:
        raise UnsupportedExpectation(f"it goes with numbers, not with {expectation.type_name}")
    return kind


def median_between(expectation: GivenExpectation) -> CompiledExpectation:
    return _scanned(expectation, "median")


def stdev_between(expectation: GivenExpectation) -> CompiledExpectation:
    return _scanned(expectation, "stddev_samp")


def _scanned(expectation: GivenExpectation, function: str) -> CompiledExpectation:
    kind = _numeric(expectation)
    _bounded(expectation, "double")
    number = f"{expectation.column}::TINYINT" if kind == "bool" else expectation.column
    # NaN is counted beside it, for DuckDB's aggregates treat it as a number.
    sql = f"SELECT {function}({number}::DOUBLE), {_num_nan(expectation)} FROM {ROWS} WHERE {expectation.where}"

    def answer(asker: ResultContext) -> ExpectationResult:
        value, num_nan = asker.row(sql)
        return _decided(expectation, math.nan if num_nan else value, "double")

    return CompiledExpectation(answer=answer)


def _num_nan(expectation: GivenExpectation) -> str:
    return f"count(*) FILTER (isnan({expectation.column}))" if family(expectation.type_name) == "float" else "0"


def quantiles_between(expectation: GivenExpectation) -> CompiledExpectation:
    """With pandas' interpolation: `nearest` unless another is given as `allow_relative_error`."""
    if _numeric(expectation) == "bool":
        raise UnsupportedExpectation("quantiles go with numbers, not with bool")
    interpolation = expectation.kwargs.get("allow_relative_error") or "nearest"
    if interpolation not in INTERPOLATIONS:
        raise UnsupportedExpectation(f"allow_relative_error is {interpolation!r}, and no interpolation of pandas")
    quantiles, ranges = _quantile_ranges(expectation.kwargs["quantile_ranges"])
    column = f"{expectation.column}::DOUBLE"
    source = f"FROM {ROWS} WHERE ({expectation.where}) AND {expectation.column} IS NOT NULL"

    def answer(asker: ResultContext) -> ExpectationResult:
        number, num_nan = asker.row(f"SELECT count(*), {_num_nan(expectation)} {source}")
        if not number or num_nan:
            return ExpectationResult(passed=False)
        places = [_places(quantile, number, interpolation) for quantile in quantiles]
        wanted = [place for low, high, _ in places for place in (low, high)]
        # The n-th value by a fraction that lies between the n-th and the one before.
        # In the middle of its share, so that rounding cannot pick a neighbour.
        shares = ", ".join(f"quantile_disc({column}, {(place + 0.5) / number!r})" for place in wanted)
        found = asker.row(f"SELECT {shares} {source}")
        values = [
            found[2 * place] + (found[2 * place + 1] - found[2 * place]) * weight if weight else found[2 * place]
            for place, (_, _, weight) in enumerate(places)
        ]
        return ExpectationResult(
            passed=all(_is_within_almost(value, *each) for value, each in zip(values, ranges, strict=True))
        )

    return CompiledExpectation(answer=answer)


def _quantile_ranges(given: Any) -> tuple[list[float], list[tuple[float, float]]]:
    quantiles = given.get("quantiles") if isinstance(given, dict) else None
    ranges = given.get("value_ranges") if isinstance(given, dict) else None
    if (
        not isinstance(quantiles, list)
        or not isinstance(ranges, list)
        or not quantiles
        or len(quantiles) != len(ranges)
    ):
        raise UnsupportedExpectation("quantile_ranges has not as many value_ranges as quantiles")
    if not all(isinstance(each, int | float) and 0 <= each <= 1 for each in quantiles):
        raise UnsupportedExpectation("quantiles are numbers from 0 to 1")
    found = []
    for each in ranges:
        if not isinstance(each, list) or len(each) != 2 or not all(_is_number(bound) for bound in each):
            raise UnsupportedExpectation("each of value_ranges is two numbers or nulls")
        low, high = (-math.inf if each[0] is None else each[0], math.inf if each[1] is None else each[1])
        if low > high:
            raise UnsupportedExpectation(f"the lower bound {low} of a quantile is above the upper bound {high}")
        found.append((low, high))
    return quantiles, found


def _is_number(bound: Any) -> bool:
    return bound is None or (isinstance(bound, int | float) and not isinstance(bound, bool) and bound == bound)


def _places(quantile: float, number: int, interpolation: str) -> tuple[int, int, float]:
    """Places of the values in order that a quantile lies between, and how far from the first to the second."""
    place = quantile * (number - 1)
    low, high = math.floor(place), min(math.ceil(place), number - 1)
    if interpolation == "lower":
        return low, low, 0.0
    if interpolation == "higher":
        return high, high, 0.0
    if interpolation == "nearest":
        return round(place), round(place), 0.0  # halves to the even place
    return low, high, place - low if interpolation == "linear" else (0.5 if high > low else 0.0)


def _is_within_almost(value: float, low: float, high: float) -> bool:
    return low <= value <= high or any(
        abs(value - bound) <= ALMOST_ABS + ALMOST_REL * abs(bound) for bound in (low, high) if math.isfinite(bound)
    )


def distinct_in_set(expectation: GivenExpectation) -> CompiledExpectation:
    """Counted by rows, which adds up over files: a value outside the set is at least one row."""
    figure = _num_outside(expectation)
    return CompiledExpectation(
        answer=lambda asker: ExpectationResult(passed=not asker.totals([figure])[0]), figures=(figure,)
    )


def _num_outside(expectation: GivenExpectation) -> Scalar:
    # An unknown comparison counts as outside, as a value that is no member does.
    outside = f"{expectation.column} IS NOT NULL AND NOT coalesce({in_set_sql(expectation)}, FALSE)"
    return Scalar(f"count(*) FILTER (({expectation.where}) AND {outside})")


def distinct_contain_set(expectation: GivenExpectation) -> CompiledExpectation:
    holds = _contains(expectation)
    return CompiledExpectation(answer=lambda asker: ExpectationResult(passed=holds(asker)))


def distinct_equal_set(expectation: GivenExpectation) -> CompiledExpectation:
    figure, holds = _num_outside(expectation), _contains(expectation)

    def answer(context: ResultContext) -> ExpectationResult:
        return ExpectationResult(passed=not context.totals([figure])[0] and holds(context))

    return CompiledExpectation(answer=answer, figures=(figure,))


def _contains(expectation: GivenExpectation) -> Callable[[ResultContext], bool]:
    """Whether every value of the set occurs; one that the column cannot hold does not."""
    members = set_sql(expectation.kwargs["value_set"], expectation.type_name)
    wanted = {(isinstance(value, str), value) for value in expectation.kwargs["value_set"] if value is not None}
    is_temporal = family(expectation.type_name) in ("date", "timestamp")
    # A value that the column's type cannot hold can never occur. Two texts may mean one moment, so that those are not
    # counted; what is no text is no moment.
    if not all(is_text for is_text, _ in wanted) if is_temporal else len(members) < len(wanted):
        return lambda _: False
    if not members:
        return lambda _: True
    member = member_sql(expectation.column, expectation.type_name)
    held = f"SELECT DISTINCT {member} AS member FROM {ROWS} WHERE ({expectation.where}) AND {in_set_sql(expectation)}"
    return lambda asker: bool(asker.row(f"SELECT count(*) FROM ({held})")[0] == len(members))


def most_common_in_set(expectation: GivenExpectation) -> CompiledExpectation:
    """Whether the commonest value is in the set, alone or, with `ties_okay`, among others as common."""
    member = member_sql(expectation.column, expectation.type_name)
    rows = f"FROM {ROWS} WHERE ({expectation.where}) AND {expectation.column} IS NOT NULL GROUP BY {member}"
    is_member = in_set_sql(expectation).replace(member, "member", 1)
    groups = f"SELECT {member} AS member, count(*) AS num_rows {rows}"

    def answer(asker: ResultContext) -> ExpectationResult:
        (most,) = asker.row(f"SELECT max(num_rows) FROM ({groups})")
        if most is None:
            return ExpectationResult(passed=False)
        # Ties matter: two values may be equally common, and one of them not in the set.
        counts = f"count(*), count(*) FILTER ({is_member})"
        num_commonest, num_members = asker.row(f"SELECT {counts} FROM ({groups}) WHERE num_rows = {int(most)}")
        passed = num_members > 0 if expectation.kwargs.get("ties_okay") else (num_commonest, num_members) == (1, 1)
        return ExpectationResult(passed=bool(passed))

    return CompiledExpectation(answer=answer)


def unique_count_between(expectation: GivenExpectation) -> CompiledExpectation:
    _counted(expectation)
    return CompiledExpectation(answer=lambda asker: _decided(expectation, _distinct(expectation, asker)[0], "int64"))


def unique_share_between(expectation: GivenExpectation) -> CompiledExpectation:
    _bounded(expectation, "double")

    def answer(asker: ResultContext) -> ExpectationResult:
        num_distinct, num_values = _distinct(expectation, asker)
        return _decided(expectation, num_distinct / num_values if num_values else 0.0, "double")

    return CompiledExpectation(answer=answer)


def _distinct(expectation: GivenExpectation, asker: ResultContext) -> tuple[int, int]:
    if family(expectation.type_name) == "list":
        raise UnsupportedExpectation(f"it goes with plain values, not with {expectation.type_name}")
    # Grouped, not counted approximately: the estimate for many values is several per cent off.
    rows = f"FROM {ROWS} WHERE ({expectation.where}) AND {expectation.column} IS NOT NULL GROUP BY {expectation.column}"
    found = asker.row(f"SELECT count(*), coalesce(sum(num_same), 0) FROM (SELECT count(*) AS num_same {rows})")
    return int(found[0]), int(found[1])


def non_null_share_between(expectation: GivenExpectation) -> CompiledExpectation:
    _bounded(expectation, "double")
    is_nan = f" AND NOT isnan({expectation.column})" if family(expectation.type_name) == "float" else ""
    figures = (
        Scalar(f"count(*) FILTER ({expectation.where})"),
        Scalar(f"count(*) FILTER (({expectation.where}) AND {expectation.column} IS NOT NULL{is_nan})"),
    )

    def answer(asker: ResultContext) -> ExpectationResult:
        num_rows, num_values = asker.totals(figures)
        return _decided(expectation, num_values / num_rows if num_rows else 0.0, "double")

    return CompiledExpectation(answer=answer, figures=figures)


def column_exists(expectation: GivenExpectation) -> CompiledExpectation:
    name, place = expectation.kwargs["column"], expectation.kwargs.get("column_index")
    names = list(expectation.types)
    if place is None:
        passed = name in names
    elif isinstance(place, int) and not isinstance(place, bool):
        passed = -len(names) <= place < len(names) and names[place] == name
    else:
        raise UnsupportedExpectation("column_index is no integer")
    return CompiledExpectation(answer=lambda _: ExpectationResult(passed=passed))


def column_count_between(expectation: GivenExpectation) -> CompiledExpectation:
    _bounded(expectation, "int64")
    return CompiledExpectation(answer=lambda _: _decided(expectation, len(expectation.types), "int64"))


def column_count_equals(expectation: GivenExpectation) -> CompiledExpectation:
    require_whole(expectation, "a count", "value")
    passed = read_bound(expectation.kwargs["value"], "int64") == len(expectation.types)
    return CompiledExpectation(answer=lambda _: ExpectationResult(passed=passed))


def columns_match_set(expectation: GivenExpectation) -> CompiledExpectation:
    wanted, found = _names(expectation.kwargs["column_set"]), set(expectation.types)
    is_exact = expectation.kwargs.get("exact_match", True)
    passed = wanted == found if is_exact else wanted <= found
    return CompiledExpectation(answer=lambda _: ExpectationResult(passed=passed))


def columns_match_ordered_list(expectation: GivenExpectation) -> CompiledExpectation:
    _names(expectation.kwargs["column_list"])
    passed = expectation.kwargs["column_list"] == list(expectation.types)
    return CompiledExpectation(answer=lambda _: ExpectationResult(passed=passed))


def _names(given: Any) -> set[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise UnsupportedExpectation("it names no columns")
    return set(given)


def row_count_between(expectation: GivenExpectation) -> CompiledExpectation:
    _counted(expectation)
    return _num_rows(expectation, lambda number: _decided(expectation, number, "int64"))


def row_count_equals(expectation: GivenExpectation) -> CompiledExpectation:
    require_whole(expectation, "a count", "value")
    value = read_bound(expectation.kwargs["value"], "int64")
    return _num_rows(expectation, lambda number: ExpectationResult(passed=number == value))


def _num_rows(expectation: GivenExpectation, decide: Callable[[int], ExpectationResult]) -> CompiledExpectation:
    figure = Scalar("count(*)" if expectation.where == "TRUE" else f"count(*) FILTER ({expectation.where})")
    return CompiledExpectation(answer=lambda asker: decide(int(asker.totals([figure])[0])), figures=(figure,))
