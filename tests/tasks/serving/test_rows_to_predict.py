"""Whoever asks a model gets an answer for rows as they have them, or one sentence about what is wrong with them."""

from __future__ import annotations

import dataclasses
import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from headway.data_contracts.store.errors import ConfigError, DataError
from headway.tasks.serving.prediction import TableModel, block_of
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.data.encode.table_statistics import TimeStatistics
from headway.training.data.encode.tabular import TabularEncoder, TabularFit
from headway.training.data.encode.times import fitted_type
from tests.tasks.table_model import COLUMNS
from tests.tasks.table_model import table_model as model

ENCODED = ([30.0, 40.0], [[1, 2], [3, 1]])


class Squared(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * rows


def frame(**others: Any) -> pd.DataFrame:
    return pd.DataFrame({**COLUMNS, **others})


@pytest.mark.parametrize(
    "rows",
    [
        COLUMNS,
        pa.table(COLUMNS),
        frame(),
        frame().convert_dtypes(),
        frame(plan=pd.Categorical(["pro", "basic"])),
        frame(age=pd.arrays.SparseArray([30.0, 40.0])),
        {**COLUMNS, "age": pd.Series(pd.arrays.SparseArray([30.0, 40.0]))},
        [{"age": 30, "grade": 1, "plan": "pro"}, {"age": 40, "grade": 3, "plan": "basic"}],
        {name: np.array(values) for name, values in COLUMNS.items()},
        {name: pd.Series(values) for name, values in COLUMNS.items()},
        pa.table({**COLUMNS, "plan": pa.array(["pro", "basic"]).dictionary_encode()}),
        pa.table(COLUMNS).to_batches()[0],
    ],
    ids=[
        "dict",
        "arrow",
        "pandas",
        "pandas-nullable",
        "category",
        "sparse",
        "sparse-series",
        "dicts",
        "arrays",
        "series",
        "dictionary",
        "batch",
    ],
)
def test_rows_are_taken_in_every_form_that_people_have_them_in(rows: Any) -> None:
    encoded = model().encode(rows)
    assert (encoded["numeric"][:, 0].tolist(), encoded["categorical"].tolist()) == ENCODED


@pytest.mark.parametrize("row", [{"age": 30, "grade": 1, "plan": "pro"}, frame().iloc[0]], ids=["dict", "series"])
def test_one_row_may_come_alone(row: Any) -> None:
    assert model().encode(row)["categorical"].tolist() == [[1, 2]]


def test_whole_numbers_that_pandas_made_floats_for_a_gap_are_whole_numbers() -> None:
    assert model().encode(frame(grade=[1.0, float("nan")]))["categorical"][:, 0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (7, "a int holds no rows"),
        ("age", "a str holds no rows"),
        ([1, 2], "a list holds no rows"),
        (np.zeros((2, 3)), "a ndarray holds no rows"),
        (None, "a NoneType holds no rows"),
        ({**COLUMNS, "age": [30]}, "are columns of unequal length: 'grade' has 2 values, 'age' has 1"),
        ({**COLUMNS, "age": [30, "many"]}, "column 'age' cannot be read: "),
        (frame(age=[30, "many"]), "column 'age' cannot be read: "),
        (frame(age=[1j, 2]), "column 'age' cannot be read: "),
        (frame(age=[1 << 70, 2]), "column 'age' cannot be read: it holds a whole number of more than 64 bits"),
        ({**COLUMNS, "age": [1 << 70, 2]}, "column 'age' cannot be read: it holds a whole number of more than 64 bits"),
        ([{"age": 1 << 70}, {"age": 2}], "column 'age' cannot be read: it holds a whole number of more than 64 bits"),
        ({"age": 1 << 70}, "column 'age' cannot be read: it holds a whole number of more than 64 bits"),
        (frame(plan=pd.Series(["\ud800", "pro"], dtype=object)), "column 'plan' cannot be read: "),
        (pd.concat([frame(), frame()], axis=1), "have columns 'age', 'grade', 'plan' twice"),
        (pd.concat([frame(), frame()[["plan"]]], axis=1), "have column 'plan' twice"),
        (
            {**COLUMNS, "grade": [1.5, 2.0]},
            "'grade' is double and was fitted as whole numbers, and holds another in row 0",
        ),
        (
            {**COLUMNS, "grade": pa.array([None, 1 << 63], pa.uint64())},
            "'grade' is uint64 and was fitted as whole numbers, and holds one of more than 63 bits in row 1",
        ),
        ({**COLUMNS, "grade": ["1", "2"]}, "column 'grade' is string and was fitted as whole numbers"),
        ({**COLUMNS, "plan": [1, 2]}, "column 'plan' is int64 and was fitted as texts"),
        ({**COLUMNS, "age": ["30", "40"]}, "column 'age' is string and was fitted as numbers"),
        ({"age": [1], "grade": [1]}, "there is no column 'plan'; there are age, grade"),
        (pa.table([[1], [2], [1], ["pro"]], names=["age", "age", "grade", "plan"]), "column 'age' stands there twice"),
        ({}, "there is no column 'age'; there are none"),
    ],
)
def test_what_holds_no_such_rows_is_refused_in_a_sentence(rows: Any, what: str) -> None:
    with pytest.raises(DataError, match=what) as refused:
        model().predict(rows)
    assert refused.value.where == "rows to predict" and refused.value.advice


def test_a_misspelt_column_is_named_unless_the_model_reads_it_too() -> None:
    with pytest.raises(DataError, match="there is no column 'plan'") as refused:
        model().predict({"age": [1], "grade": [1], "Plan": ["pro"]})
    assert refused.value.advice.startswith("Did you mean 'Plan'?")
    with pytest.raises(DataError, match="there is no column 'age'") as refused:
        model().predict({"grade": [1], "plan": ["pro"]})
    assert "Did you mean" not in refused.value.advice


@pytest.mark.parametrize("gap", [None, float("nan")])
def test_a_missing_number_is_refused_with_advice_for_who_asks(gap: float | None) -> None:
    with pytest.raises(DataError, match="column 'age' is null or NaN in row 1") as refused:
        model().predict({**COLUMNS, "age": [30, gap]})
    assert "on_missing='null'" in refused.value.advice and "contract" not in refused.value.advice


@pytest.mark.parametrize("gap", [None, float("nan"), float("inf"), -float("inf")])
def test_a_row_with_a_missing_number_is_null_on_request_and_the_others_are_predicted(gap: float | None) -> None:
    rows = {"age": [gap, 30, gap, 40], "grade": [1] * 4, "plan": ["pro"] * 4}
    assert model().predict(rows, on_missing="null")["prediction"].to_pylist() == [None, 30, None, 40]
    nothing = {**rows, "age": [gap] * 4}
    assert model().predict(nothing, on_missing="null")["prediction"].to_pylist() == [None] * 4


def test_a_missing_number_that_the_encoder_fills_is_predicted_in_either_way() -> None:
    rows = {**COLUMNS, "age": [None, 40]}
    for asked in ("refuse", "null"):
        made = model("mean", num_gaps=1).predict(rows, on_missing=asked)  # type: ignore[arg-type]
        assert made["prediction"].to_pylist() == [0, 40]


def test_a_missing_number_of_a_column_without_gaps_in_training_is_refused_though_others_had_some() -> None:
    rows = {**COLUMNS, "age": [30, None]}
    with pytest.raises(DataError, match="column 'age' is null or NaN in row 1"):
        model("mean").predict(rows)
    assert model("mean").predict(rows, on_missing="null")["prediction"].to_pylist() == [30, None]


def test_a_number_that_the_model_cannot_hold_is_refused() -> None:
    with pytest.raises(DataError, match=r"column 'age' is too large a number .* in row 1"):
        model().predict({**COLUMNS, "age": [30, 1e300]})


@pytest.mark.parametrize("classes", [(), ("stay", "leave")], ids=["number", "class"])
def test_a_row_for_which_the_models_arithmetic_overflows_is_refused_by_its_number_and_column(
    classes: tuple[str, ...],
) -> None:
    graph = nn.Sequential(Squared(), nn.Linear(1, max(1, len(classes))))
    asked = model(graph=graph, classes=classes)
    assert asked.predict(COLUMNS).num_rows == 2
    rows = {**COLUMNS, "age": [30, 1e30]}
    for call in (asked.predict, asked.outputs):
        with pytest.raises(DataError, match=r"finite .*row 1.*column 'age'") as refused:
            call(rows)
        assert refused.value.where == "rows to predict" and refused.value.advice


def test_a_refused_row_keeps_its_number_where_others_are_null() -> None:
    rows = {"age": [None, 30, None, 1e30], "grade": [1] * 4, "plan": ["pro"] * 4}
    with pytest.raises(DataError, match="row 3"):
        model(graph=Squared()).predict(rows, on_missing="null")
    with pytest.raises(DataError, match="in row 3"):
        model().predict({**rows, "age": [None, 30, None, 1e300]}, on_missing="null")


def test_a_misspelt_way_with_missing_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match="not 'skip'"):
        model().predict(COLUMNS, on_missing="skip")  # type: ignore[arg-type]


MOMENTS = [datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=5 * n) for n in range(200)]


def model_of_times(missing: str = "refuse", zone: str | None = None) -> TableModel:
    """Answers with how far through training a moment is."""
    spec = TabularEncoderSpec(times=("at",), missing=missing)  # type: ignore[arg-type]
    fit, rows = TabularFit(spec), np.arange(len(MOMENTS))
    fit.add(block_of(pa.record_batch({"at": pa.array(MOMENTS, pa.timestamp("us", tz=zone))}), rows))
    statistics = fit.statistics()
    return dataclasses.replace(
        model(missing),
        encoder=TabularEncoder(spec, statistics),
        recipe=SimpleNamespace(inputs=lambda columns: columns["numeric"][:, :1]),
        fitted_types={"at": fitted_type(TimeStatistics.model_validate(statistics["times"][0]))},
    )


@pytest.mark.parametrize(
    "at",
    [
        ["2026-01-01", "2026-01-01 05:00:00", "2026-01-01T10:00:00.000"],
        MOMENTS[:3],
        pd.to_datetime(pd.Series(MOMENTS[:3])),
        pd.Series(MOMENTS[:3]).astype("datetime64[s]"),
        [pd.Timestamp(each) for each in MOMENTS[:3]],
        np.array(MOMENTS[:3], dtype="datetime64[ms]"),
    ],
    ids=["texts", "datetimes", "pandas", "seconds", "stamps", "numpy"],
)
def test_times_are_taken_as_people_have_them(at: Any) -> None:
    asked = model_of_times()
    expected = asked.encode({"at": pa.array(MOMENTS[:3], pa.timestamp("us"))})["numeric"]
    assert np.array_equal(asked.encode({"at": at})["numeric"], expected)
    assert np.array_equal(asked.encode(pd.DataFrame({"at": at}))["numeric"], expected)


def test_a_date_is_its_first_moment_and_one_row_may_come_alone() -> None:
    asked = model_of_times()
    for at in ("2026-01-02", datetime.date(2026, 1, 2), pd.Timestamp("2026-01-02")):
        assert asked.encode({"at": at})["numeric"][0, 0] == pytest.approx(24 / (5 * 199) * 2 - 1)


def test_times_with_a_zone_are_asked_for_with_one() -> None:
    zoned, plain = model_of_times(zone="Europe/Berlin"), model_of_times()
    at = ["2026-01-01T06:00:00+01:00", "2026-01-01T05:00:00Z"]
    assert len(set(zoned.encode({"at": at})["numeric"][:, 0])) == 1
    stamps = pd.to_datetime(pd.Series(at), utc=True).dt.tz_convert("Asia/Tokyo")
    assert np.array_equal(zoned.encode({"at": stamps})["numeric"], zoned.encode({"at": at})["numeric"])
    for rows, asked in ((["2026-01-01T05:00:00"], zoned), (at, plain), (MOMENTS, zoned), (stamps, plain)):
        with pytest.raises(
            DataError, match=r"column 'at' is .* and was fitted as (times with|dates, or times without)"
        ):
            asked.encode({"at": rows})


def test_a_text_that_is_no_time_is_named_by_its_row_and_not_quoted() -> None:
    with pytest.raises(DataError, match="holds another text in row 1") as refused:
        model_of_times().encode({"at": ["2026-01-01", "yesterday"]})
    assert "yesterday" not in str(refused.value)
    assert "2026-01-31 or 2026-01-31T14:30:00" in refused.value.advice
    with pytest.raises(DataError, match="column 'at' is int64 and was fitted as dates"):
        model_of_times().encode({"at": [1]})


def test_a_missing_time_is_refused_answered_with_null_or_no_time_at_all() -> None:
    rows = {"at": ["2026-01-01", None]}
    with pytest.raises(DataError, match="column 'at' is null in row 1"):
        model_of_times().predict(rows)
    assert model_of_times().predict(rows, on_missing="null")["prediction"].to_pylist() == [-1.0, None]
    assert model_of_times("mean").predict(rows)["prediction"].to_pylist() == [-1.0, 0.0]


def test_a_model_is_one_line_where_it_is_printed() -> None:
    assert repr(model()) == "<TableModel toy version 1: 3 columns to a number>"
    assert repr(model(classes=("stay", "leave"))) == "<TableModel toy version 1: 3 columns to a class of 2>"
