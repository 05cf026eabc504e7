"""A contract as a Great Expectations suite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from data_contracts.checks import EXACT, Check

STATISTICS = {
    "mean": "ExpectColumnMeanToBeBetween",
    "median": "ExpectColumnMedianToBeBetween",
    "stdev": "ExpectColumnStdevToBeBetween",
    "sum": "ExpectColumnSumToBeBetween",
    "min": "ExpectColumnMinToBeBetween",
    "max": "ExpectColumnMaxToBeBetween",
}


def expectation_checks(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The checks that Great Expectations can judge on DuckDB."""
    return tuple(check for check in checks if check.kind not in EXACT)


def build_suite(name: str, checks: Iterable[Check]) -> Any:
    """The `ExpectationSuite` of these checks; `meta.rule_id` names each."""
    import great_expectations as gx

    expectations = [_expectation(check) for check in checks]
    return gx.ExpectationSuite(name=name, expectations=expectations)


def _expectation(check: Check) -> Any:
    import great_expectations.expectations as gxe

    class_name, arguments = expectation_of(check)
    common = {"meta": {"rule_id": check.rule_id}, "severity": check.severity}
    return getattr(gxe, class_name)(**arguments, **common)


def expectation_of(check: Check) -> tuple[str, dict[str, Any]]:
    """Class name and arguments of the expectation that says what a check says."""
    given = check.arguments
    bounds = {"min_value": given.get("min"), "max_value": given.get("max")}
    if check.kind == "columns":
        return "ExpectTableColumnsToMatchSet", {"column_set": list(given["names"]), "exact_match": given["exactly"]}
    if check.kind == "num_rows":
        return "ExpectTableRowCountToBeBetween", bounds
    if check.kind == "statistic":
        return STATISTICS[given["statistic"]], {"column": check.column, **bounds}
    row_level = {"column": check.column, "mostly": 1 - check.max_failed_ratio}
    if check.kind == "not_null":
        return "ExpectColumnValuesToNotBeNull", row_level
    if check.kind == "between":
        return "ExpectColumnValuesToBeBetween", row_level | bounds
    if check.kind == "one_of":
        return "ExpectColumnValuesToBeInSet", row_level | {"value_set": list(given["values"])}
    if check.kind == "pattern":
        # Great Expectations searches; a contract's pattern is for the whole text.
        return "ExpectColumnValuesToMatchRegex", row_level | {"regex": rf"\A(?:{given['pattern']})\z"}
    if check.kind == "length":
        return "ExpectColumnValueLengthsToBeBetween", row_level | bounds
    raise AssertionError(check.kind)
