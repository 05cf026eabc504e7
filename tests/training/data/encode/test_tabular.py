from __future__ import annotations

import json
import math
import random
import statistics
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.errors import DataError
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.categories import Lookup
from headway.training.data.encode.tabular import TabularEncoder, TabularFit

SPEC = TabularEncoderSpec(numeric=("a", "b"), categorical=("c", "d"), label="y")


def block(path: str = "part.parquet", **columns: Any) -> SourceBlock:
    batch = pa.RecordBatch.from_pydict(columns)
    numbers = np.arange(batch.num_rows, dtype=np.int64)
    return SourceBlock(path, numbers + 100, numbers.astype(np.uint64), batch)


def table(num_rows: int = 60) -> dict[str, pa.Array]:
    draw = random.Random(0)
    return {
        "a": pa.array([draw.gauss(5, 2) for _ in range(num_rows)], pa.float32()),
        "b": pa.array([draw.randrange(1000) for _ in range(num_rows)], pa.int16()),
        "c": pa.array([draw.choice(["red", "green", "blue"]) for _ in range(num_rows)]),
        "d": pa.array([draw.choice([7, -3, 10**12]) for _ in range(num_rows)]),
        "y": pa.array([draw.choice(["no", "yes"]) for _ in range(num_rows)]),
    }


def fitted(spec: TabularEncoderSpec, *blocks: SourceBlock) -> Any:
    fit = TabularFit(spec)
    for each in blocks:
        fit.add(each)
    return fit.statistics()


def test_numbers_are_standardised_by_the_population_of_training() -> None:
    columns = table()
    encoder = TabularEncoder(SPEC, fitted(SPEC, block(**columns)))
    encoded = encoder.encode(block(**columns))["numeric"]
    assert encoded.dtype == np.float32 and encoded.shape == (60, 2)
    for place, name in enumerate("ab"):
        values = [float(value) for value in columns[name].to_pylist()]
        mean, deviation = statistics.fmean(values), statistics.pstdev(values)
        assert encoded[:, place] == pytest.approx([(value - mean) / deviation for value in values], rel=1e-6)


@given(st.permutations(range(6)), st.integers(1, 5))
def test_statistics_do_not_depend_on_order_or_on_who_counted_what(order: list[int], cut: int) -> None:
    parts = [block(**{name: column.slice(10 * part, 10) for name, column in table().items()}) for part in range(6)]
    expected = fitted(SPEC, *parts)
    one, two = TabularFit(SPEC), TabularFit(SPEC)
    for place, part in enumerate(order):
        (one if place < cut else two).add(parts[part])
    two.merge(one)
    assert json.dumps(two.statistics()) == json.dumps(expected)


def test_means_are_rounded_once() -> None:
    values = [1e16, 1.0, -1e16, 0.25]
    spec = TabularEncoderSpec(numeric=("a",))
    (column,) = fitted(spec, block(a=values))["numeric"]
    assert column["mean"] == 1.25 / 4
    assert column["deviation"] == math.sqrt(2e32 / 4)


def test_unknown_values_and_nulls_are_category_zero_and_no_other_is() -> None:
    statistics_ = fitted(SPEC, block(**table()))
    unseen = table(3) | {"c": pa.array(["red", "violet", None]), "d": pa.array([-3, 8, None])}
    encoded = TabularEncoder(SPEC, statistics_).encode(block(**unseen))["categorical"]
    assert encoded.tolist() == [[3, 1], [0, 0], [0, 0]]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, unique=True), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_whole_numbers_are_looked_up_wherever_they_lie(known: list[int], asked: list[int]) -> None:
    known = sorted(known)
    values = [*asked, *known, *(max(-(2**63), value - 1) for value in known)]
    found = Lookup("d", known).numbers(block(d=pa.array(values, pa.int64()))).tolist()
    assert found == [known.index(value) if value in known else -1 for value in values]


@given(st.integers(-5, 5), st.lists(st.integers(-20, 20), min_size=1))
def test_dense_numbers_are_looked_up_by_a_table(first: int, asked: list[int]) -> None:
    known = [first, first + 1, first + 4]
    found = Lookup("d", known).numbers(block(d=pa.array([*asked, 2**62, -(2**62)], pa.int64()))).tolist()
    assert found == [known.index(value) if value in known else -1 for value in [*asked, 2**62, -(2**62)]]


def test_the_rarest_values_lose_their_number_first_and_ties_go_by_value() -> None:
    spec = TabularEncoderSpec(categorical=("c",), max_categories=2)
    assert fitted(spec, block(c=["b", "b", "c", "a", "d"]))["categorical"][0]["values"] == ["a", "b"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_the_way_a_column_is_stored_does_not_show(kind: pa.DataType) -> None:
    statistics_ = fitted(SPEC, block(**table()))
    columns = table() | {"c": table()["c"].cast(kind)}
    assert fitted(SPEC, block(**columns)) == statistics_
    one, two = (TabularEncoder(SPEC, statistics_).encode(block(**held)) for held in (columns, table()))
    assert all(np.array_equal(one[name], two[name]) for name in two)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("a", [1.0, float("nan"), 2.0], "'a' is null or NaN in row 101"),
        ("a", [1.0, 2.0, float("-inf")], "'a' is infinite in row 102"),
        ("b", [1, None, None], "'b' is null or NaN in row 101, and 1 more rows"),
        ("a", ["1", "2", "3"], "'a' is string and was fitted as numbers"),
        ("c", [1.5, 2.5, 3.5], "'c' is double and was fitted as texts"),
        ("c", [1, 2, 3], "'c' is int64 and was fitted as texts"),
        ("d", ["1", "2", "3"], "'d' is string and was fitted as whole numbers"),
        ("y", ["yes", "maybe", "no"], "'y' is null, or a class that the training split has no row of, in row 101"),
        ("y", ["yes", None, "no"], "'y' is null, or a class"),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_file_column_and_row(column: str, values: list[Any], message: str) -> None:
    encoder = TabularEncoder(SPEC, fitted(SPEC, block(**table())))
    with pytest.raises(DataError, match=f"part.parquet: column {message}") as refusal:
        encoder.encode(block(**table(3) | {column: pa.array(values)}))
    assert "maybe" not in str(refusal.value)


@pytest.mark.parametrize(
    ("column", "values"), [("a", ["1", "2", "3"]), ("c", [1, 2, 3]), ("y", ["yes", "maybe", "no"])]
)
def test_what_a_new_fit_would_mend_is_told_with_the_field_that_asks_for_one(column: str, values: list[Any]) -> None:
    encoder = TabularEncoder(SPEC, fitted(SPEC, block(**table())))
    with pytest.raises(DataError) as refusal:
        encoder.encode(block(**table(3) | {column: pa.array(values)}))
    assert "raise shards.fit" in refusal.value.advice


def test_a_missing_column_is_refused_with_those_that_there_are() -> None:
    columns = table()
    del columns["d"]
    with pytest.raises(DataError, match="has no column 'd'; there are a, b, c, y"):
        fitted(SPEC, block(**columns))


@pytest.mark.parametrize(("column", "kind"), [("a", "numbers"), ("c", "texts"), ("d", "whole numbers"), ("y", "texts")])
def test_a_column_that_went_away_after_fitting_is_told_with_what_it_was_fitted_as(column: str, kind: str) -> None:
    encoder = TabularEncoder(SPEC, fitted(SPEC, block(**table())))
    columns = table(3)
    del columns[column]
    with pytest.raises(DataError, match=f"has no column '{column}', which was fitted as {kind}; there are ") as refusal:
        encoder.encode(block(**columns))
    assert "Bring it back" in refusal.value.advice and "raise shards.fit" in refusal.value.advice


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("a", "'a' is string, not a number"),
        ("c", "'c' is double; categories are whole numbers, booleans or texts"),
    ],
)
def test_a_column_that_cannot_be_fitted_is_told_without_a_word_of_an_earlier_fit(column: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as refusal:
        fitted(SPEC, block(**table(3) | {column: pa.array(["1", "2", "3"] if column == "a" else [0.5, 1.5, 2.5])}))
    assert "shards.fit" not in str(refusal.value)


def test_a_number_to_predict_that_became_a_text_is_told_with_what_it_was_fitted_as() -> None:
    spec = TabularEncoderSpec(numeric=("a",), label="b", label_kind="number")
    encoder = TabularEncoder(spec, fitted(spec, block(**table())))
    with pytest.raises(DataError, match="'b' is string and was fitted as numbers"):
        encoder.encode(block(**table(3) | {"b": pa.array(["1", "2", "3"])}))


def test_missing_numbers_become_the_mean_where_that_is_asked_for() -> None:
    spec = TabularEncoderSpec(numeric=("a",), missing="mean")
    values = pa.array([1.0, None, float("nan"), 3.0])
    encoded = TabularEncoder(spec, fitted(spec, block(a=values))).encode(block(a=values))["numeric"]
    assert encoded[:, 0].tolist() == [-1.0, 0.0, 0.0, 1.0]


def test_a_constant_column_is_shifted_and_not_scaled() -> None:
    spec = TabularEncoderSpec(numeric=("a",))
    encoder = TabularEncoder(spec, fitted(spec, block(a=[4.0, 4.0])))
    assert encoder.encode(block(a=[4.0, 6.0]))["numeric"][:, 0].tolist() == [0.0, 2.0]


def test_a_number_to_predict_keeps_its_scale_and_its_moments_are_known() -> None:
    spec = TabularEncoderSpec(numeric=("a",), label="b", label_kind="number")
    learnt = fitted(spec, block(**table()))
    assert learnt["label"]["mean"] == pytest.approx(statistics.fmean(table()["b"].to_pylist()))
    encoded = TabularEncoder(spec, learnt).encode(block(**table()))["label"]
    assert encoded.shape == (60, 1) and encoded[:, 0].tolist() == table()["b"].to_pylist()


def test_one_class_alone_is_nothing_to_predict() -> None:
    with pytest.raises(DataError, match=r"'y' has 1 class"):
        fitted(SPEC, block(**table() | {"y": pa.array(["no"] * 60)}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give numeric or categorical columns"),
        ({"numeric": ("a", "a")}, "there is `a` in `numeric` and in `numeric`"),
        ({"numeric": ("b",), "categorical": ("a",), "label": "a"}, "there is `a` in `categorical` and in `label`"),
    ],
)
def test_a_spec_without_columns_is_refused_and_one_named_twice_is_told_with_both_places(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TabularEncoderSpec(**fields)
