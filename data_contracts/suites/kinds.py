"""The expectations that a given suite may hold: their arguments, and how each is evaluated.

They are evaluated in DuckDB, out of core, and answer what Great Expectations answers on pandas; a test holds every kind
against it. Whatever has no such answer is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.data_contracts.suites import column_expectations as columns
from headway.data_contracts.suites import row_expectations as rows
from headway.data_contracts.suites.literals import UnsupportedExpectation
from headway.data_contracts.suites.results import CompiledExpectation
from headway.data_contracts.suites.row_conditions import columns_of, condition_sql, read_condition
from headway.data_contracts.suites.row_expectations import GivenExpectation

SILENT = ("batch_id", "result_format", "catch_exceptions", "meta", "description", "notes", "rendered_content")
"""Arguments that no verdict depends on."""
CONDITION = ("row_condition", "condition_parser")
BOUNDS = ("min_value", "max_value", "strict_min", "strict_max")
LISTS = ("value_set", "column_list", "regex_list", "type_list")
FLAGS = ("strict_min", "strict_max", "or_equal", "ties_okay", "exact_match")
UNFORESEEN = (ArithmeticError, LookupError, TypeError, ValueError, RecursionError)
"""What an argument that nobody thought of may raise: it is then refused, or has failed, and never holds."""
REPRESENTATIVES = ("string", "int64", "double", "bool", "decimal128(18, 2)", "date32[day]", "timestamp[us]",
                   "timestamp[us, tz=UTC]")  # fmt: skip
"""Types to try an expectation on before the column's is known."""


@dataclass(frozen=True, slots=True)
class ExpectationKind:
    """One type of expectation.

    Args:
        needed: arguments without which it asks nothing.
        optional: further arguments.
        about: which of its arguments name the columns whose types matter.
    """

    compile: Callable[[GivenExpectation], CompiledExpectation]
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    about: tuple[str, ...] = ()


def _of_rows(
    evaluated: Callable[[GivenExpectation], CompiledExpectation], *needed: str, optional: tuple[str, ...] = ()
) -> ExpectationKind:
    return ExpectationKind(evaluated, ("column", *needed), (*optional, "mostly", *CONDITION), ("column",))


def _of_column(
    evaluated: Callable[[GivenExpectation], CompiledExpectation], *needed: str, optional: tuple[str, ...] = BOUNDS
) -> ExpectationKind:
    return ExpectationKind(evaluated, ("column", *needed), (*optional, *CONDITION), ("column",))


def _of_list(evaluated: Callable[[GivenExpectation], CompiledExpectation], *needed: str) -> ExpectationKind:
    return ExpectationKind(
        evaluated, ("column_list", *needed), ("ignore_row_if", "mostly", *CONDITION), ("column_list",)
    )


def _of_pair(evaluated: Callable[[GivenExpectation], CompiledExpectation], *optional: str) -> ExpectationKind:
    names = ("column_A", "column_B")
    return ExpectationKind(evaluated, names, (*optional, "ignore_row_if", "mostly", *CONDITION), names)


KINDS: Mapping[str, ExpectationKind] = {
    "expect_column_distinct_values_to_be_in_set": _of_column(columns.distinct_in_set, "value_set", optional=()),
    "expect_column_distinct_values_to_contain_set": _of_column(columns.distinct_contain_set, "value_set", optional=()),
    "expect_column_distinct_values_to_equal_set": _of_column(columns.distinct_equal_set, "value_set", optional=()),
    "expect_column_max_to_be_between": _of_column(columns.max_between),
    "expect_column_mean_to_be_between": _of_column(columns.mean_between),
    "expect_column_median_to_be_between": _of_column(columns.median_between),
    "expect_column_min_to_be_between": _of_column(columns.min_between),
    "expect_column_most_common_value_to_be_in_set": _of_column(
        columns.most_common_in_set, "value_set", optional=("ties_okay",)
    ),
    "expect_column_pair_values_a_to_be_greater_than_b": _of_pair(rows.pair_a_greater_than_b, "or_equal"),
    "expect_column_pair_values_to_be_equal": _of_pair(rows.pair_be_equal),
    "expect_column_proportion_of_non_null_values_to_be_between": _of_column(columns.non_null_share_between),
    "expect_column_proportion_of_unique_values_to_be_between": _of_column(columns.unique_share_between),
    "expect_column_quantile_values_to_be_between": _of_column(
        columns.quantiles_between, "quantile_ranges", optional=("allow_relative_error",)
    ),
    "expect_column_stdev_to_be_between": _of_column(columns.stdev_between),
    "expect_column_sum_to_be_between": _of_column(columns.sum_between),
    "expect_column_to_exist": ExpectationKind(columns.column_exists, ("column",), ("column_index",)),
    "expect_column_unique_value_count_to_be_between": _of_column(columns.unique_count_between),
    "expect_column_value_lengths_to_be_between": _of_rows(rows.lengths_be_between, optional=BOUNDS),
    "expect_column_value_lengths_to_equal": _of_rows(rows.lengths_equal, "value"),
    "expect_column_values_to_be_between": _of_rows(rows.be_between, optional=BOUNDS),
    "expect_column_values_to_be_dateutil_parseable": _of_rows(rows.be_dateutil_parseable),
    "expect_column_values_to_be_in_set": _of_rows(rows.be_in_set, "value_set"),
    "expect_column_values_to_be_in_type_list": _of_rows(rows.be_in_type_list, "type_list"),
    "expect_column_values_to_be_null": _of_rows(rows.be_null),
    "expect_column_values_to_be_of_type": _of_rows(rows.be_of_type, "type_"),
    "expect_column_values_to_be_unique": _of_rows(rows.be_unique),
    "expect_column_values_to_match_regex": _of_rows(rows.match_regex, "regex"),
    "expect_column_values_to_match_regex_list": _of_rows(rows.match_regex_list, "regex_list", optional=("match_on",)),
    "expect_column_values_to_match_strftime_format": _of_rows(rows.match_strftime_format, "strftime_format"),
    "expect_column_values_to_not_be_in_set": _of_rows(rows.not_be_in_set, "value_set"),
    "expect_column_values_to_not_be_null": _of_rows(rows.not_be_null),
    "expect_column_values_to_not_match_regex": _of_rows(rows.not_match_regex, "regex"),
    "expect_column_values_to_not_match_regex_list": _of_rows(rows.not_match_regex_list, "regex_list"),
    "expect_compound_columns_to_be_unique": _of_list(rows.compound_be_unique),
    "expect_multicolumn_sum_to_equal": _of_list(rows.multicolumn_sum_equal, "sum_total"),
    "expect_select_column_values_to_be_unique_within_record": _of_list(rows.unique_within_record),
    "expect_table_column_count_to_be_between": ExpectationKind(columns.column_count_between, (), BOUNDS),
    "expect_table_column_count_to_equal": ExpectationKind(columns.column_count_equals, ("value",)),
    "expect_table_columns_to_match_ordered_list": ExpectationKind(columns.columns_match_ordered_list, ("column_list",)),
    "expect_table_columns_to_match_set": ExpectationKind(columns.columns_match_set, ("column_set",), ("exact_match",)),
    "expect_table_row_count_to_be_between": ExpectationKind(columns.row_count_between, (), (*BOUNDS, *CONDITION)),
    "expect_table_row_count_to_equal": ExpectationKind(columns.row_count_equals, ("value",), CONDITION),
}


def compile_expectation(kind: str, kwargs: Mapping[str, Any], types: Mapping[str, str]) -> CompiledExpectation:
    """What an expectation asks of columns of these types.

    Args:
        types: of every column of the table, by name and in order.

    Raises:
        UnsupportedExpectation: it cannot be evaluated on them as Great Expectations would.
    """
    condition = read_condition(kwargs.get("row_condition"), kwargs.get("condition_parser"))
    expectation = GivenExpectation(kwargs=kwargs, types=types, where=condition_sql(condition, types))
    for name in _subjects(KINDS[kind], kwargs):
        if name not in types:
            raise UnsupportedExpectation(f"the column {name} is missing")
    return KINDS[kind].compile(expectation)


def refusal(kind: str, kwargs: Mapping[str, Any], types: Mapping[str, str]) -> str:
    """Why an expectation cannot be evaluated, as far as that can be told before the data are seen; empty: it can.

    Args:
        types: those that are known, by column.
    """
    try:
        _require_arguments(KINDS[kind], kwargs)
        condition = read_condition(kwargs.get("row_condition"), kwargs.get("condition_parser"))
        # Only where all types are known; else it is looked at again with the data.
        if all(name in types for name in columns_of(condition)):
            condition_sql(condition, types)
        plain = {name: value for name, value in kwargs.items() if name not in CONDITION}
        unknown = [name for name in _subjects(KINDS[kind], kwargs) if name not in types]
        reasons: list[str] = []
        # Types that are unknown are tried one by one: if any would do, the data may bring it.
        for each in REPRESENTATIVES if unknown else REPRESENTATIVES[:1]:
            try:
                compile_expectation(kind, plain, {**types, **dict.fromkeys(unknown, each)})
            except UnsupportedExpectation as error:
                reasons.append(str(error))
            else:
                return ""
        # The commonest reason, which most likely is about the arguments and not about a type.
        return max(reasons, key=reasons.count)
    except UnsupportedExpectation as error:
        return str(error)
    except UNFORESEEN as error:
        return f"its arguments are not understood ({type(error).__name__})"


def _subjects(kind: ExpectationKind, kwargs: Mapping[str, Any]) -> list[str]:
    named = [kwargs[name] for name in kind.about]
    return [each for value in named for each in (value if isinstance(value, list) else [value])]


def _require_arguments(kind: ExpectationKind, kwargs: Mapping[str, Any]) -> None:
    known = (*kind.needed, *kind.optional, *SILENT)
    unknown = [name for name in kwargs if name not in known]
    if unknown:
        raise UnsupportedExpectation(f"it has the unknown argument `{unknown[0]}`")
    for name, value in kwargs.items():
        # Suites may hold parameters, which only Great Expectations' own run replaces.
        if isinstance(value, dict) and any(str(key).startswith("$") for key in value):
            raise UnsupportedExpectation(f"`{name}` is a parameter of the suite, and no value")
    missing = [name for name in kind.needed if kwargs.get(name) is None]
    if missing:
        raise UnsupportedExpectation(f"it has no `{missing[0]}`")
    for name in ("column", "column_A", "column_B"):
        if name in kwargs and not isinstance(kwargs[name], str):
            raise UnsupportedExpectation(f"`{name}` is no text")
    for name in LISTS:
        if name in kwargs and (not isinstance(kwargs[name], list) or not kwargs[name]):
            raise UnsupportedExpectation(f"`{name}` is no list with something in it")
    if not all(isinstance(name, str) for name in kwargs.get("column_list", ())):
        raise UnsupportedExpectation("`column_list` names no columns")
    for name in FLAGS:
        if not isinstance(kwargs.get(name), bool | None):
            raise UnsupportedExpectation(f"`{name}` is neither true nor false")
    mostly = kwargs.get("mostly", 1)
    # `bool` is an `int` in Python, and `mostly: true` is most likely a mistake.
    if isinstance(mostly, bool) or not isinstance(mostly, int | float) or not 0 <= mostly <= 1:
        raise UnsupportedExpectation("`mostly` is no number from 0 to 1")
    if kwargs.get("match_on", "any") not in ("any", "all"):
        raise UnsupportedExpectation("`match_on` is neither any nor all")
