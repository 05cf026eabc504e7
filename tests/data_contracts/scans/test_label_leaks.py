"""An input that alone tells the label is named, by each way in which it can; one that only helps is not."""

from __future__ import annotations

import datetime
import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headway.data_contracts.scans.label_leaks import FIRST_ROWS, Label, evaluate_label
from headway.data_contracts.scans.rows_database import ROWS

NUM_ROWS = 1000
DRAW = random.Random(7)
CLASSES = [DRAW.choice(["no", "yes", "no"]) for _ in range(NUM_ROWS)]
DATES = [datetime.date(2020, 1, 1) + datetime.timedelta(days=day) for day in range(2 * NUM_ROWS)]
NUMBERS = [DRAW.gauss(0, 1) for _ in range(NUM_ROWS)]
NOISE = [DRAW.gauss(0, 1) for _ in range(NUM_ROWS)]


TELLS, NEARLY = "`x` alone tells `y`", "`x` alone nearly tells `y`"


def observed(classes: list[Any], column: list[Any] | pa.Array, *, is_class: bool = True) -> str:
    """What is said of one input; empty where nothing is."""
    is_empty = isinstance(column, list) and column == [None] * len(column)
    values = pa.array(column, pa.float64()) if is_empty else pa.array(column) if isinstance(column, list) else column
    table = pa.table({"y": classes, "x": values, "noise": NOISE[: len(classes)]})
    with duckdb.connect() as connection:
        connection.register(ROWS, table)
        types = {field.name: str(field.type) for field in table.schema}
        found = evaluate_label(connection, label("y", is_class, ("x", "noise", "no such column")), types)
    assert [each.severity for each in found] == ["warning"] * len(found)
    return "; ".join(each.observed for each in found if not each.passed)


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
        [None if each == "yes" else DATES[row] for row, each in enumerate(CLASSES)],
        [DATES[row + (NUM_ROWS if each == "yes" else 0)] for row, each in enumerate(CLASSES)],
        [DRAW.random() + (2.0 if each == "yes" else 0.0) for each in CLASSES],
        [("no" if row == 3 else each) for row, each in enumerate(CLASSES)],
        [None if row == 3 else DRAW.random() + (2.0 if each == "yes" else 0.0) for row, each in enumerate(CLASSES)],
        [9.0 if row == 3 else DRAW.random() + (2.0 if each == "yes" else 0.0) for row, each in enumerate(CLASSES)],
        [float("inf") if row == 3 else DRAW.random() + 2.0 * (each == "yes") for row, each in enumerate(CLASSES)],
    ],
    ids=[
        *("equal", "renumbered", "renamed", "boolean", "missing where", "no date where", "later"),
        *("threshold", "one row differs"),
        *("threshold, one missing", "threshold, one elsewhere", "threshold, one infinite"),
    ],
)
def test_a_column_that_tells_the_class_is_named(column: list[Any]) -> None:
    assert observed(CLASSES, column) == TELLS


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ms")], ids=str
)
@pytest.mark.parametrize("is_whole_class", [False, True])
def test_moments_beyond_the_calendar_of_python_are_compared_as_all_others(
    kind: pa.DataType, is_whole_class: bool
) -> None:
    """A slip of the pen is enough for one: the year 20205."""
    is_far = [each == "yes" if is_whole_class else row == 3 for row, each in enumerate(CLASSES)]
    draw = random.Random(9)
    days = pa.array([(6_660_000 if far else 0) + draw.randrange(20_000) for far in is_far], pa.int32())
    column = days.cast(pa.date32()) if kind == pa.date32() else days.cast(pa.date32()).cast(kind)
    assert observed(CLASSES, column) == (TELLS if is_whole_class else "")


def test_a_column_that_tells_the_number_is_named() -> None:
    for column in (NUMBERS, [3 * each - 7 for each in NUMBERS], [-each for each in NUMBERS]):
        assert observed(NUMBERS, column, is_class=False) == TELLS


@pytest.mark.parametrize(
    "curve",
    [lambda x: math.exp(5 * x), lambda x: -(x**3), lambda x: round(math.atan(x), 2)],
    ids=["exponential", "falling cube", "bounded and rounded"],
)
def test_a_column_that_the_number_goes_along_with_on_a_curve_is_named(curve: Callable[[float], float]) -> None:
    assert observed(NUMBERS, [curve(each) for each in NUMBERS], is_class=False) == TELLS
    assert observed([curve(each) for each in NUMBERS], NUMBERS, is_class=False) == TELLS


def test_a_column_whose_every_value_has_its_own_number_is_named() -> None:
    grades = [DRAW.randrange(6) for _ in range(NUM_ROWS)]
    prices = [[3.0, 1.0, 4.0, 1.5, 9.0, 2.6][grade] for grade in grades]
    assert observed(prices, [f"grade {grade}" for grade in grades], is_class=False) == TELLS
    assert observed(prices, grades, is_class=False) == TELLS
    assert observed(prices, [f"grade {grade // 2}" for grade in grades], is_class=False) == ""
    assert observed(NUMBERS, [f"row {row}" for row in range(NUM_ROWS)], is_class=False) == ""


def test_of_more_rows_than_are_looked_at_first_all_have_to_go_along() -> None:
    numbers = [DRAW.gauss(0, 1) for _ in range(FIRST_ROWS + 2000)]
    curve = [math.exp(5 * each) for each in numbers]
    noise = [DRAW.gauss(0, 1) for _ in numbers]
    for column, passed in ((curve, False), (curve[:FIRST_ROWS] + noise[FIRST_ROWS:], True)):
        with duckdb.connect() as connection:
            connection.register(ROWS, pa.table({"y": numbers, "x": column}))
            assert (
                evaluate_label(connection, label("y", False, ("x",)), {"y": "double", "x": "double"})[0].passed
                is passed
            )


@pytest.mark.parametrize(
    "column",
    [
        [each if DRAW.random() < 0.8 else "no" for each in CLASSES],
        list(range(NUM_ROWS)),
        [f"customer {row}" for row in range(NUM_ROWS)],
        ["same"] * NUM_ROWS,
        [None] * NUM_ROWS,
        [DRAW.random() + (0.8 if each == "yes" else 0.0) for each in CLASSES],
        [float("nan")] * NUM_ROWS,
        [DRAW.random() if each == "yes" else 0.5 for each in CLASSES],
    ],
    ids=["helps", "row number", "key", "constant", "null", "overlaps", "nan", "one class has one value"],
)
def test_a_column_that_does_not_tell_the_class_is_not(column: list[Any]) -> None:
    assert observed(CLASSES, column) == ""


def other_in(column: list[Any], one_in: int) -> list[Any]:
    """One row in so many has another row's value."""
    return [DRAW.choice(column) if row % one_in == 0 else each for row, each in enumerate(column)]


@pytest.mark.parametrize("one_in", [100, 40], ids="1 in {}".format)
@pytest.mark.parametrize(
    "column",
    [
        CLASSES,
        [{"no": 0, "yes": 1}[each] for each in CLASSES],
        [each == "yes" for each in CLASSES],
        [DRAW.random() + (2.0 if each == "yes" else 0.0) for each in CLASSES],
        [None if each == "yes" else DRAW.randrange(5) for each in CLASSES],
    ],
    ids=["equal", "renumbered", "boolean", "threshold", "missing where"],
)
def test_a_column_that_tells_the_class_but_for_noise_is_said_to_nearly_tell_it(column: list[Any], one_in: int) -> None:
    assert observed(CLASSES, other_in(column, one_in)) == NEARLY


def test_a_leak_with_noise_is_said_where_the_class_has_a_tenth_of_the_rows() -> None:
    rare = [DRAW.random() < 0.12 for _ in range(NUM_ROWS)]
    assert observed(rare, [each != (row % 100 == 0) for row, each in enumerate(rare)]) == NEARLY


def test_a_column_that_tells_the_number_but_for_noise_is_said_to_nearly_tell_it() -> None:
    for curve in (lambda x: 3 * x - 7, lambda x: math.exp(5 * x), lambda x: -(x**3)):
        assert observed(NUMBERS, other_in([curve(each) for each in NUMBERS], 100), is_class=False) == NEARLY
    close = [each + 0.05 * noise for each, noise in zip(NUMBERS, NOISE, strict=True)]
    assert observed(NUMBERS, close, is_class=False) == NEARLY
    grades = [DRAW.randrange(6) for _ in range(NUM_ROWS)]
    prices = [[3.0, 1.0, 4.0, 1.5, 9.0, 2.6][grade] for grade in grades]
    assert observed(prices, [f"grade {grade}" for grade in other_in(grades, 100)], is_class=False) == NEARLY


@pytest.mark.parametrize("accuracy", [0.9, 0.92, 0.94])
def test_an_honest_strong_input_is_not_said_to_tell_the_class(accuracy: float) -> None:
    even = [DRAW.choice(["no", "yes"]) for _ in range(NUM_ROWS)]
    other = {"no": "yes", "yes": "no"}
    says = [each if DRAW.random() < accuracy else other[each] for each in even]
    assert observed(even, says) == ""
    # Two normal classes whose best threshold is right as often.
    apart = 2 * statistics.NormalDist().inv_cdf(accuracy)
    assert observed(even, [DRAW.gauss(apart if each == "yes" else 0.0, 1) for each in even]) == ""


@pytest.mark.process
def test_the_best_single_inputs_of_well_known_tables_are_not_said_to_tell_the_label() -> None:
    from sklearn.datasets import load_breast_cancer, load_iris  # a second, for whoever collects this file

    iris = load_iris(as_frame=True).frame
    for name in iris.columns[:-1]:
        assert observed(list(iris["target"]), list(iris[name])) == "", name
    tumours = load_breast_cancer(as_frame=True).frame
    for name in tumours.columns[:-1]:
        assert observed(list(tumours["target"]), list(tumours[name])) == "", name


def test_a_column_that_only_goes_along_with_the_number_is_not() -> None:
    column = [each + 0.3 * noise for each, noise in zip(NUMBERS, NOISE, strict=True)]
    assert observed(NUMBERS, column, is_class=False) == ""
    assert observed(NUMBERS, [f"{each}" for each in NUMBERS], is_class=False) == ""


def test_of_few_rows_nothing_is_said() -> None:
    few = ["no", "yes"] * 15
    assert observed(few, few) == ""


def test_two_columns_are_both_named_and_no_value_is() -> None:
    table = pa.table({"y": CLASSES, "a": CLASSES, "b": [f"{each}-s3cr3t" for each in CLASSES]})
    with duckdb.connect() as connection:
        connection.register(ROWS, table)
        found, _ = evaluate_label(connection, label("y", True, ("a", "b")), dict.fromkeys(table.column_names, "string"))
    assert found.observed == "`a`, `b` alone tell `y`" and found.columns == ("a", "b") and not found.passed


def test_what_cannot_be_judged_is_said_to_be_so() -> None:
    with duckdb.connect() as connection:
        (found,) = evaluate_label(connection, label("y", True, ("x",)), {"y": "string", "x": "string"})
    assert not found.passed and found.observed == "could not be evaluated (CatalogException)"
