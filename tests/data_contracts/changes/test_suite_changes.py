"""A suite is part of the promise: what it asks more of is breaking, whichever order it is written in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.data_contracts.changes.compatibility import Suites, breaks_promise, compare
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.suites.parsing import parse_suite

BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"
NOT_IN_SET = "expect_column_values_to_not_be_in_set"
NOT_NULL = "expect_column_values_to_not_be_null"
TYPES, OF_TYPE = "expect_column_values_to_be_in_type_list", "expect_column_values_to_be_of_type"
LIST, NONE_OF = "expect_column_values_to_match_regex_list", "expect_column_values_to_not_match_regex_list"
COMMON, DATES = "expect_column_most_common_value_to_be_in_set", "expect_column_values_to_match_strftime_format"
MAY, JUNE = "2026-05-01", "2026-06-01T00:00:00"


def expectation(kind: str, severity: str = "critical", **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": {"column": "x", **kwargs}, "severity": severity}


def quantiles(bounds: list[float | None], quantile: float = 0.5) -> dict[str, Any]:
    ranges = {"quantiles": [quantile], "value_ranges": [bounds]}
    return expectation("expect_column_quantile_values_to_be_between", quantile_ranges=ranges)


def suite(*expectations: dict[str, Any]) -> tuple[Check, ...]:
    return parse_suite(json.dumps({"expectations": expectations}).encode(), where="suite.json")


def contract(version: str = "1.0.0", file: str = "suite.json"):
    text = f"name: x\nversion: {version}\ncolumns: {{x: {{type: int64}}}}\nsuite: {file}\n"
    return parse_contract(text, where="x.yaml")


RANGE = {"min_value": 0, "max_value": 10}


@pytest.mark.parametrize(
    ("old", "new", "effect", "where"),
    [
        (expectation(BETWEEN, **RANGE), expectation(BETWEEN, min_value=1, max_value=10), "breaking", ".min_value"),
        (expectation(BETWEEN, **RANGE), expectation(BETWEEN, min_value=-1, max_value=10), "widening", ".min_value"),
        (expectation(BETWEEN, **RANGE), expectation(BETWEEN, min_value=0, max_value=9), "breaking", ".max_value"),
        (expectation(BETWEEN, **RANGE), expectation(BETWEEN, min_value=0, max_value=11), "widening", ".max_value"),
        (expectation(BETWEEN, **RANGE), expectation(BETWEEN, min_value=0), "widening", ".max_value"),
        (expectation(BETWEEN, min_value=0), expectation(BETWEEN, **RANGE), "breaking", ".max_value"),
        (expectation(BETWEEN, **RANGE), expectation(BETWEEN, **RANGE, strict_min=True), "breaking", ".strict_min"),
        (expectation(NOT_NULL), expectation(NOT_NULL, mostly=0.9), "widening", ".mostly"),
        (expectation(NOT_NULL, mostly=0.9), expectation(NOT_NULL), "breaking", ".mostly"),
        (expectation(IN_SET, value_set=[1]), expectation(IN_SET, value_set=[2, 1]), "widening", ".value_set"),
        (expectation(IN_SET, value_set=[1, 2]), expectation(IN_SET, value_set=[1]), "breaking", ".value_set"),
        (expectation(NOT_IN_SET, value_set=[1]), expectation(NOT_IN_SET, value_set=[1, 2]), "breaking", ".value_set"),
        (expectation(NOT_IN_SET, value_set=[1, 2]), expectation(NOT_IN_SET, value_set=[1]), "widening", ".value_set"),
        (expectation(NOT_NULL, "warning"), expectation(NOT_NULL), "breaking", ".severity"),
        (expectation(NOT_NULL), expectation(NOT_NULL, "info"), "widening", ".severity"),
        (expectation(NOT_NULL, "info", mostly=0.5), expectation(NOT_NULL, "info"), "neutral", ".mostly"),
        (expectation(NOT_NULL), expectation(NOT_NULL, result_format="BASIC"), "neutral", ".result_format"),
        (expectation(BETWEEN, min_value=MAY), expectation(BETWEEN, min_value=JUNE), "breaking", ".min_value"),
        (expectation(BETWEEN, min_value=JUNE), expectation(BETWEEN, min_value=MAY), "widening", ".min_value"),
        (expectation(BETWEEN, max_value=JUNE), expectation(BETWEEN, max_value=MAY), "breaking", ".max_value"),
        (expectation(BETWEEN, min_value="10"), expectation(BETWEEN, min_value=9), "widening", ".min_value"),
        (expectation(BETWEEN, min_value=9), expectation(BETWEEN, min_value="10"), "breaking", ".min_value"),
        (expectation(BETWEEN, min_value="10"), expectation(BETWEEN, min_value=10.0), "neutral", ".min_value"),
        (expectation(TYPES, type_list=["int"]), expectation(TYPES, type_list=["str", "int"]), "widening", ".type_list"),
        (expectation(TYPES, type_list=["int", "str"]), expectation(TYPES, type_list=["int"]), "breaking", ".type_list"),
        (expectation(OF_TYPE, type_="int64"), expectation(OF_TYPE, type_="BIGINT"), "breaking", ".type_"),
        (expectation(LIST, regex_list=["a"]), expectation(LIST, regex_list=["a", "b"]), "widening", ".regex_list"),
        (
            expectation(LIST, regex_list=["a"], match_on="all"),
            expectation(LIST, regex_list=["a", "b"], match_on="all"),
            "breaking",
            ".regex_list",
        ),
        (expectation(LIST, regex_list=["a", "b"]), expectation(LIST, regex_list=["a"]), "breaking", ".regex_list"),
        (
            expectation(NONE_OF, regex_list=["a", "b"]),
            expectation(NONE_OF, regex_list=["a"]),
            "widening",
            ".regex_list",
        ),
        (
            expectation(NONE_OF, regex_list=["a"]),
            expectation(NONE_OF, regex_list=["a", "b"]),
            "breaking",
            ".regex_list",
        ),
        (
            expectation(COMMON, value_set=[1]),
            expectation(COMMON, value_set=[1], ties_okay=True),
            "widening",
            ".ties_okay",
        ),
        (expectation(COMMON, value_set=[1]), expectation(COMMON, value_set=[1, 2]), "breaking", ".value_set"),
        (quantiles([1, 2]), quantiles([0, 3]), "widening", ".quantile_ranges"),
        (quantiles([1, 2]), quantiles([None, 2]), "widening", ".quantile_ranges"),
        (quantiles([0, 2]), quantiles([1, 2]), "breaking", ".quantile_ranges"),
        (quantiles([None, 2]), quantiles([1, 2]), "breaking", ".quantile_ranges"),
        (quantiles([1, 2], 0.5), quantiles([0, 3], 0.6), "breaking", ".quantile_ranges"),
        (
            expectation(DATES, strftime_format="%Y"),
            expectation(DATES, strftime_format="%y"),
            "breaking",
            ".strftime_format",
        ),
    ],
)
def test_one_change_of_an_expectation_has_one_effect(old: Any, new: Any, effect: str, where: str) -> None:
    suites = Suites(suite(old), suite(new))
    (change,) = compare(contract(), contract(), suites)
    assert (change.effect, change.where) == (effect, f"suite.1{where}")
    assert bool(breaks_promise(contract(), contract("1.1.0"), suites)) is (effect == "breaking")
    assert not breaks_promise(contract(), contract("2.0.0"), suites)


@pytest.mark.parametrize(
    ("severity", "come", "gone"), [("critical", "breaking", "widening"), ("info", *["neutral"] * 2)]
)
def test_an_expectation_that_is_new_or_no_longer_asked(severity: str, come: str, gone: str) -> None:
    one, two = expectation(NOT_NULL), expectation(BETWEEN, severity, **RANGE)
    (change,) = compare(contract(), contract(), Suites(suite(one), suite(one, two)))
    assert (change.effect, change.where) == (come, "suite.2") and "is new" in change.sentence
    (change,) = compare(contract(), contract(), Suites(suite(two, one), suite(one)))
    assert (change.effect, change.where) == (gone, "suite.1") and "no longer asked" in change.sentence


def test_order_and_the_file_s_name_are_no_change_and_columns_are_not_taken_for_each_other() -> None:
    one, two = expectation(BETWEEN, **RANGE), expectation(BETWEEN, min_value=5)
    moved = Suites(suite(one, two), suite(two, one))
    assert compare(contract(), contract(file="other.json"), moved) == ()
    other = {**one, "kwargs": {**one["kwargs"], "column": "y"}}
    effects = [change.effect for change in compare(contract(), contract(), Suites(suite(one), suite(other)))]
    assert effects == ["widening", "breaking"]


def test_of_a_suite_that_nobody_can_tell_another_name_may_mean_anything() -> None:
    assert compare(contract(), contract()) == ()
    (change,) = compare(contract(), contract(file="other.json"))
    assert (change.effect, change.where) == ("breaking", "suite")
