"""Expectations of a given suite that single rows keep or break, as SQL."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.data_contracts.scans.figures import Scalar
from headway.data_contracts.scans.rows_database import ROWS, identifier, literal
from headway.data_contracts.suites.literals import (
    NUMERIC,
    UnsupportedExpectation,
    bounds_sql,
    comparable_sql,
    member_sql,
    read_bound,
    set_sql,
)
from headway.data_contracts.suites.python_regex import translate
from headway.data_contracts.suites.python_texts import TextPredicate
from headway.data_contracts.suites.results import CompiledExpectation, ExpectationResult, ResultContext
from headway.data_contracts.suites.row_conditions import pair_sql, type_of
from headway.data_contracts.suites.type_names import is_of_type
from headway.data_contracts.types.type_families import family

Functions = tuple[TextPredicate, ...]
"""What an expectation's SQL calls."""


POSIX_CLASS = re.compile(r"\[[^\]]*(\[:\^?[a-z]+:\])")


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenExpectation:
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


def mostly_holds(num_evaluated: int, num_unexpected: int, mostly: float) -> bool:
    """As Great Expectations divides; of no rows, anything holds."""
    # The same division, for its rounding decides at the border.
    return not num_evaluated or (num_evaluated - num_unexpected) / num_evaluated >= mostly


def _counted(
    expectation: GivenExpectation, evaluated: str, broken: str, functions: Functions = ()
) -> CompiledExpectation:
    """Rows where `evaluated` is true, and those where `broken` is true too; neither may be null."""
    figures = (
        Scalar(f"count(*) FILTER (({expectation.where}) AND ({evaluated}))"),
        Scalar(f"count(*) FILTER (({expectation.where}) AND ({evaluated}) AND ({broken}))"),
    )

    def answer(asker: ResultContext) -> ExpectationResult:
        num_evaluated, num_broken = (int(value) for value in asker.totals(figures))
        passed = mostly_holds(num_evaluated, num_broken, expectation.mostly)
        return ExpectationResult(passed=passed, num_unexpected=num_broken, num_evaluated=num_evaluated)

    return CompiledExpectation(answer=answer, figures=figures, functions=functions)


def _values(expectation: GivenExpectation, holds: str, functions: Functions = ()) -> CompiledExpectation:
    """Rows with a value must hold; NaN is a value."""
    # A condition that is null, for a missing value inside, does not hold.
    return _counted(expectation, f"{expectation.column} IS NOT NULL", f"NOT coalesce({holds}, FALSE)", functions)


def be_null(expectation: GivenExpectation) -> CompiledExpectation:
    expectation.type_name  # noqa: B018  # the column must be there
    return _counted(expectation, "TRUE", f"{expectation.column} IS NOT NULL")


def not_be_null(expectation: GivenExpectation) -> CompiledExpectation:
    """NaN is as missing as null here, as it is to pandas."""
    is_nan = f" OR isnan({expectation.column})" if family(expectation.type_name) == "float" else ""
    return _counted(expectation, "TRUE", f"coalesce({expectation.column} IS NULL{is_nan}, FALSE)")


def be_between(expectation: GivenExpectation) -> CompiledExpectation:
    expression = comparable_sql(expectation.column, expectation.type_name)
    return _values(expectation, bounds_of(expectation, expression, expectation.type_name))


def bounds_of(expectation: GivenExpectation, expression: str, type_name: str) -> str:
    """Raises `UnsupportedExpectation`: there is no bound, one is none of the type, or they are in the wrong order."""
    low, high = expectation.kwargs.get("min_value"), expectation.kwargs.get("max_value")
    require_order(low, high, type_name)
    strict_min, strict_max = (bool(expectation.kwargs.get(name)) for name in ("strict_min", "strict_max"))
    return bounds_sql(expression, type_name, low, high, strict_min=strict_min, strict_max=strict_max)


def require_order(low: Any, high: Any, type_name: str) -> None:
    if low is None and high is None:
        raise UnsupportedExpectation("it asks nothing: min_value and max_value are null")
    # As numbers of the column's type, so that "2" and 10 are in their order.
    if low is not None and high is not None and read_bound(low, type_name) > read_bound(high, type_name):
        raise UnsupportedExpectation(f"min_value {low} is above max_value {high}")


def be_in_set(expectation: GivenExpectation) -> CompiledExpectation:
    return _values(expectation, in_set_sql(expectation))


def not_be_in_set(expectation: GivenExpectation) -> CompiledExpectation:
    return _values(expectation, f"NOT ({in_set_sql(expectation)})")


def in_set_sql(expectation: GivenExpectation) -> str:
    members = set_sql(expectation.kwargs["value_set"], expectation.type_name)
    # An empty list is no SQL; nothing is a member of it.
    return f"{member_sql(expectation.column, expectation.type_name)} IN ({', '.join(members)})" if members else "FALSE"


def match_regex(expectation: GivenExpectation) -> CompiledExpectation:
    holds, functions = _found_sql(expectation, expectation.kwargs["regex"])
    return _values(expectation, holds, functions)


def not_match_regex(expectation: GivenExpectation) -> CompiledExpectation:
    holds, functions = _found_sql(expectation, expectation.kwargs["regex"])
    return _values(expectation, f"NOT ({holds})", functions)


def match_regex_list(expectation: GivenExpectation) -> CompiledExpectation:
    found = [_found_sql(expectation, regex) for regex in expectation.kwargs["regex_list"]]
    word = " AND " if expectation.kwargs.get("match_on") == "all" else " OR "
    functions = tuple(fits for _, each in found for fits in each)
    return _values(expectation, word.join(f"({holds})" for holds, _ in found), functions)


def not_match_regex_list(expectation: GivenExpectation) -> CompiledExpectation:
    found = [_found_sql(expectation, regex) for regex in expectation.kwargs["regex_list"]]
    functions = tuple(fits for _, each in found for fits in each)
    return _values(expectation, " AND ".join(f"NOT ({holds})" for holds, _ in found), functions)


def _found_sql(expectation: GivenExpectation, regex: Any) -> tuple[str, Functions]:
    """Whether a regular expression of Python is found in the text, and the functions that this calls."""
    text = _text(expectation, "a regular expression")
    if not isinstance(regex, str):
        raise UnsupportedExpectation("the regular expression is no text")
    # Great Expectations on pandas has RE2 read some expressions and Python others.
    if (posix := POSIX_CLASS.search(regex)) is not None:
        raise UnsupportedExpectation(
            f"in {regex!r}, {posix[1]} is a class to RE2 and none to Python: write the characters, such as [A-Za-z]"
        )
    try:
        # Compiled by Python first, which alone says whether it is an expression.
        re.compile(regex)
        translation = translate(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedExpectation(f"{regex!r} is no regular expression of Python ({error})") from None
    in_re2 = "" if translation is None else f"regexp_matches({text}, {literal(translation.re2)})"
    if translation is not None and not translation.is_for_ascii:
        return in_re2, ()
    # A name by content: two expectations with one expression share the function and its memory.
    fits = TextPredicate("regex", regex, expectation.kwargs["column"])
    if not in_re2:
        return f"{fits.name}({text})", (fits,)
    # As many bytes as characters: ASCII alone.
    return f"CASE WHEN strlen({text}) = length({text}) THEN {in_re2} ELSE {fits.name}({text}) END", (fits,)


def _text(expectation: GivenExpectation, what: str) -> str:
    kind = family(expectation.type_name)
    if kind not in ("string", "integer"):
        raise UnsupportedExpectation(f"{what} goes with texts, not with {expectation.type_name}")
    # Integers are texts to a regular expression, as they are in pandas.
    return expectation.column if kind == "string" else f"{expectation.column}::VARCHAR"


def lengths_be_between(expectation: GivenExpectation) -> CompiledExpectation:
    require_whole(expectation, "a length", "min_value", "max_value")
    return _values(expectation, bounds_of(expectation, f"length({_text(expectation, 'a length')})", "int64"))


def require_whole(expectation: GivenExpectation, what: str, *names: str) -> None:
    # Great Expectations cuts the fraction off: what is less than 2.5 is less than 2 there.
    for value in map(expectation.kwargs.get, names):
        if isinstance(value, float) and not value.is_integer():
            raise UnsupportedExpectation(f"{what} is a whole number, and {value:g} is none")


def lengths_equal(expectation: GivenExpectation) -> CompiledExpectation:
    require_whole(expectation, "a length", "value")
    value = expectation.kwargs["value"]
    return _values(expectation, bounds_sql(f"length({_text(expectation, 'a length')})", "int64", value, value))


def match_strftime_format(expectation: GivenExpectation) -> CompiledExpectation:
    text_format = expectation.kwargs["strftime_format"]
    if not isinstance(text_format, str):
        raise UnsupportedExpectation("the strftime_format is no text")
    try:
        # An empty text fits no format, but a format that Python does not know raises another error.
        datetime.datetime.strptime("", text_format)
    except ValueError as error:
        if "does not match" not in str(error):
            raise UnsupportedExpectation(f"{text_format!r} is no format of dates ({error})") from None
    except (TypeError, re.error) as error:
        raise UnsupportedExpectation(f"{text_format!r} is no format of dates ({error})") from None

    return _called(expectation, TextPredicate("strptime", text_format, expectation.kwargs["column"]))


def be_dateutil_parseable(expectation: GivenExpectation) -> CompiledExpectation:
    return _called(expectation, TextPredicate("dateutil", "", expectation.kwargs["column"]))


def _called(expectation: GivenExpectation, fits: TextPredicate) -> CompiledExpectation:
    if family(expectation.type_name) != "string":
        raise UnsupportedExpectation(f"a format of dates goes with texts, not with {expectation.type_name}")
    return _values(expectation, f"{fits.name}({expectation.column})", (fits,))


def be_of_type(expectation: GivenExpectation) -> CompiledExpectation:
    return _typed(expectation, [expectation.kwargs["type_"]])


def be_in_type_list(expectation: GivenExpectation) -> CompiledExpectation:
    return _typed(expectation, expectation.kwargs["type_list"])


def _typed(expectation: GivenExpectation, names: Sequence[Any]) -> CompiledExpectation:
    """A column has one type, so that `mostly` and `row_condition` change nothing."""
    if not names or not all(isinstance(name, str) for name in names):
        raise UnsupportedExpectation("it names no type")
    # All of them are looked at: an unknown name is refused wherever it stands.
    passed = True in [is_of_type(expectation.type_name, name) for name in names]
    return CompiledExpectation(answer=lambda _: ExpectationResult(passed=passed))


def be_unique(expectation: GivenExpectation) -> CompiledExpectation:
    if family(expectation.type_name) == "list":
        raise UnsupportedExpectation(f"it goes with plain values, not with {expectation.type_name}")
    return _repeated(expectation, [expectation.column], f"{expectation.column} IS NOT NULL")


def compound_be_unique(expectation: GivenExpectation) -> CompiledExpectation:
    """Missing values are equal to each other, as in pandas."""
    return _repeated(expectation, _listed(expectation), _present(expectation))


def _repeated(expectation: GivenExpectation, columns: Sequence[str], evaluated: str) -> CompiledExpectation:
    where = f"({expectation.where}) AND ({evaluated})"
    # Rows of a group are counted, not listed: only how many repeat matters.
    groups = f"SELECT count(*) AS num_same FROM {ROWS} WHERE {where} GROUP BY {', '.join(columns)}"
    counts = "coalesce(sum(num_same), 0), coalesce(sum(num_same) FILTER (num_same > 1), 0)"

    def answer(asker: ResultContext) -> ExpectationResult:
        num_evaluated, num_repeated = (int(value) for value in asker.row(f"SELECT {counts} FROM ({groups})"))
        passed = mostly_holds(num_evaluated, num_repeated, expectation.mostly)
        return ExpectationResult(passed=passed, num_unexpected=num_repeated, num_evaluated=num_evaluated)

    return CompiledExpectation(answer=answer)


def _listed(expectation: GivenExpectation) -> list[str]:
    names = expectation.kwargs["column_list"]
    for name in names:
        type_of(name, expectation.types)
    if len(names) < 2:
        raise UnsupportedExpectation("column_list names fewer than two columns")
    return [identifier(name) for name in names]


def _present(expectation: GivenExpectation) -> str:
    """Which rows `ignore_row_if` leaves."""
    ignored = expectation.kwargs.get("ignore_row_if") or "all_values_are_missing"
    if ignored not in ("all_values_are_missing", "any_value_is_missing", "never"):
        raise UnsupportedExpectation(f"ignore_row_if is {ignored!r}")
    word = {"all_values_are_missing": " OR ", "any_value_is_missing": " AND "}.get(ignored)
    return "TRUE" if word is None else word.join(f"{column} IS NOT NULL" for column in _listed(expectation))


def multicolumn_sum_equal(expectation: GivenExpectation) -> CompiledExpectation:
    """Missing values make a sum missing, which equals nothing."""
    parts = []
    for name in expectation.kwargs["column_list"]:
        type_name = type_of(name, expectation.types)
        if family(type_name) not in NUMERIC:
            raise UnsupportedExpectation(f"sums go with numbers, and {name} is {type_name}")
        is_whole = family(type_name) in ("bool", "integer")
        # 128 bits: sums of large integers must not overflow.
        parts.append(f"{identifier(name)}::HUGEINT" if is_whole else identifier(name))
    kinds = {family(type_of(name, expectation.types)) for name in expectation.kwargs["column_list"]}
    type_name = "double" if "float" in kinds else "decimal128(38, 0)" if "decimal" in kinds else "int64"
    total = f"({' + '.join(parts)})" + ("::DOUBLE" if "float" in kinds else "")
    sum_total = expectation.kwargs["sum_total"]
    holds = bounds_sql(total, type_name, sum_total, sum_total)
    return _counted(expectation, _present(expectation), f"NOT coalesce({holds}, FALSE)")


def unique_within_record(expectation: GivenExpectation) -> CompiledExpectation:
    """Values of columns that are not compared, such as a text and a number, are never equal."""
    _listed(expectation)
    equal = []
    names = expectation.kwargs["column_list"]
    for place, name in enumerate(names):
        for other in names[:place]:
            column, earlier = identifier(name), identifier(other)
            # Two missing values are equal, as in pandas.
            equal.append(f"{column} IS NULL AND {earlier} IS NULL")
            try:
                equal.append(pair_sql(column, expectation.types[name], earlier, expectation.types[other], "="))
            # Types that are not compared are never equal.
            except UnsupportedExpectation:
                continue
    return _counted(expectation, _present(expectation), " OR ".join(f"coalesce({each}, FALSE)" for each in equal))


def pair_be_equal(expectation: GivenExpectation) -> CompiledExpectation:
    return _pair(expectation, "=")


def pair_a_greater_than_b(expectation: GivenExpectation) -> CompiledExpectation:
    return _pair(expectation, ">=" if expectation.kwargs.get("or_equal") else ">")


def _pair(expectation: GivenExpectation, relation: str) -> CompiledExpectation:
    """A row where either value is missing breaks it, if `ignore_row_if` does not leave it out."""
    names = (expectation.kwargs["column_A"], expectation.kwargs["column_B"])
    left, right = (identifier(name) for name in names)
    left_type, right_type = (type_of(name, expectation.types) for name in names)
    holds = pair_sql(left, left_type, right, right_type, relation)
    ignored = expectation.kwargs.get("ignore_row_if") or "both_values_are_missing"
    if ignored not in ("both_values_are_missing", "either_value_is_missing", "neither"):
        raise UnsupportedExpectation(f"ignore_row_if is {ignored!r}")
    word = {"both_values_are_missing": " OR ", "either_value_is_missing": " AND "}.get(ignored)
    evaluated = "TRUE" if word is None else word.join(f"{column} IS NOT NULL" for column in (left, right))
    return _counted(expectation, evaluated, f"NOT coalesce({holds}, FALSE)")
