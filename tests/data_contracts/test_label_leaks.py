"""An input that alone tells the label is named, by each way in which it can; one that only helps is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from data_contracts.label_leaks import FIRST_ROWS, Label, judge_label
from data_contracts.rows_database import ROWS

NUM_ROWS = 1000
DRAW = random.Random(7)
CLASSES = [DRAW.choice(["no", "yes", "no"]) for _ in range(NUM_ROWS)]
NUMBERS = [DRAW.gauss(0, 1) for _ in range(NUM_ROWS)]
NOISE = [DRAW.gauss(0, 1) for _ in range(NUM_ROWS)]


def observed(classes: list[Any], column: list[Any], *, is_class: bool = True) -> str:
    """What is said of one input; empty where nothing is."""
    values = pa.array(column, pa.float64() if column == [None] * len(column) else None)
    table = pa.table({"y": classes, "x": values, "noise": NOISE[: len(classes)]})
    with duckdb.connect() as connection:
        connection.register(ROWS, table)
        types = {field.name: str(field.type) for field in table.schema}
        found = judge_label(connection, label("y", is_class, ("x", "noise", "no such column")), types)
    assert found.severity == "warning"
    return "" if found.passed else found.observed


def label(column: str, is_class: bool, inputs: tuple[str, ...]) -> Label:
    return Label(column=column, is_class=is_class, inputs=inputs)


@pytest.mark.parametrize(
    "column",
    [
        CLASSES,
        [{"no": 0, "yes": 1}[each] for each in CLASSES],
        [f"{each}!" for each in CLASSES],
        [each == "yes" for each in CLASSES],
        [None if each == "yes" else DRAW.randrange(5) for each in CLASSES],
        [DRAW.random() + (2.0 if each == "yes" else 0.0) for each in CLASSES],
        [("no" if row == 3 else each) for row, each in enumerate(CLASSES)],
        [None if row == 3 else DRAW.random() + (2.0 if each == "yes" else 0.0) for row, each in enumerate(CLASSES)],
        [9.0 if row == 3 else DRAW.random() + (2.0 if each == "yes" else 0.0) for row, each in enumerate(CLASSES)],
        [float("inf") if row == 3 else DRAW.random() + 2.0 * (each == "yes") for row, each in enumerate(CLASSES)],
    ],
    ids=[
        *("equal", "renumbered", "renamed", "boolean", "missing where", "threshold", "one row differs"),
        *("threshold, one missing", "threshold, one elsewhere", "threshold, one infinite"),
    ],
)
def test_a_column_that_tells_the_class_is_named(column: list[Any]) -> None:
    assert observed(CLASSES, column) == "`x` alone tells `y`"


def test_a_column_that_tells_the_number_is_named() -> None:
    for column in (NUMBERS, [3 * each - 7 for each in NUMBERS], [-each for each in NUMBERS]):
        assert observed(NUMBERS, column, is_class=False) == "`x` alone tells `y`"


@pytest.mark.parametrize(
    "curve",
    [lambda x: math.exp(5 * x), lambda x: -(x**3), lambda x: round(math.atan(x), 2)],
    ids=["exponential", "falling cube", "bounded and rounded"],
)
def test_a_column_that_the_number_goes_along_with_on_a_curve_is_named(curve: Callable[[float], float]) -> None:
    assert observed(NUMBERS, [curve(each) for each in NUMBERS], is_class=False) == "`x` alone tells `y`"
    assert observed([curve(each) for each in NUMBERS], NUMBERS, is_class=False) == "`x` alone tells `y`"


def test_a_column_whose_every_value_has_its_own_number_is_named() -> None:
    grades = [DRAW.randrange(6) for _ in range(NUM_ROWS)]
    prices = [[3.0, 1.0, 4.0, 1.5, 9.0, 2.6][grade] for grade in grades]
    assert observed(prices, [f"grade {grade}" for grade in grades], is_class=False) == "`x` alone tells `y`"
    assert observed(prices, grades, is_class=False) == "`x` alone tells `y`"
    assert observed(prices, [f"grade {grade // 2}" for grade in grades], is_class=False) == ""
    assert observed(NUMBERS, [f"row {row}" for row in range(NUM_ROWS)], is_class=False) == ""


def test_of_more_rows_than_are_looked_at_first_all_have_to_go_along() -> None:
    numbers = [DRAW.gauss(0, 1) for _ in range(FIRST_ROWS + 2000)]
    curve = [math.exp(5 * each) for each in numbers]
    noise = [DRAW.gauss(0, 1) for _ in numbers]
    for column, passed in ((curve, False), (curve[:FIRST_ROWS] + noise[FIRST_ROWS:], True)):
        with duckdb.connect() as connection:
            connection.register(ROWS, pa.table({"y": numbers, "x": column}))
            assert judge_label(connection, label("y", False, ("x",)), {"y": "double", "x": "double"}).passed is passed


@pytest.mark.parametrize(
    "column",
    [
        [each if DRAW.random() < 0.97 else "no" for each in CLASSES],
        list(range(NUM_ROWS)),
        [f"customer {row}" for row in range(NUM_ROWS)],
        ["same"] * NUM_ROWS,
        [None] * NUM_ROWS,
        [DRAW.random() + (0.9 if each == "yes" else 0.0) for each in CLASSES],
        [float("nan")] * NUM_ROWS,
    ],
    ids=["helps", "row number", "key", "constant", "null", "overlaps", "nan"],
)
def test_a_column_that_does_not_tell_the_class_is_not(column: list[Any]) -> None:
    assert observed(CLASSES, column) == ""


def test_a_column_that_only_goes_along_with_the_number_is_not() -> None:
    column = [each + 0.1 * noise for each, noise in zip(NUMBERS, NOISE, strict=True)]
    assert observed(NUMBERS, column, is_class=False) == ""
    assert observed(NUMBERS, [f"{each}" for each in NUMBERS], is_class=False) == ""


def test_of_few_rows_nothing_is_said() -> None:
    few = ["no", "yes"] * 15
    assert observed(few, few) == ""


def test_two_columns_are_both_named_and_no_value_is() -> None:
    table = pa.table({"y": CLASSES, "a": CLASSES, "b": [f"{each}-s3cr3t" for each in CLASSES]})
    with duckdb.connect() as connection:
        connection.register(ROWS, table)
        found = judge_label(connection, label("y", True, ("a", "b")), dict.fromkeys(table.column_names, "string"))
    assert found.observed == "`a`, `b` alone tell `y`" and not found.passed


def test_what_cannot_be_judged_is_said_to_be_so() -> None:
    with duckdb.connect() as connection:
        found = judge_label(connection, label("y", True, ("x",)), {"y": "string", "x": "string"})
    assert not found.passed and found.observed == "could not be judged (CatalogException)"
