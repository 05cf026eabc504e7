"""Every expectation that a given suite may hold is judged rightly on DuckDB, and no other is taken."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine.validation import ValidationContext, validate
from headway.data_contracts.rules.contract import Contract, parse_contract
from headway.data_contracts.store.documents import ContractReceipt, Snapshot, StoredFile
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.suites import python_texts
from headway.data_contracts.suites.kinds import KINDS
from headway.data_contracts.suites.parsing import SUPPORTED, parse_suite, read_suite
from tests.data_contracts.local_rows import of_parquet
from tests.data_contracts.suites.pandas_reference import answered_by_us

CONTRACT = parse_contract(
    """
name: given
version: 1.0.0
extra_columns: true
columns:
  number: {type: int64}
""",
    where="given.yaml",
)
COLUMNS = {
    "number": [1, 2, 3, 4],
    "twice": [2, 4, 6, 8],
    "same": [1, 2, 3, 4],
    "repeated": [1, 1, 2, 2],
    "text": ["ab", "cd", "ab", "ef"],
    "empty": pa.array([None] * 4, pa.int64()),
    "gaps": [1.0, None, 3.0, 4.0],
    "share": [0.0, 0.5, 1.0, math.nan],
    "ten": [9, 8, 7, 6],
    "constant": [1, 1, 1, 1],
    "day": ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30"],
}
NAMES = list(COLUMNS)
PAIR = {"column_A": "number", "column_B": "same"}
BETWEEN = {"min_value": 1, "max_value": 4}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "expect_column_distinct_values_to_be_in_set": (
        {"column": "text", "value_set": ["ab", "cd", "ef"]},
        {"column": "text", "value_set": ["ab", "cd"]},
    ),
    "expect_column_distinct_values_to_contain_set": (
        {"column": "text", "value_set": ["ab"]},
        {"column": "text", "value_set": ["xy"]},
    ),
    "expect_column_distinct_values_to_equal_set": (
        {"column": "text", "value_set": ["ab", "cd", "ef"]},
        {"column": "text", "value_set": ["ab", "cd", "ef", "gh"]},
    ),
    "expect_column_max_to_be_between": ({"column": "number", **BETWEEN}, {"column": "twice", **BETWEEN}),
    "expect_column_mean_to_be_between": ({"column": "number", **BETWEEN}, {"column": "share", **BETWEEN}),
    "expect_column_median_to_be_between": ({"column": "number", **BETWEEN}, {"column": "twice", **BETWEEN}),
    "expect_column_min_to_be_between": ({"column": "number", **BETWEEN}, {"column": "ten", **BETWEEN}),
    "expect_column_most_common_value_to_be_in_set": (
        {"column": "text", "value_set": ["ab"]},
        {"column": "text", "value_set": ["cd"]},
    ),
    "expect_column_pair_values_a_to_be_greater_than_b": (
        {"column_A": "twice", "column_B": "number"},
        {"column_A": "number", "column_B": "twice"},
    ),
    "expect_column_pair_values_to_be_equal": (PAIR, {"column_A": "number", "column_B": "twice"}),
    "expect_column_proportion_of_non_null_values_to_be_between": (
        {"column": "gaps", "min_value": 0.75},
        {"column": "gaps", "min_value": 0.8},
    ),
    "expect_column_proportion_of_unique_values_to_be_between": (
        {"column": "repeated", "max_value": 0.5},
        {"column": "number", "max_value": 0.5},
    ),
    "expect_column_quantile_values_to_be_between": (
        {
            "column": "number",
            "quantile_ranges": {"quantiles": [0, 0.5, 1], "value_ranges": [[1, 1], [2, 3], [4, None]]},
        },
        {
            "column": "number",
            "quantile_ranges": {"quantiles": [0, 0.5, 1], "value_ranges": [[1, 1], [2, 3], [5, None]]},
        },
    ),
    "expect_column_stdev_to_be_between": (
        {"column": "number", "min_value": 1.29, "max_value": 1.3},
        {"column": "twice", "min_value": 1.29, "max_value": 1.3},
    ),
    "expect_column_sum_to_be_between": (
        {"column": "number", "min_value": 10, "max_value": 10},
        {"column": "twice", "min_value": 10, "max_value": 10},
    ),
    "expect_column_to_exist": ({"column": "number"}, {"column": "nowhere"}),
    "expect_column_unique_value_count_to_be_between": (
        {"column": "repeated", "max_value": 2},
        {"column": "number", "max_value": 2},
    ),
    "expect_column_value_lengths_to_be_between": (
        {"column": "text", "min_value": 2},
        {"column": "text", "min_value": 3},
    ),
    "expect_column_value_lengths_to_equal": ({"column": "text", "value": 2}, {"column": "text", "value": 3}),
    "expect_column_values_to_be_between": ({"column": "number", **BETWEEN}, {"column": "twice", **BETWEEN}),
    "expect_column_values_to_be_dateutil_parseable": ({"column": "day"}, {"column": "text"}),
    "expect_column_values_to_be_in_type_list": (
        {"column": "number", "type_list": ["INTEGER", "BIGINT", "LongType"]},
        {"column": "number", "type_list": ["INTEGER", "StringType"]},
    ),
    "expect_column_values_to_be_of_type": (
        {"column": "text", "type_": "VARCHAR"},
        {"column": "text", "type_": "DoubleType"},
    ),
    "expect_column_values_to_be_in_set": (
        {"column": "number", "value_set": [1, 2, 3, 4]},
        {"column": "number", "value_set": [1, 2, 3]},
    ),
    "expect_column_values_to_be_null": ({"column": "empty"}, {"column": "gaps"}),
    "expect_column_values_to_be_unique": ({"column": "number"}, {"column": "repeated"}),
    "expect_column_values_to_match_regex": ({"column": "text", "regex": "b|c|f"}, {"column": "text", "regex": "^a"}),
    "expect_column_values_to_match_regex_list": (
        {"column": "text", "regex_list": ["^a", "^c", "^e"]},
        {"column": "text", "regex_list": ["^a", "b$"], "match_on": "all"},
    ),
    "expect_column_values_to_match_strftime_format": (
        {"column": "day", "strftime_format": "%Y-%m-%d"},
        {"column": "day", "strftime_format": "%d.%m.%Y"},
    ),
    "expect_column_values_to_not_match_regex_list": (
        {"column": "text", "regex_list": ["x", "^b"]},
        {"column": "text", "regex_list": ["x", "^a"]},
    ),
    "expect_column_values_to_not_be_in_set": (
        {"column": "number", "value_set": [5]},
        {"column": "number", "value_set": [4]},
    ),
    "expect_column_values_to_not_be_null": ({"column": "number"}, {"column": "gaps"}),
    "expect_column_values_to_not_match_regex": ({"column": "text", "regex": "x"}, {"column": "text", "regex": "^a"}),
    "expect_compound_columns_to_be_unique": (
        {"column_list": ["repeated", "number"]},
        {"column_list": ["repeated", "constant"]},
    ),
    "expect_multicolumn_sum_to_equal": (
        {"column_list": ["number", "ten"], "sum_total": 10},
        {"column_list": ["number", "same"], "sum_total": 10},
    ),
    "expect_select_column_values_to_be_unique_within_record": (
        {"column_list": ["number", "twice"]},
        {"column_list": ["number", "same"]},
    ),
    "expect_table_column_count_to_be_between": ({"min_value": 11, "max_value": 11}, {"max_value": 10}),
    "expect_table_column_count_to_equal": ({"value": 11}, {"value": 10}),
    "expect_table_columns_to_match_ordered_list": ({"column_list": NAMES}, {"column_list": NAMES[::-1]}),
    "expect_table_columns_to_match_set": ({"column_set": NAMES}, {"column_set": NAMES[1:]}),
    "expect_table_row_count_to_be_between": ({"min_value": 4}, {"min_value": 5}),
    "expect_table_row_count_to_equal": ({"value": 4}, {"value": 5}),
}


def suite_bytes(*expectations: dict[str, Any]) -> bytes:
    return json.dumps({"name": "given", "expectations": list(expectations), "meta": {}}).encode()


def judge(
    folder: Path, *expectations: dict[str, Any], columns: dict[str, Any] = COLUMNS, contract: Contract = CONTRACT
) -> ContractReceipt:
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=2)
    rows = of_parquet(folder / "rows.parquet")
    snapshot = Snapshot(format="parquet", columns=dict(rows.columns), num_rows=4, files=rows.files)
    stored = StoredFile(path="contract.yaml", size_bytes=1, sha256="ab" * 32)
    given = ValidationContext(suite=parse_suite(suite_bytes(*expectations), where="given.json"))
    return validate(
        contract, stored, snapshot, rows, folder, quarantine_file=folder / "left-out.parquet", surroundings=given
    )


def test_every_type_that_is_taken_has_a_case() -> None:
    assert sorted(CASES) == sorted(SUPPORTED)


@pytest.mark.process
def test_every_type_passes_what_is_right_and_fails_what_is_wrong(tmp_path: Path) -> None:
    right = [{"type": name, "kwargs": good} for name, (good, _) in CASES.items()]
    wrong = [{"type": name, "kwargs": bad} for name, (_, bad) in CASES.items()]
    receipt = judge(tmp_path, *right, *wrong)
    found = {verdict.rule_id: verdict for verdict in receipt.verdicts}
    passed = [found[f"suite.{number}"] for number in range(1, len(CASES) + 1)]
    failed = [found[f"suite.{number}"] for number in range(len(CASES) + 1, 2 * len(CASES) + 1)]
    assert [each.description for each in passed if not each.passed] == []
    assert [each.description for each in failed if each.passed] == []
    raised = [each.description for each in (*passed, *failed) if "could not" in each.observed]
    assert raised == []


@pytest.mark.parametrize(
    ("kwargs", "passed"),
    [
        ({"column": "share", "max_value": 1}, False),
        ({"column": "share", "min_value": 0}, False),
        ({"column": "gaps", "min_value": 3, "mostly": 0.6}, True),
        ({"column": "gaps", "min_value": 3, "mostly": 0.7}, False),
        (
            {
                "column": "twice",
                "min_value": 6,
                "row_condition": 'col("number") > 2',
                "condition_parser": "great_expectations",
            },
            True,
        ),
    ],
)
def test_nan_shares_and_conditions_are_understood(tmp_path: Path, kwargs: dict[str, Any], passed: bool) -> None:
    receipt = judge(tmp_path, {"type": "expect_column_values_to_be_between", "kwargs": kwargs})
    assert receipt.verdicts[-1].passed is passed
    assert "could not" not in receipt.verdicts[-1].observed


@pytest.mark.parametrize("meta", [None, {}, {"notes": "why"}, {"notes": ["why"]}, [1], "text", 1.5, True])
def test_whatever_a_suite_notes_is_no_matter_of_what_it_asks(meta: Any) -> None:
    given = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "number"}, "meta": meta}
    (check,) = parse_suite(suite_bytes(given), where="given.json")
    assert check.description == ("why" if meta == {"notes": "why"} else "number: column values to not be null")


@pytest.mark.process
def test_a_suite_that_python_has_to_answer_is_judged_on_the_rows_that_quarantine_leaves(tmp_path: Path) -> None:
    rule = "rules: [{id: few, column: number, max: 3, action: quarantine}]\nquarantine_limit_ratio: 0.5\n"
    text = "name: given\nversion: 1.0.0\nextra_columns: true\ncolumns: {number: {type: int64}}\n" + rule
    asked = {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "text", "regex": r"^[a-d](?!f)\w$"}}
    receipt = judge(tmp_path, asked, contract=parse_contract(text, where="given.yaml"))
    assert receipt.num_quarantined == 1
    assert receipt.verdicts[-1].observed == "all 3 rows hold"


def test_a_warning_of_the_suite_refuses_nothing(tmp_path: Path) -> None:
    receipt = judge(
        tmp_path, {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 9}, "severity": "warning"}
    )
    assert receipt.passed
    assert not receipt.verdicts[-1].passed


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{", "not a Great Expectations suite"),
        (b"[]", "not a Great Expectations suite"),
        (suite_bytes({"type": "expect_column_kl_divergence_to_be_less_than"}), "unknown type `expect_column_kl_div"),
        (b'{"expectations":' + b"[" * 100 + b"]" * 100 + b"}", "not a Great Expectations suite"),
        (suite_bytes({"kwargs": {}}), "expectation 1 has no type"),
        (suite_bytes({"type": SUPPORTED[0], "kwargs": []}), "has no mapping of kwargs"),
        (suite_bytes({"type": SUPPORTED[0], "severity": "fatal"}), "unknown severity"),
    ],
)
def test_what_cannot_be_judged_is_refused_by_name(data: bytes, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_suite(data, where="given.json")


def test_a_pipe_a_device_and_what_no_suite_is_as_long_as_keep_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "hole").open("wb") as hole:
        hole.truncate(1 << 40)
    for place in ("pipe", "/dev/zero", "hole"):
        contract = CONTRACT.model_copy(update={"suite": place})
        with pytest.raises(ConfigError, match="the suite cannot be read"):
            read_suite(tmp_path / "given.contract.yaml", contract)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown argument `minimum`": ("expect_column_max_to_be_between", {"column": "number", "minimum": 1}),
    "has no `value_set`": ("expect_column_values_to_be_in_set", {"column": "text"}),
    "is a parameter of the suite": (
        "expect_column_max_to_be_between",
        {"column": "number", "max_value": {"$PARAMETER": "most"}},
    ),
    "asks nothing": ("expect_column_values_to_be_between", {"column": "number"}),
    "min_value 5 is above max_value 4": (
        "expect_column_values_to_be_between",
        {"column": "number", "min_value": 5, "max_value": 4},
    ),
    "`mostly` is no number from 0 to 1": ("expect_column_values_to_not_be_null", {"column": "number", "mostly": 50}),
    "'a' is no number, and the column is int64": (
        "expect_column_values_to_be_between",
        {"column": "number", "min_value": "a"},
    ),
    "goes with texts, not with double": ("expect_column_values_to_match_regex", {"column": "share", "regex": "1"}),
    "no regular expression of Python": ("expect_column_values_to_match_regex", {"column": "anything", "regex": "a("}),
    "[:alpha:] is a class to RE2 and none to Python": (
        "expect_column_values_to_match_regex",
        {"column": "anything", "regex": "^[[:alpha:]_]+$"},
    ),
    "a length is a whole number, and 1.5 is none": (
        "expect_column_value_lengths_to_be_between",
        {"column": "anything", "min_value": 1.5, "max_value": 3},
    ),
    "a length is a whole number, and 2.5 is none": (
        "expect_column_value_lengths_to_equal",
        {"column": "anything", "value": 2.5},
    ),
    "a count is a whole number, and 0.5 is none": (
        "expect_column_unique_value_count_to_be_between",
        {"column": "number", "max_value": 0.5, "strict_max": True},
    ),
    "a count is a whole number, and 3.5 is none": ("expect_table_row_count_to_be_between", {"min_value": 3.5}),
    "a count is a whole number, and 4.5 is none": ("expect_table_row_count_to_equal", {"value": 4.5}),
    "a count is a whole number, and 5.5 is none": ("expect_table_column_count_to_equal", {"value": 5.5}),
    "'%Q-%d' is no format of dates": (
        "expect_column_values_to_match_strftime_format",
        {"column": "anything", "strftime_format": "%Q-%d"},
    ),
    "'VARCHAR(10)' is no name of a type": (
        "expect_column_values_to_be_of_type",
        {"column": "anything", "type_": "VARCHAR(10)"},
    ),
    "has no offset from UTC": (
        "expect_column_values_to_be_between",
        {"column": "zoned", "min_value": "2026-01-31T00:00:00"},
    ),
    "condition_parser 'spark' is not read": (
        "expect_column_values_to_not_be_null",
        {"column": "number", "row_condition": "number > 2", "condition_parser": "spark"},
    ),
    "'number + 1', which is not read": (
        "expect_column_values_to_not_be_null",
        {"column": "number", "row_condition": "(number + 1)", "condition_parser": "pandas"},
    ),
    "is no comparison such as": (
        "expect_column_values_to_not_be_null",
        {
            "column": "number",
            "row_condition": 'col("number") > 2 and col("text") == "ab"',
            "condition_parser": "great_expectations",
        },
    ),
    "not as many value_ranges": (
        "expect_column_quantile_values_to_be_between",
        {"column": "number", "quantile_ranges": {"quantiles": [0.5], "value_ranges": []}},
    ),
    "ignore_row_if is 'sometimes'": (
        "expect_column_pair_values_to_be_equal",
        {"column_A": "number", "column_B": "anything", "ignore_row_if": "sometimes"},
    ),
}
TYPES = {"number": "int64", "text": "string", "share": "double", "zoned": "timestamp[us, tz=UTC]"}


@pytest.mark.parametrize(("expected", "kind", "kwargs"), [(message, *asked) for message, asked in REFUSED.items()])
def test_what_great_expectations_would_judge_otherwise_is_refused_when_the_suite_is_read(
    expected: str, kind: str, kwargs: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_suite(suite_bytes({"type": kind, "kwargs": kwargs}), where="given.json", types=TYPES)
    assert expected in str(refused.value)
    assert f"expectation 1 (`{kind}`)" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "kwargs", "observed"),
    [
        ("expect_column_values_to_be_between", {"column": "nowhere", "min_value": 1}, "the column nowhere is missing"),
        ("expect_column_values_to_match_regex", {"column": "share", "regex": "1"}, "goes with texts, not with double"),
        ("expect_column_mean_to_be_between", {"column": "text", "min_value": 1}, "goes with numbers, not with string"),
    ],
)
def test_what_only_the_data_show_to_be_unsuitable_has_failed_with_the_reason(
    tmp_path: Path, kind: str, kwargs: dict[str, Any], observed: str
) -> None:
    receipt = judge(tmp_path, {"type": kind, "kwargs": kwargs})
    assert not receipt.passed
    assert observed in receipt.verdicts[-1].observed


@pytest.mark.process
def test_a_regular_expression_that_never_ends_is_given_up_by_its_name_and_the_others_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_texts, "SILENCE_S", 3.0)
    slow, quick = "(?!b)(a+)+$", "(?!b)[a-z]"
    columns = {"number": [1, 2, 3, 4], "text": ["a" * 60 + "!", "ä", None, "ab"], "other": ["ab"] * 4}
    expectations = [
        {"type": "expect_column_values_to_match_regex", "kwargs": {"column": column, "regex": regex, "mostly": 0.5}}
        for column, regex in (("text", slow), ("text", quick), ("other", "(?!b)(a+)+"), ("text", slow))
    ]
    begun_s = time.monotonic()
    answers = answered_by_us(pa.table(columns), expectations, tmp_path / "judged")
    assert [answer and answer.passed for answer in answers] == [None, True, True, None]
    assert time.monotonic() - begun_s < 12
    asked = {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "text", "regex": slow}}
    receipt = judge(tmp_path, asked, columns=columns)
    assert not receipt.passed
    message = receipt.verdicts[-1].observed
    assert f"the regular expression {slow!r} was given up after 3 s over some texts of the column text" in message


ODD = (
    None,
    [],
    {},
    "",
    "x",
    "1",
    "\ud800",
    -1,
    0,
    1.5,
    1e400,
    -1e400,
    math.nan,
    10**400,
    True,
    [10**400],
    ["\ud800"],
    [None],
    [[]],
    [{}],
    {"a": 1},
)


@pytest.mark.process
@pytest.mark.parametrize("kind", SUPPORTED)
def test_whatever_an_argument_is_the_expectation_is_taken_or_refused(kind: str, tmp_path: Path) -> None:
    good, _ = CASES[kind]
    names = dict.fromkeys([*good, *KINDS[kind].optional])
    mutated = [{**good, name: value} for name in names for value in ODD]
    mutated += [
        {**good, "quantile_ranges": {**good.get("quantile_ranges", {}), name: value}}
        for name in ("quantiles", "value_ranges")
        for value in (*ODD, [math.nan], [10**400], [[math.nan, 1]], [[10**400, None]], [["a", "b"]])
        if kind == "expect_column_quantile_values_to_be_between"
    ]
    answers = answered_by_us(pa.table(COLUMNS), [{"type": kind, "kwargs": each} for each in mutated], tmp_path / "rows")
    assert len(answers) == len(mutated)


def test_how_many_rows_break_an_expectation_is_said(tmp_path: Path) -> None:
    asked = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "twice", "max_value": 5}}
    assert judge(tmp_path, asked).verdicts[-1].observed == "2 of 4 rows break it"
