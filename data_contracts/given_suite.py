"""Great Expectations suites that somebody wrote elsewhere (JSON of version 1), held together with a contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_contracts.checks import Check
from data_contracts.contract import Contract
from data_contracts.errors import ConfigError

SEVERITIES = ("critical", "warning", "info")
SUPPORTED = (
    "expect_column_distinct_values_to_be_in_set",
    "expect_column_distinct_values_to_contain_set",
    "expect_column_distinct_values_to_equal_set",
    "expect_column_max_to_be_between",
    "expect_column_mean_to_be_between",
    "expect_column_median_to_be_between",
    "expect_column_min_to_be_between",
    "expect_column_most_common_value_to_be_in_set",
    "expect_column_pair_values_a_to_be_greater_than_b",
    "expect_column_pair_values_to_be_equal",
    "expect_column_proportion_of_non_null_values_to_be_between",
    "expect_column_proportion_of_unique_values_to_be_between",
    "expect_column_stdev_to_be_between",
    "expect_column_sum_to_be_between",
    "expect_column_to_exist",
    "expect_column_unique_value_count_to_be_between",
    "expect_column_value_lengths_to_be_between",
    "expect_column_value_lengths_to_equal",
    "expect_column_values_to_be_between",
    "expect_column_values_to_be_in_set",
    "expect_column_values_to_be_null",
    "expect_column_values_to_be_unique",
    "expect_column_values_to_match_regex",
    "expect_column_values_to_not_be_in_set",
    "expect_column_values_to_not_be_null",
    "expect_column_values_to_not_match_regex",
    "expect_compound_columns_to_be_unique",
    "expect_multicolumn_sum_to_equal",
    "expect_select_column_values_to_be_unique_within_record",
    "expect_table_column_count_to_be_between",
    "expect_table_column_count_to_equal",
    "expect_table_columns_to_match_set",
    "expect_table_row_count_to_be_between",
    "expect_table_row_count_to_equal",
)
"""Expectation types whose verdicts on DuckDB are proved by tests; no other is taken."""


def read_suite(path: Path, contract: Contract) -> tuple[tuple[Check, ...], bytes]:
    """The expectations of the suite that a contract names, and the suite's exact text; nothing, if it names none.

    Args:
        path: the contract's file.

    Raises:
        ConfigError: missing, not a suite, or of expectations that cannot be judged here.
    """
    if contract.suite is None:
        return (), b""
    where = path.parent / contract.suite
    try:
        text = where.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the suite cannot be read ({error.strerror}).", where=str(where), advice=f"Check `suite:` in {path}."
        ) from error
    return parse_suite(text, where=str(where)), text


def parse_suite(data: bytes, *, where: str) -> tuple[Check, ...]:
    """The suite's expectations as checks, in its order.

    Raises:
        ConfigError: not a suite, or expectations that cannot be judged here: all of them, by type.
    """
    try:
        value = json.loads(data)
        expectations = value["expectations"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "not a Great Expectations suite (JSON with `expectations`).", where=where, advice="Check `suite:`."
        ) from error
    problems = list(_problems(expectations))
    if problems:
        raise ConfigError(
            f"{'; '.join(problems)}.", where=where, advice="Take them out of the suite, or say them in the contract."
        )
    return tuple(_check(number, each) for number, each in enumerate(expectations, start=1))


def _problems(expectations: Any) -> Iterator[str]:
    if not isinstance(expectations, list):
        yield "`expectations` is no list"
        return
    for number, each in enumerate(expectations, start=1):
        kind = each.get("type", each.get("expectation_type")) if isinstance(each, dict) else None
        if not isinstance(kind, str):
            yield f"expectation {number} has no type"
        elif kind not in SUPPORTED:
            yield f"expectation {number} is of the unknown type `{kind}`"
        elif not isinstance(each.get("kwargs", {}), dict):
            yield f"expectation {number} (`{kind}`) has no mapping of kwargs"
        elif each.get("severity", "critical") not in SEVERITIES:
            yield f"expectation {number} (`{kind}`) has an unknown severity"


def _check(number: int, given: dict[str, Any]) -> Check:
    kind = given.get("type") or given["expectation_type"]
    kwargs = {name: value for name, value in given.get("kwargs", {}).items() if name != "batch_id"}
    about = kwargs.get("column") or ", ".join(kwargs.get("column_list", ()))
    words = kind.removeprefix("expect_").replace("_", " ")
    notes = (given.get("meta") or {}).get("notes")
    return Check(
        rule_id=f"suite.{number}",
        description=notes if isinstance(notes, str) else f"{about}: {words}" if about else words,
        severity=given.get("severity", "critical"),
        kind="suite",
        column=str(kwargs.get("column", "")),
        arguments={"type": kind, "kwargs": kwargs},
    )
