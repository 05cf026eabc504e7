"""A contract as a Great Expectations suite, and the metrics by which its expectations are evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.errors import ConfigError

STATISTICS = {
    "mean": "ExpectColumnMeanToBeBetween",
    "median": "ExpectColumnMedianToBeBetween",
    "stdev": "ExpectColumnStdevToBeBetween",
    "sum": "ExpectColumnSumToBeBetween",
    "min": "ExpectColumnMinToBeBetween",
    "max": "ExpectColumnMaxToBeBetween",
}


def expectation_checks(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The checks that Great Expectations can evaluate on DuckDB."""
    return tuple(check for check in checks if check.has_expectation)


def build_suite(name: str, checks: Iterable[Check]) -> Any:
    """The `ExpectationSuite` of these checks; `meta.rule_id` names each."""
    import great_expectations as gx

    expectations = [_expectation(check) for check in checks]
    return gx.ExpectationSuite(name=name, expectations=expectations)


def _expectation(check: Check) -> Any:
    import great_expectations.expectations as gxe

    class_name, arguments = expectation_of(check)
    common = {"meta": {"rule_id": check.rule_id}, "severity": check.severity}
    # Great Expectations checks arguments when it is constructed, with messages that quote them.
    try:
        return getattr(gxe, class_name)(**arguments, **common)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"Great Expectations refuses the arguments of {class_name}.",
            where=check.rule_id,
            advice=f"Given: {', '.join(sorted(arguments))}.",
        ) from error


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
    row_level = {"column": check.column, "mostly": _mostly(check)}
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


def _mostly(check: Check) -> float:
    # A little less, or 7 of 10 were too many of 0.7: 1 - 0.7 is 0.30000000000000004. Our own count decides exactly.
    return max(0.0, 1 - check.max_failed_ratio - 1e-9) if check.max_failed_ratio else 1.0


Metric = tuple[str, str, bytes]
"""Name, column and arguments of a metric that Great Expectations asks its engine for."""
METRICS = {
    "not_null": "column_values.nonnull",
    "between": "column_values.between",
    "one_of": "column_values.in_set",
    "pattern": "column_values.match_regex",
    "length": "column_values.value_length.between",
}


def metric_of(check: Check) -> Metric | None:
    """The metric behind a row-level check's expectation: how many rows break it."""
    # Kinds without a metric, or without an expectation, are answered elsewhere.
    if check.kind not in METRICS or not check.has_expectation:
        return None
    _, arguments = expectation_of(check)
    given = {name: value for name, value in arguments.items() if name not in ("column", "mostly")}
    if check.kind in ("between", "length"):
        given = _strictness(given)
    return f"{METRICS[check.kind]}.unexpected_count", check.column, _arguments(given)


def metric_named(configuration: Any) -> Metric:
    domain, given = configuration.metric_domain_kwargs, dict(configuration.metric_value_kwargs)
    return configuration.metric_name, domain.get("column") or "", _arguments(given)


def _strictness(bounds: dict[str, Any]) -> dict[str, Any]:
    return {**bounds, "strict_min": False, "strict_max": False}


def _arguments(given: dict[str, Any]) -> bytes:
    """Bounds as doubles, as Great Expectations holds them."""
    spelled = {
        name: float(value) if name in ("min_value", "max_value") and value is not None else value
        for name, value in given.items()
    }
    # By their spelling: 1 and 1.0 are one number in JSON and two arguments here.
    return canonical_json({name: repr(value) for name, value in spelled.items()})
