"""Expectations of a given suite that single rows keep or break, as SQL."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.figures import Scalar
from data_contracts.python_regex import translate
from data_contracts.rows_database import ROWS, identifier, literal
from data_contracts.suite_answers import Answer, Asker, Question, function_name
from data_contracts.suite_conditions import pair_sql, type_of
from data_contracts.suite_types import is_of_type
from data_contracts.suite_values import (
    NUMERIC,
    Unsuitable,
    bounds_sql,
    comparable_sql,
    member_sql,
    read_bound,
    set_sql,
)
from data_contracts.type_families import family

REFERENCE_DAY = datetime.datetime(2000, 1, 1)
"""What `dateutil` takes for the parts that a text leaves out: a day of a long month and a leap year, not today."""


Functions = dict[str, Callable[[str], bool]]
"""What an expectation's SQL calls, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """An expectation's arguments, in the columns that it meets.

    Args:
        where: SQL of its `row_condition`, never null.
    """

    kwargs: Mapping[str, Any]
    types: Mapping[str, str]
    where: str = "TRUE"

    @property
    def column(self) -> str:
        return identifier(self.kwargs["column"])

    @property
    def type_name(self) -> str:
        return type_of(self.kwargs["column"], self.types)

    @property
    def mostly(self) -> float:
        return float(self.kwargs.get("mostly", 1))


def mostly_holds(num_judged: int, num_unexpected: int, mostly: float) -> bool:
    """As Great Expectations divides; of no rows, anything holds."""
    return not num_judged or (num_judged - num_unexpected) / num_judged >= mostly


def _counted(asked: Asked, judged: str, broken: str, functions: Functions | None = None) -> Question:
    """Rows where `judged` is true, and those where `broken` is true too; neither may be null."""
    figures = (
        Scalar(f"count(*) FILTER (({asked.where}) AND ({judged}))"),
        Scalar(f"count(*) FILTER (({asked.where}) AND ({judged}) AND ({broken}))"),
    )

    def answer(asker: Asker) -> Answer:
        num_judged, num_broken = (int(value) for value in asker.totals(figures))
        passed = mostly_holds(num_judged, num_broken, asked.mostly)
        return Answer(passed=passed, num_unexpected=num_broken, num_judged=num_judged)

    return Question(answer=answer, figures=figures, functions=functions or {})


def _values(asked: Asked, holds: str, functions: Functions | None = None) -> Question:
    """Rows with a value must hold; NaN is a value."""
    return _counted(asked, f"{asked.column} IS NOT NULL", f"NOT coalesce({holds}, FALSE)", functions)


def be_null(asked: Asked) -> Question:
    asked.type_name  # noqa: B018  # the column must be there
    return _counted(asked, "TRUE", f"{asked.column} IS NOT NULL")


def not_be_null(asked: Asked) -> Question:
    """NaN is as missing as null here, as it is to pandas."""
    is_nan = f" OR isnan({asked.column})" if family(asked.type_name) == "float" else ""
    return _counted(asked, "TRUE", f"coalesce({asked.column} IS NULL{is_nan}, FALSE)")


def be_between(asked: Asked) -> Question:
    expression = comparable_sql(asked.column, asked.type_name)
    return _values(asked, bounds_of(asked, expression, asked.type_name))


def bounds_of(asked: Asked, expression: str, type_name: str) -> str:
    """Raises `Unsuitable`: there is no bound, one is none of the type, or they are in the wrong order."""
    low, high = asked.kwargs.get("min_value"), asked.kwargs.get("max_value")
    require_order(low, high, type_name)
    strict_min, strict_max = (bool(asked.kwargs.get(name)) for name in ("strict_min", "strict_max"))
    return bounds_sql(expression, type_name, low, high, strict_min=strict_min, strict_max=strict_max)


def require_order(low: Any, high: Any, type_name: str) -> None:
    if low is None and high is None:
        raise Unsuitable("it asks nothing: min_value and max_value are null")
    if low is not None and high is not None and read_bound(low, type_name) > read_bound(high, type_name):
        raise Unsuitable(f"min_value {low} is above max_value {high}")


def be_in_set(asked: Asked) -> Question:
    return _values(asked, in_set_sql(asked))


def not_be_in_set(asked: Asked) -> Question:
    return _values(asked, f"NOT ({in_set_sql(asked)})")


def in_set_sql(asked: Asked) -> str:
    members = set_sql(asked.kwargs["value_set"], asked.type_name)
    return f"{member_sql(asked.column, asked.type_name)} IN ({', '.join(members)})" if members else "FALSE"


def match_regex(asked: Asked) -> Question:
    holds, functions = _found_sql(asked, asked.kwargs["regex"])
    return _values(asked, holds, functions)


def not_match_regex(asked: Asked) -> Question:
    holds, functions = _found_sql(asked, asked.kwargs["regex"])
    return _values(asked, f"NOT ({holds})", functions)


def match_regex_list(asked: Asked) -> Question:
    found = [_found_sql(asked, regex) for regex in asked.kwargs["regex_list"]]
    word = " AND " if asked.kwargs.get("match_on") == "all" else " OR "
    functions = {name: fits for _, each in found for name, fits in each.items()}
    return _values(asked, word.join(f"({holds})" for holds, _ in found), functions)


def not_match_regex_list(asked: Asked) -> Question:
    found = [_found_sql(asked, regex) for regex in asked.kwargs["regex_list"]]
    functions = {name: fits for _, each in found for name, fits in each.items()}
    return _values(asked, " AND ".join(f"NOT ({holds})" for holds, _ in found), functions)


def _found_sql(asked: Asked, regex: Any) -> tuple[str, Functions]:
    """Whether a regular expression of Python is found in the text, and the functions that this calls."""
    text = _text(asked, "a regular expression")
    if not isinstance(regex, str):
        raise Unsuitable("the regular expression is no text")
    try:
        translation, compiled = translate(regex), re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unsuitable(f"{regex!r} is no regular expression of Python ({error})") from None
    in_re2 = "" if translation is None else f"regexp_matches({text}, {literal(translation.re2)})"
    if translation is not None and not translation.is_for_ascii:
        return in_re2, {}
    name = function_name("regex", regex)
    functions = {name: lambda value: compiled.search(value) is not None}
    if not in_re2:
        return f"{name}({text})", functions
    # As many bytes as characters: ASCII alone.
    return f"CASE WHEN strlen({text}) = length({text}) THEN {in_re2} ELSE {name}({text}) END", functions


def _text(asked: Asked, what: str) -> str:
    kind = family(asked.type_name)
    if kind not in ("string", "integer"):
        raise Unsuitable(f"{what} goes with texts, not with {asked.type_name}")
    return asked.column if kind == "string" else f"{asked.column}::VARCHAR"


def lengths_be_between(asked: Asked) -> Question:
    return _values(asked, bounds_of(asked, f"length({_text(asked, 'a length')})", "int64"))


def lengths_equal(asked: Asked) -> Question:
    value = asked.kwargs["value"]
    return _values(asked, bounds_sql(f"length({_text(asked, 'a length')})", "int64", value, value))


def match_strftime_format(asked: Asked) -> Question:
    text_format = asked.kwargs["strftime_format"]
    if not isinstance(text_format, str):
        raise Unsuitable("the strftime_format is no text")
    try:
        datetime.datetime.strptime("", text_format)
    except ValueError as error:
        if "does not match" not in str(error):
            raise Unsuitable(f"{text_format!r} is no format of dates ({error})") from None
    except (TypeError, re.error) as error:
        raise Unsuitable(f"{text_format!r} is no format of dates ({error})") from None

    def fits(text: str) -> bool:
        try:
            datetime.datetime.strptime(text, text_format)
        except ValueError:
            return False
        return True

    return _called(asked, function_name("strptime", text_format), fits)


def be_dateutil_parseable(asked: Asked) -> Question:
    from dateutil.parser import parse  # type: ignore[import-untyped,unused-ignore]

    def fits(text: str) -> bool:
        try:
            parse(text, default=REFERENCE_DAY)
        except Exception:  # beyond ValueError and OverflowError, it has raised others of odd texts
            return False
        return True

    return _called(asked, function_name("dateutil", ""), fits)


def _called(asked: Asked, name: str, fits: Callable[[str], bool]) -> Question:
    if family(asked.type_name) != "string":
        raise Unsuitable(f"a format of dates goes with texts, not with {asked.type_name}")
    return _values(asked, f"{name}({asked.column})", {name: fits})


def be_of_type(asked: Asked) -> Question:
    return _typed(asked, [asked.kwargs["type_"]])


def be_in_type_list(asked: Asked) -> Question:
    return _typed(asked, asked.kwargs["type_list"])


def _typed(asked: Asked, names: Sequence[Any]) -> Question:
    """A column has one type, so that `mostly` and `row_condition` change nothing."""
    if not names or not all(isinstance(name, str) for name in names):
        raise Unsuitable("it names no type")
    # All of them are looked at: an unknown name is refused wherever it stands.
    passed = True in [is_of_type(asked.type_name, name) for name in names]
    return Question(answer=lambda _: Answer(passed=passed))


def be_unique(asked: Asked) -> Question:
    if family(asked.type_name) == "list":
        raise Unsuitable(f"it goes with plain values, not with {asked.type_name}")
    return _repeated(asked, [asked.column], f"{asked.column} IS NOT NULL")


def compound_be_unique(asked: Asked) -> Question:
    """Missing values are equal to each other, as in pandas."""
    return _repeated(asked, _listed(asked), _present(asked))


def _repeated(asked: Asked, columns: Sequence[str], judged: str) -> Question:
    groups = (
        f"SELECT count(*) AS num_same FROM {ROWS} WHERE ({asked.where}) AND ({judged}) GROUP BY {', '.join(columns)}"
    )
    counts = "coalesce(sum(num_same), 0), coalesce(sum(num_same) FILTER (num_same > 1), 0)"

    def answer(asker: Asker) -> Answer:
        num_judged, num_repeated = (int(value) for value in asker.row(f"SELECT {counts} FROM ({groups})"))
        passed = mostly_holds(num_judged, num_repeated, asked.mostly)
        return Answer(passed=passed, num_unexpected=num_repeated, num_judged=num_judged)

    return Question(answer=answer)


def _listed(asked: Asked) -> list[str]:
    names = asked.kwargs["column_list"]
    for name in names:
        type_of(name, asked.types)
    if len(names) < 2:
        raise Unsuitable("column_list names fewer than two columns")
    return [identifier(name) for name in names]


def _present(asked: Asked) -> str:
    """Which rows `ignore_row_if` leaves."""
    ignored = asked.kwargs.get("ignore_row_if") or "all_values_are_missing"
    if ignored not in ("all_values_are_missing", "any_value_is_missing", "never"):
        raise Unsuitable(f"ignore_row_if is {ignored!r}")
    word = {"all_values_are_missing": " OR ", "any_value_is_missing": " AND "}.get(ignored)
    return "TRUE" if word is None else word.join(f"{column} IS NOT NULL" for column in _listed(asked))


def multicolumn_sum_equal(asked: Asked) -> Question:
    """Missing values make a sum missing, which equals nothing."""
    parts = []
    for name in asked.kwargs["column_list"]:
        type_name = type_of(name, asked.types)
        if family(type_name) not in NUMERIC:
            raise Unsuitable(f"sums go with numbers, and {name} is {type_name}")
        is_whole = family(type_name) in ("bool", "integer")
        parts.append(f"{identifier(name)}::HUGEINT" if is_whole else identifier(name))
    kinds = {family(type_of(name, asked.types)) for name in asked.kwargs["column_list"]}
    type_name = "double" if "float" in kinds else "decimal128(38, 0)" if "decimal" in kinds else "int64"
    total = f"({' + '.join(parts)})" + ("::DOUBLE" if "float" in kinds else "")
    sum_total = asked.kwargs["sum_total"]
    holds = bounds_sql(total, type_name, sum_total, sum_total)
    return _counted(asked, _present(asked), f"NOT coalesce({holds}, FALSE)")


def unique_within_record(asked: Asked) -> Question:
    """Values of columns that are not compared, such as a text and a number, are never equal."""
    _listed(asked)
    equal = []
    names = asked.kwargs["column_list"]
    for place, name in enumerate(names):
        for other in names[:place]:
            column, earlier = identifier(name), identifier(other)
            equal.append(f"{column} IS NULL AND {earlier} IS NULL")
            try:
                equal.append(pair_sql(column, asked.types[name], earlier, asked.types[other], "="))
            except Unsuitable:
                continue
    return _counted(asked, _present(asked), " OR ".join(f"coalesce({each}, FALSE)" for each in equal))


def pair_be_equal(asked: Asked) -> Question:
    return _pair(asked, "=")


def pair_a_greater_than_b(asked: Asked) -> Question:
    return _pair(asked, ">=" if asked.kwargs.get("or_equal") else ">")


def _pair(asked: Asked, relation: str) -> Question:
    """A row where either value is missing breaks it, if `ignore_row_if` does not leave it out."""
    names = (asked.kwargs["column_A"], asked.kwargs["column_B"])
    left, right = (identifier(name) for name in names)
    left_type, right_type = (type_of(name, asked.types) for name in names)
    holds = pair_sql(left, left_type, right, right_type, relation)
    ignored = asked.kwargs.get("ignore_row_if") or "both_values_are_missing"
    if ignored not in ("both_values_are_missing", "either_value_is_missing", "neither"):
        raise Unsuitable(f"ignore_row_if is {ignored!r}")
    word = {"both_values_are_missing": " OR ", "either_value_is_missing": " AND "}.get(ignored)
    judged = "TRUE" if word is None else word.join(f"{column} IS NOT NULL" for column in (left, right))
    return _counted(asked, judged, f"NOT coalesce({holds}, FALSE)")
