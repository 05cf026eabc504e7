"""A given suite is judged on DuckDB as Great Expectations judges it on pandas."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.data_contracts.suites.pandas_reference import answered_by_us, judged_by_pandas, judged_by_us

pytestmark = pytest.mark.long

DAY = dt.datetime(2026, 1, 31)
UTC = dt.UTC
TABLE = pa.table(
    {
        "number": pa.array([1, 2, 3, 4, 5, 6], pa.int64()),
        "small": pa.array([1, 1, 2, 2, 3, 3], pa.int32()),
        "big": pa.array([2**53, 2**53 + 1, 2**53 + 2, -(2**53), 0, 1], pa.int64()),
        "gaps": pa.array([1.0, None, 3.0, 4.0, None, 6.0], pa.float64()),
        "holes": pa.array([1, None, 3, 4, None, 6], pa.int64()),
        "share": pa.array([0.1, 0.2, 0.3, 0.5, 0.7, 1.0], pa.float64()),
        "short": pa.array([0.1, 0.2, 0.3, 0.5, None, 1.0], pa.float32()),
        "wide": pa.array([float("inf"), float("-inf"), 0.0, 1.0, -1.0, 2.0], pa.float64()),
        "empty": pa.array([None] * 6, pa.float64()),
        "flag": pa.array([True, False, True, True, False, True], pa.bool_()),
        "phone": ["123-45-6789", "987-65-4321", "111-22-3333", "000-00-0000", "555-55-5555", "999-99-9999"],
        "path": ["C:\\data\\a", "C:\\data\\b", "D:\\x", "\\\\host\\c", "a\\", "\\"],
        "text": ["100%", "a_b", "it's", 'say "x"', "naïve ☃", "two\nlines"],
        "line": ["a\n", "b", "c\n", "a", "b\n", "A"],
        "digits": ["12", "٣٤", "½", "5", "x", "１２"],
        "label": ["a", "b", None, "a", "b", None],
        "other": ["a", None, None, "b", "b", "a"],
        "moment": pa.array([DAY + dt.timedelta(hours=6 * n) for n in range(6)], pa.timestamp("us")),
        "zoned": pa.array(
            [(DAY + dt.timedelta(hours=6 * n)).replace(tzinfo=UTC) for n in range(6)], pa.timestamp("us", "UTC")
        ),
        "money": pa.array(
            [Decimal("1.10"), Decimal("2.20"), Decimal("3.30"), Decimal("4.40"), None, Decimal("5.50")],
            pa.decimal128(8, 2),
        ),
        "day": ["2026-01-31", "2026-02-28", "2026-02-30", "31.01.2026", "yesterday", "2026-12-01"],
    }
)
PREFIX = "expect_column_values_to_"


def asked(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind if kind.startswith("expect_") else PREFIX + kind, "kwargs": kwargs}


def condition(kind: str, column: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "column": {"name": column}, **more}


PAIR = {"column_A": "label", "column_B": "other"}
SAME = [
    # backslashes, which the dialect doubled
    *(
        asked("match_regex", column="phone", regex=regex)
        for regex in (r"\d{3}-\d{2}-\d{4}", r"^\d{3}-\d{2}-\d{4}$", r"\D")
    ),
    *(asked("not_match_regex", column="phone", regex=regex) for regex in (r"\d{3}-\d{2}-\d{4}", r"[a-z]", r"\s")),
    *(asked("match_regex", column="path", regex=regex, mostly=0.5) for regex in (r"^[A-Z]:\\", r"\\", r"\\$", r"[\\]")),
    asked("be_in_set", column="path", value_set=["C:\\data\\a", "C:\\data\\b", "D:\\x", "\\\\host\\c", "a\\", "\\"]),
    asked("not_be_in_set", column="path", value_set=["D:\\x"]),
    asked("expect_column_distinct_values_to_contain_set", column="path", value_set=["\\", "D:\\x"]),
    asked("expect_column_distinct_values_to_be_in_set", column="path", value_set=["\\", "D:\\x"]),
    asked(
        "expect_column_distinct_values_to_equal_set",
        column="path",
        value_set=["C:\\data\\a", "C:\\data\\b", "D:\\x", "\\\\host\\c", "a\\", "\\"],
    ),
    asked("expect_column_most_common_value_to_be_in_set", column="path", value_set=["\\"], ties_okay=True),
    asked("expect_column_most_common_value_to_be_in_set", column="path", value_set=["\\"]),
    # percent, underscore, quotes, Unicode
    asked("be_in_set", column="text", value_set=["100%", "a_b", "it's", 'say "x"', "naïve ☃", "two\nlines"]),
    *(
        asked("match_regex", column="text", regex=regex, mostly=1 / 6)
        for regex in (
            "100%",
            "a_b",
            "it's",
            '"x"',
            "☃$",
            "o.l",
            "(?s)o.l",
            "^lines",
            "(?m)^lines",
            "a.b",
            ":x",
            "%s",
            "%(x)s",
        )
    ),
    # what Python's regular expressions have and RE2 has not, or has otherwise
    *(
        asked("match_regex", column="line", regex=regex, mostly=0.3)
        for regex in ("^a$", r"^a\Z", r"a(?!\n)", r"(?<=a)\n", "(?i)a$", r"(.)\n(?:\1)?", r"\Aa")
    ),
    *(
        asked("match_regex", column="digits", regex=regex, mostly=0.6)
        for regex in (r"^\d+$", r"^\w+$", r"^[0-9]+$", r"\b", r"^(?a:\d+)$", r"(?a)\d")
    ),
    # numbers given as texts, booleans as bounds, sets of the wrong type
    asked("be_between", column="number", min_value="1", max_value="6"),
    asked("be_between", column="number", min_value="2"),
    asked("be_between", column="flag", min_value=0, max_value=1),
    asked("be_between", column="number", min_value=True),
    asked("be_between", column="number", min_value=False, max_value=True, mostly=0.1),
    asked("be_in_set", column="number", value_set=["1", "2", "3", "4", "5", "6"]),
    asked("not_be_in_set", column="number", value_set=["1"]),
    asked("be_in_set", column="phone", value_set=[1, 2]),
    asked("be_in_set", column="flag", value_set=[True, False]),
    asked("be_in_set", column="flag", value_set=["true", "false"]),
    asked("be_in_set", column="number", value_set=[1.0, 2, 3, 4, 5, 6]),
    asked("be_in_set", column="number", value_set=[1.5, 2, 3, 4, 5, 6], mostly=0.8),
    asked("be_in_set", column="label", value_set=["a", "b", None]),
    asked("be_in_set", column="label", value_set=["a", None], mostly=0.5),
    asked("not_be_in_set", column="label", value_set=["c", None]),
    asked("be_in_set", column="share", value_set=[0.1, 0.2, 0.3, 0.5, 0.7, 1]),
    asked("expect_column_max_to_be_between", column="number", min_value="6", max_value="6"),
    # dates and timestamps in bounds
    asked("be_between", column="moment", min_value="2026-01-31T00:00:00", max_value="2026-02-01T06:00:00"),
    asked("be_between", column="moment", min_value="2026-01-31T00:00:00", strict_min=True, mostly=0.8),
    asked("be_between", column="moment", max_value="2026-01-31T12:00:00"),
    asked("expect_column_min_to_be_between", column="moment", min_value="2026-01-31T00:00:00"),
    asked("expect_column_max_to_be_between", column="moment", max_value="2026-02-01T06:00:00"),
    asked("expect_column_max_to_be_between", column="moment", max_value="2026-02-01T06:00:00", strict_max=True),
    asked("be_between", column="zoned", min_value="2026-01-31T00:00:00+00:00", max_value="2026-02-01T06:00:00+00:00"),
    asked("be_between", column="zoned", min_value="2026-01-31T02:00:00+02:00"),
    asked("be_between", column="zoned", min_value="2026-01-31T02:00:00+01:00"),
    asked("not_be_in_set", column="moment", value_set=["2026-01-31T06:00:00"]),
    asked("expect_column_distinct_values_to_contain_set", column="moment", value_set=["2026-01-31T06:00:00"]),
    asked("expect_column_distinct_values_to_contain_set", column="moment", value_set=[20260131]),
    asked("expect_column_distinct_values_to_contain_set", column="moment", value_set=["2026-01-31T06:00:00", True]),
    # nothing but nulls, infinities, decimals
    *(
        asked(f"expect_column_{each}_to_be_between", column="empty", min_value=0, max_value=1)
        for each in (
            "sum",
            "mean",
            "median",
            "min",
            "max",
            "stdev",
            "unique_value_count",
            "proportion_of_unique_values",
            "proportion_of_non_null_values",
        )
    ),
    *(
        asked(f"expect_column_{each}_to_be_between", column="wide", min_value=-5, max_value=5)
        for each in ("mean", "median", "min", "max", "stdev", "unique_value_count")
    ),
    *(
        asked(f"expect_column_{each}_to_be_between", column="holes", min_value=1, max_value=6)
        for each in ("sum", "mean", "median", "min", "max", "stdev", "unique_value_count")
    ),
    *(
        asked(f"expect_column_{each}_to_be_between", column="flag", min_value=0, max_value=1)
        for each in ("mean", "min", "max", "sum")
    ),
    *(
        asked(
            f"expect_column_{each}_to_be_between",
            column="money",
            min_value=1,
            max_value=3 if each == "unique_value_count" else 3.5,
        )
        for each in ("min", "max", "unique_value_count")
    ),
    asked("be_between", column="money", min_value=1, max_value=5.5),
    # a figure that is its bound, though no decimal is the double next to it
    *(
        asked(f"expect_column_{each}_to_be_between", column="share", **{side: bound, f"strict_{side[:3]}": is_strict})
        for each, bound in (("min", 0.1), ("max", 1.0), ("median", 0.4))
        for side in ("min_value", "max_value")
        for is_strict in (False, True)
    ),
    *(
        asked(f"expect_column_{each}_to_be_between", column=column, **{side: share, f"strict_{side[:3]}": is_strict})
        for each, column, share in (
            ("proportion_of_non_null_values", "gaps", 4 / 6),
            ("proportion_of_unique_values", "label", 2 / 4),
            ("proportion_of_unique_values", "other", 2 / 4),
            ("proportion_of_unique_values", "flag", 2 / 6),
        )
        for side in ("min_value", "max_value")
        for is_strict in (False, True)
    ),
    # 0.1 of 32 bits is greater than 0.1 of 64
    *(
        asked("expect_column_min_to_be_between", column="short", **{side: 0.1, f"strict_{side[:3]}": is_strict})
        for side in ("min_value", "max_value")
        for is_strict in (False, True)
    ),
    *(
        asked("be_between", column="number", max_value=1, row_condition=text, condition_parser="pandas")
        for text in ("short == 0.1", "short <= 0.1", "short < 0.2", "not short > 0.1 and short.notnull()")
    ),
    # mostly at the boundary, strictness
    *(
        asked("be_between", column="number", min_value=3, mostly=mostly)
        for mostly in (4 / 6, 0.66, 0.67, 0.6666666666666667)
    ),
    *(
        asked("be_between", column="number", min_value=1, max_value=6, strict_min=low, strict_max=high, mostly=0.8)
        for low in (False, True)
        for high in (False, True)
    ),
    *(asked("not_be_null", column="gaps", mostly=mostly) for mostly in (4 / 6, 0.67)),
    *(asked("be_null", column="gaps", mostly=mostly) for mostly in (2 / 6, 0.34)),
    *(asked("be_unique", column="small", mostly=mostly) for mostly in (0.0, 0.1, 0.5)),
    asked("be_unique", column="label"),
    asked("be_unique", column="gaps"),
    *(
        asked("expect_column_value_lengths_to_be_between", column="path", min_value=1, max_value=9, strict_min=low)
        for low in (False, True)
    ),
    *(asked("expect_column_value_lengths_to_equal", column="text", value=value, mostly=1 / 6) for value in (3, 4, 7)),
    # pairs and lists with missing values
    *(
        asked("expect_column_pair_values_to_be_equal", **PAIR, ignore_row_if=ignored, mostly=mostly)
        for ignored in ("both_values_are_missing", "either_value_is_missing", "neither")
        for mostly in (1, 0.5, 0.2)
    ),
    *(
        asked(
            "expect_column_pair_values_a_to_be_greater_than_b",
            column_A="gaps",
            column_B="number",
            or_equal=equal,
            ignore_row_if=ignored,
        )
        for ignored in ("both_values_are_missing", "either_value_is_missing", "neither")
        for equal in (True, False)
    ),
    *(
        asked(
            "expect_column_pair_values_a_to_be_greater_than_b",
            column_A="empty",
            column_B="empty",
            or_equal=True,
            ignore_row_if=ignored,
        )
        for ignored in ("both_values_are_missing", "either_value_is_missing", "neither")
    ),
    *(
        asked(kind, column_list=["label", "other"], ignore_row_if=ignored, mostly=mostly)
        for kind in ("expect_compound_columns_to_be_unique", "expect_select_column_values_to_be_unique_within_record")
        for ignored in ("all_values_are_missing", "any_value_is_missing", "never")
        for mostly in (1, 0.5, 0.2)
    ),
    *(
        asked(
            "expect_multicolumn_sum_to_equal",
            column_list=["gaps", "number"],
            sum_total=2,
            ignore_row_if=ignored,
            mostly=mostly,
        )
        for ignored in ("all_values_are_missing", "any_value_is_missing", "never")
        for mostly in (1, 0.2)
    ),
    # conditions
    *(
        asked("be_between", column="number", min_value=3, row_condition=text, condition_parser="pandas")
        for text in (
            "number > 2",
            "number >= 2 and small != 1",
            "label == 'a'",
            "label != 'a'",
            "label.isnull()",
            "~flag",
            "path == 'D:\\\\x'",
            "number in [3, 4]",
            "number not in [1, 2]",
            "2 < number <= 4",
            "`number` > 2 | gaps < 0",
            "moment > '2026-01-31 06:00:00'",
            "label.notnull() and number > 3",
            "not (number < 3)",
        )
    ),
    *(
        asked("be_between", column="number", min_value=3, row_condition=each)
        for each in (
            condition("comparison", "number", operator=">", parameter=2),
            condition("comparison", "path", operator="==", parameter="D:\\x"),
            condition("comparison", "label", operator="!=", parameter="a"),
            condition("comparison", "number", operator="IN", parameter=[3, 4]),
            condition("comparison", "label", operator="NOT_IN", parameter=["a"]),
            condition("nullity", "label", is_null=True),
            {
                "type": "and",
                "conditions": [
                    condition("nullity", "label", is_null=False),
                    condition("comparison", "number", operator=">", parameter=3),
                ],
            },
            {
                "type": "or",
                "conditions": [
                    condition("comparison", "number", operator="<", parameter=2),
                    condition("comparison", "number", operator=">", parameter=3),
                ],
            },
            {"type": "pass_through", "pass_through_filter": "number > 2"},
        )
    ),
    # kinds that public suites hold
    *(
        asked(
            "expect_column_quantile_values_to_be_between",
            column=column,
            quantile_ranges={"quantiles": [0.25, 0.5, 0.9], "value_ranges": [[1, 2], [3, 4], [5, None]]},
            allow_relative_error=how,
        )
        for column in ("number", "gaps", "small")
        for how in (False, "linear", "lower", "higher", "midpoint", "nearest")
    ),
    *(
        asked("match_strftime_format", column="day", strftime_format=text, mostly=mostly)
        for text in ("%Y-%m-%d", "%d.%m.%Y")
        for mostly in (0.5, 1)
    ),
    *(
        asked("be_dateutil_parseable", column=column, mostly=mostly)
        for column in ("day", "phone")
        for mostly in (0.6, 1)
    ),
    *(
        asked("be_of_type", column=column, type_=name)
        for column in ("number", "small", "share", "flag", "phone", "moment")
        for name in ("int64", "int32", "int", "float64", "float", "bool", "str")
    ),
    *(
        asked("be_in_type_list", column=column, type_list=names)
        for column in ("number", "small", "share", "flag")
        for names in (["int64", "int"], ["float64", "str"], ["bool", "str"])
    ),
    asked("expect_table_columns_to_match_ordered_list", column_list=[*TABLE.column_names, "any"]),
    asked("expect_table_columns_to_match_ordered_list", column_list=["any", *TABLE.column_names]),
    asked("expect_table_columns_to_match_set", column_set=["NUMBER"], exact_match=False),
]
NAN = float("nan")
ODD = pa.table(
    {
        "rough": pa.array([1.0, NAN, 2.0, 3.0], pa.float64()),
        "other": pa.array([1.0, NAN, 1.0, NAN], pa.float64()),
        "money": pa.array([Decimal("1.10"), Decimal("2.20"), None, Decimal("0.30")], pa.decimal128(8, 2)),
        "day": pa.array([dt.date(2026, 1, 31), dt.date(2026, 2, 1), None, dt.date(2026, 2, 2)], pa.date32()),
        "moment": pa.array([DAY + dt.timedelta(hours=6 * n) for n in range(4)], pa.timestamp("us")),
        "big": pa.array([2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3], pa.int64()),
        "holes": pa.array([1, None, 3, 4], pa.int64()),
        "text": ["a", "b", "a", "c"],
        "short": pa.array([0.1, 0.2, None, 0.3], pa.float32()),
    }
)
ANSWER = {True: "holds", False: "fails"}
DECIDED: list[tuple[str, dict[str, Any], str, bool]] = [
    # NaN: a value to be judged and never a good one, where pandas takes it for missing; missing where that is asked
    ("NaN is within no bounds", asked("be_between", column="rough", min_value=0), "holds", False),
    ("NaN is in no set", asked("be_in_set", column="rough", value_set=[1, 2, 3]), "holds", False),
    ("NaN is missing", asked("not_be_null", column="rough"), "fails", False),
    ("NaN is no null", asked("be_null", column="rough", mostly=0.25), "holds", False),
    ("NaN repeats NaN", asked("be_unique", column="other", mostly=0.1), "fails", False),
    ("a mean with NaN", asked("expect_column_mean_to_be_between", column="rough", min_value=0), "holds", False),
    ("a sum with NaN", asked("expect_column_sum_to_be_between", column="rough", min_value=0), "holds", False),
    ("a median with NaN", asked("expect_column_median_to_be_between", column="rough", min_value=0), "holds", False),
    ("a deviation with NaN", asked("expect_column_stdev_to_be_between", column="rough", min_value=0), "holds", False),
    ("a maximum with NaN", asked("expect_column_max_to_be_between", column="rough", max_value=3), "holds", False),
    ("a minimum leaves NaN out", asked("expect_column_min_to_be_between", column="rough", min_value=1), "holds", True),
    (
        "NaN is one more value",
        asked("expect_column_unique_value_count_to_be_between", column="rough", max_value=3),
        "holds",
        False,
    ),
    # decimals: the number that is written, where Python compares with the double next to it
    ("1.1 is 1.10", asked("be_in_set", column="money", value_set=[1.1, 2.2, 0.3]), "fails", True),
    ("0.3 is at least 0.30", asked("be_between", column="money", max_value=0.3, mostly=0.3), "fails", True),
    ("a mean beside a null", asked("expect_column_mean_to_be_between", column="money", min_value=1), "raises", True),
    # 32-bit floats: the one next to what is written, as pandas has it in conditions and for the least and greatest
    ("0.1 of 32 bits as a bound", asked("be_between", column="short", max_value=0.1, mostly=0.3), "fails", True),
    ("0.1 of 32 bits in a set", asked("be_in_set", column="short", value_set=[0.1, 0.2, 0.3]), "fails", True),
    # dates and times as ISO text, for which pandas has an answer or has none by its own types
    ("a date in a set", asked("be_in_set", column="day", value_set=["2026-01-31"], mostly=0.3), "fails", True),
    ("a date as a bound", asked("be_between", column="day", min_value="2026-01-31"), "holds", True),
    ("a day beside a time", asked("be_between", column="moment", min_value="2026-01-31"), "raises", True),
    (
        "the commonest time",
        asked(
            "expect_column_most_common_value_to_be_in_set",
            column="moment",
            value_set=["2026-01-31T00:00:00"],
            ties_okay=True,
        ),
        "fails",
        True,
    ),
    # integers are exact, and do not turn into doubles beside a null
    ("beyond 2^53", asked("be_between", column="big", min_value=2**53 + 1, mostly=1), "holds", False),
    ("an integer is no text 1.0", asked("match_regex", column="holes", regex="^[0-9]$"), "fails", True),
    # the list of types knows no `str` on pandas 3, though the single type does; a column at place 0 is asked for
    ("str in a list", asked("be_in_type_list", column="text", type_list=["str"]), "fails", True),
    ("object", asked("be_of_type", column="text", type_="object"), "fails", True),
    ("a name of SQL", asked("be_of_type", column="text", type_="VARCHAR"), "fails", True),
    ("place 0", asked("expect_column_to_exist", column="text", column_index=0), "holds", False),
]
"""What Great Expectations on pandas answers for a reason of pandas', and what is answered here instead."""


def test_what_great_expectations_answers_on_pandas_is_answered_alike(tmp_path: Path) -> None:
    with_any = TABLE.append_column("any", pa.array([True] * TABLE.num_rows, pa.bool_()))
    references = judged_by_pandas(with_any, SAME)
    verdicts = judged_by_us(TABLE, SAME, tmp_path)
    differ = [
        (each["type"], each["kwargs"], reference.passed, verdict.observed)
        for each, reference, verdict in zip(SAME, references, verdicts, strict=True)
        if reference.passed is not verdict.passed and not reference.raised
    ]
    assert differ == []
    assert [each for each, reference in zip(SAME, references, strict=True) if reference.raised] == []
    counts = [
        (each["type"], each["kwargs"], reference.num_unexpected, verdict.observed)
        for each, reference, verdict in zip(SAME, references, verdicts, strict=True)
        if " rows " in verdict.observed and num_broken(verdict.observed) != reference.num_unexpected
    ]
    assert counts == []


def num_broken(observed: str) -> int:
    return 0 if observed.startswith("all ") else int(observed.split(" of ")[0])


def test_where_pandas_answers_for_its_own_reasons_the_answer_is_decided_and_known(tmp_path: Path) -> None:
    expectations = [each for _, each, _, _ in DECIDED]
    references = judged_by_pandas(ODD, expectations)
    answers = answered_by_us(ODD, expectations, tmp_path / "rows")
    found = [
        (why, "raises" if reference.raised else ANSWER[reference.passed], None if answer is None else answer.passed)
        for (why, *_), reference, answer in zip(DECIDED, references, answers, strict=True)
    ]
    assert found == [(why, theirs, ours) for why, _, theirs, ours in DECIDED]
