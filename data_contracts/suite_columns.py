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

from data_contracts.column_figures import statistic_value
from data_contracts.figures import Figure, Scalar, exact_sum
from data_contracts.rows_database import ROWS
from data_contracts.suite_answers import Answer, Asker, Question
from data_contracts.suite_rows import Asked, in_set_sql, require_order
from data_contracts.suite_values import (
    NUMERIC,
    Unsuitable,
    comparable_sql,
    member_sql,
    read_bound,
    set_sql,
)
from data_contracts.type_families import family

ALMOST_REL, ALMOST_ABS = 1e-4, 1e-8
"""How near to a bound Great Expectations takes a quantile for within it."""
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _within(asked: Asked, value: Any, type_name: str) -> bool:
    """Whether a figure is within the bounds asked; a missing figure and NaN are not."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    low, high = (asked.kwargs.get(name) for name in ("min_value", "max_value"))
    number = _exact(value)
    if low is not None:
        least = _exact(read_bound(low, type_name))
        if number < least or (number == least and asked.kwargs.get("strict_min")):
            return False
    if high is None:
        return True
    greatest = _exact(read_bound(high, type_name))
    return bool(number < greatest or (number == greatest and not asked.kwargs.get("strict_max")))


def _exact(value: Any) -> Fraction | float:
    """A figure, or a bound, so that they compare as doubles where one is a double."""
    return float(value) if isinstance(value, float) and math.isinf(value) else Fraction(value)


def _bounded(asked: Asked, type_name: str) -> None:
    require_order(asked.kwargs.get("min_value"), asked.kwargs.get("max_value"), type_name)


def _as_double(asked: Asked, value: Any) -> Asked:
    """Bounds of a figure that is a double are the doubles next to what is written."""
    kwargs = dict(asked.kwargs)
    for name in ("min_value", "max_value"):
        if kwargs.get(name) is not None:
            kwargs[name] = float(read_bound(kwargs[name], "double"))
    return Asked(kwargs=kwargs, types=asked.types, where=asked.where) if isinstance(value, float) else asked


def _decided(asked: Asked, value: Any, type_name: str) -> Answer:
    return Answer(passed=_within(_as_double(asked, value) if type_name == "double" else asked, value, type_name))


def _limited(asked: Asked, expression: str) -> str:
    """An expression that is null where the expectation does not speak of the row."""
    return expression if asked.where == "TRUE" else f"CASE WHEN {asked.where} THEN {expression} END"


def min_between(asked: Asked) -> Question:
    return _extreme(asked, "min")


def max_between(asked: Asked) -> Question:
    return _extreme(asked, "max")


def _extreme(asked: Asked, name: str) -> Question:
    type_name = asked.type_name
    _bounded(asked, type_name)
    selected = f"{name}({_limited(asked, comparable_sql(asked.column, type_name))})"
    compared = "double" if family(type_name) == "float" else type_name
    if family(type_name) == "decimal":
        return Question(answer=lambda asker: _decided(asked, asker.row(f"SELECT {selected} FROM {ROWS}")[0], compared))
    figure = Scalar(selected, merge="min" if name == "min" else "max")
    return Question(answer=lambda asker: _decided(asked, asker.totals([figure])[0], compared), figures=(figure,))


def mean_between(asked: Asked) -> Question:
    return _total(asked, "mean")


def sum_between(asked: Asked) -> Question:
    return _total(asked, "sum")


def _total(asked: Asked, statistic: str) -> Question:
    """Exact, then rounded once. The sum of nothing is 0, the mean of nothing is within no bounds."""
    kind = _numeric(asked)
    _bounded(asked, "double")
    expression = _limited(asked, asked.column)

    def decided(value: Any) -> Answer:
        found = 0.0 if value is None and statistic == "sum" else value
        return _decided(asked, float(found) if isinstance(found, int) and abs(found) <= 1 << 53 else found, "double")

    if kind == "decimal":
        return Question(answer=lambda asker: decided(_decimal_total(asker, expression, statistic)))
    summed: Figure = exact_sum(f"({expression})") if kind == "float" else Scalar(f"sum({expression})")
    figures = (summed, Scalar(f"count({expression})"))
    return Question(answer=lambda asker: decided(statistic_value(statistic, asker.totals(figures))), figures=figures)


def _decimal_total(asker: Asker, expression: str, statistic: str) -> float | None:
    total, count = asker.row(f"SELECT sum({expression}), count({expression}) FROM {ROWS}")
    if not count:
        return None
    return float(Fraction(Decimal(total)) / (count if statistic == "mean" else 1))


def _numeric(asked: Asked) -> str:
    kind = family(asked.type_name)
    if kind not in NUMERIC:
        raise Unsuitable(f"it goes with numbers, not with {asked.type_name}")
    return kind


def median_between(asked: Asked) -> Question:
    return _scanned(asked, "median")


def stdev_between(asked: Asked) -> Question:
    return _scanned(asked, "stddev_samp")


def _scanned(asked: Asked, function: str) -> Question:
    kind = _numeric(asked)
    _bounded(asked, "double")
    number = f"{asked.column}::TINYINT" if kind == "bool" else asked.column
    sql = f"SELECT {function}({number}::DOUBLE), {_num_nan(asked)} FROM {ROWS} WHERE {asked.where}"

    def answer(asker: Asker) -> Answer:
        value, num_nan = asker.row(sql)
        return _decided(asked, math.nan if num_nan else value, "double")

    return Question(answer=answer)


def _num_nan(asked: Asked) -> str:
    return f"count(*) FILTER (isnan({asked.column}))" if family(asked.type_name) == "float" else "0"


def quantiles_between(asked: Asked) -> Question:
    """With pandas' interpolation: `nearest` unless another is given as `allow_relative_error`."""
    if _numeric(asked) == "bool":
        raise Unsuitable("quantiles go with numbers, not with bool")
    interpolation = asked.kwargs.get("allow_relative_error") or "nearest"
    if interpolation not in INTERPOLATIONS:
        raise Unsuitable(f"allow_relative_error is {interpolation!r}, and no interpolation of pandas")
    quantiles, ranges = _quantile_ranges(asked.kwargs["quantile_ranges"])
    column = f"{asked.column}::DOUBLE"
    source = f"FROM {ROWS} WHERE ({asked.where}) AND {asked.column} IS NOT NULL"

    def answer(asker: Asker) -> Answer:
        number, num_nan = asker.row(f"SELECT count(*), {_num_nan(asked)} {source}")
        if not number or num_nan:
            return Answer(passed=False)
        places = [_places(quantile, number, interpolation) for quantile in quantiles]
        wanted = [place for low, high, _ in places for place in (low, high)]
        # The n-th value by a fraction that lies between the n-th and the one before.
        shares = ", ".join(f"quantile_disc({column}, {(place + 0.5) / number!r})" for place in wanted)
        found = asker.row(f"SELECT {shares} {source}")
        values = [
            found[2 * place] + (found[2 * place + 1] - found[2 * place]) * weight if weight else found[2 * place]
            for place, (_, _, weight) in enumerate(places)
        ]
        return Answer(passed=all(_is_within_almost(value, *each) for value, each in zip(values, ranges, strict=True)))

    return Question(answer=answer)


def _quantile_ranges(given: Any) -> tuple[list[float], list[tuple[float, float]]]:
    quantiles = given.get("quantiles") if isinstance(given, dict) else None
    ranges = given.get("value_ranges") if isinstance(given, dict) else None
    if (
        not isinstance(quantiles, list)
        or not isinstance(ranges, list)
        or not quantiles
        or len(quantiles) != len(ranges)
    ):
        raise Unsuitable("quantile_ranges has not as many value_ranges as quantiles")
    if not all(isinstance(each, int | float) and 0 <= each <= 1 for each in quantiles):
        raise Unsuitable("quantiles are numbers from 0 to 1")
    found = []
    for each in ranges:
        if not isinstance(each, list) or len(each) != 2 or not all(_is_number(bound) for bound in each):
            raise Unsuitable("each of value_ranges is two numbers or nulls")
        low, high = (-math.inf if each[0] is None else each[0], math.inf if each[1] is None else each[1])
        if low > high:
            raise Unsuitable(f"the lower bound {low} of a quantile is above the upper bound {high}")
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


def distinct_in_set(asked: Asked) -> Question:
    """Counted by rows, which adds up over files: a value outside the set is at least one row."""
    figure = _num_outside(asked)
    return Question(answer=lambda asker: Answer(passed=not asker.totals([figure])[0]), figures=(figure,))


def _num_outside(asked: Asked) -> Scalar:
    outside = f"{asked.column} IS NOT NULL AND NOT coalesce({in_set_sql(asked)}, FALSE)"
    return Scalar(f"count(*) FILTER (({asked.where}) AND {outside})")


def distinct_contain_set(asked: Asked) -> Question:
    holds = _contains(asked)
    return Question(answer=lambda asker: Answer(passed=holds(asker)))


def distinct_equal_set(asked: Asked) -> Question:
    figure, holds = _num_outside(asked), _contains(asked)
    answer: Callable[[Asker], Answer] = lambda asker: Answer(passed=not asker.totals([figure])[0] and holds(asker))  # noqa: E731
    return Question(answer=answer, figures=(figure,))


def _contains(asked: Asked) -> Callable[[Asker], bool]:
    """Whether every value of the set occurs; one that the column cannot hold does not."""
    members = set_sql(asked.kwargs["value_set"], asked.type_name)
    wanted = {(isinstance(value, str), value) for value in asked.kwargs["value_set"] if value is not None}
    is_temporal = family(asked.type_name) in ("date", "timestamp")
    if len(members) < len(wanted) and not is_temporal:
        return lambda _: False
    if not members:
        return lambda _: True
    member = member_sql(asked.column, asked.type_name)
    held = f"SELECT DISTINCT {member} AS member FROM {ROWS} WHERE ({asked.where}) AND {in_set_sql(asked)}"
    return lambda asker: bool(asker.row(f"SELECT count(*) FROM ({held})")[0] == len(members))


def most_common_in_set(asked: Asked) -> Question:
    """Whether the commonest value is in the set, alone or, with `ties_okay`, among others as common."""
    member = member_sql(asked.column, asked.type_name)
    rows = f"FROM {ROWS} WHERE ({asked.where}) AND {asked.column} IS NOT NULL GROUP BY {member}"
    is_member = in_set_sql(asked).replace(member, "member", 1)
    groups = f"SELECT {member} AS member, count(*) AS num_rows {rows}"

    def answer(asker: Asker) -> Answer:
        (most,) = asker.row(f"SELECT max(num_rows) FROM ({groups})")
        if most is None:
            return Answer(passed=False)
        counts = f"count(*), count(*) FILTER ({is_member})"
        num_commonest, num_members = asker.row(f"SELECT {counts} FROM ({groups}) WHERE num_rows = {int(most)}")
        passed = num_members > 0 if asked.kwargs.get("ties_okay") else (num_commonest, num_members) == (1, 1)
        return Answer(passed=bool(passed))

    return Question(answer=answer)


def unique_count_between(asked: Asked) -> Question:
    _bounded(asked, "int64")
    return Question(answer=lambda asker: _decided(asked, _distinct(asked, asker)[0], "int64"))


def unique_share_between(asked: Asked) -> Question:
    _bounded(asked, "double")

    def answer(asker: Asker) -> Answer:
        num_distinct, num_values = _distinct(asked, asker)
        return _decided(asked, num_distinct / num_values if num_values else 0.0, "double")

    return Question(answer=answer)


def _distinct(asked: Asked, asker: Asker) -> tuple[int, int]:
    if family(asked.type_name) == "list":
        raise Unsuitable(f"it goes with plain values, not with {asked.type_name}")
    rows = f"FROM {ROWS} WHERE ({asked.where}) AND {asked.column} IS NOT NULL GROUP BY {asked.column}"
    found = asker.row(f"SELECT count(*), coalesce(sum(num_same), 0) FROM (SELECT count(*) AS num_same {rows})")
    return int(found[0]), int(found[1])


def non_null_share_between(asked: Asked) -> Question:
    _bounded(asked, "double")
    is_nan = f" AND NOT isnan({asked.column})" if family(asked.type_name) == "float" else ""
    figures = (
        Scalar(f"count(*) FILTER ({asked.where})"),
        Scalar(f"count(*) FILTER (({asked.where}) AND {asked.column} IS NOT NULL{is_nan})"),
    )

    def answer(asker: Asker) -> Answer:
        num_rows, num_values = asker.totals(figures)
        return _decided(asked, num_values / num_rows if num_rows else 0.0, "double")

    return Question(answer=answer, figures=figures)


def column_exists(asked: Asked) -> Question:
    name, place = asked.kwargs["column"], asked.kwargs.get("column_index")
    names = list(asked.types)
    if place is None:
        passed = name in names
    elif isinstance(place, int) and not isinstance(place, bool):
        passed = -len(names) <= place < len(names) and names[place] == name
    else:
        raise Unsuitable("column_index is no integer")
    return Question(answer=lambda _: Answer(passed=passed))


def column_count_between(asked: Asked) -> Question:
    _bounded(asked, "int64")
    return Question(answer=lambda _: _decided(asked, len(asked.types), "int64"))


def column_count_equals(asked: Asked) -> Question:
    passed = read_bound(asked.kwargs["value"], "int64") == len(asked.types)
    return Question(answer=lambda _: Answer(passed=passed))


def columns_match_set(asked: Asked) -> Question:
    wanted, found = _names(asked.kwargs["column_set"]), set(asked.types)
    is_exact = asked.kwargs.get("exact_match", True)
    passed = wanted == found if is_exact else wanted <= found
    return Question(answer=lambda _: Answer(passed=passed))


def columns_match_ordered_list(asked: Asked) -> Question:
    _names(asked.kwargs["column_list"])
    passed = asked.kwargs["column_list"] == list(asked.types)
    return Question(answer=lambda _: Answer(passed=passed))


def _names(given: Any) -> set[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise Unsuitable("it names no columns")
    return set(given)


def row_count_between(asked: Asked) -> Question:
    _bounded(asked, "int64")
    return _num_rows(asked, lambda number: _decided(asked, number, "int64"))


def row_count_equals(asked: Asked) -> Question:
    value = read_bound(asked.kwargs["value"], "int64")
    return _num_rows(asked, lambda number: Answer(passed=number == value))


def _num_rows(asked: Asked, decide: Callable[[int], Answer]) -> Question:
    figure = Scalar("count(*)" if asked.where == "TRUE" else f"count(*) FILTER ({asked.where})")
    return Question(answer=lambda asker: decide(int(asker.totals([figure])[0])), figures=(figure,))
