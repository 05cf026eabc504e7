"""Dates and times become the same parts in every batch, file and thread, within -1 and 1 whatever the row."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import DataError
from headway.training.config.encoder_specs import ENCODER_SPEC, TabularEncoderSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.data_shape import data_shape
from headway.training.data.encode.numeric_block import part_names
from headway.training.data.encode.table_statistics import TimeStatistics
from headway.training.data.encode.tabular import TabularEncoder, TabularFit

FIRST = datetime.datetime(2024, 1, 1)
HOURS = [FIRST + datetime.timedelta(hours=7 * n) for n in range(2000)]
"""Some 19 months."""


def block(values: Any, kind: pa.DataType | None = None, path: str = "a.parquet") -> SourceBlock:
    column = values if isinstance(values, pa.Array) else pa.array(values, kind)
    rows = np.arange(len(column))
    batch = pa.record_batch({"t": column, "y": pa.array([n % 2 for n in range(len(column))])})
    return SourceBlock(path, rows, rows.astype(np.uint64), batch)


def spec(**fields: Any) -> TabularEncoderSpec:
    return TabularEncoderSpec(times=("t",), label="y", **fields)


def fitted(blocks: Sequence[SourceBlock], **fields: Any) -> Json:
    fit = TabularFit(spec(**fields))
    for each in blocks:
        part = TabularFit(spec(**fields))
        part.add(each)
        fit.merge(part)
    return fit.statistics()


def parts(statistics: Json, values: Any, kind: pa.DataType | None = None, **fields: Any) -> NDArray[np.float32]:
    encoder = TabularEncoder(spec(**fields).model_copy(update={"label": None}), statistics)
    made: NDArray[np.float32] = encoder.encode(block(values, kind))["numeric"]
    assert encoder.columns[0].shape == made.shape[1:]
    return made


def test_a_moment_says_how_far_through_training_it_is_and_where_in_day_week_and_year() -> None:
    statistics = fitted([block(HOURS)])
    assert part_names(TimeStatistics.model_validate(statistics["times"][0])) == [
        "t: elapsed",
        *("t: day, sine", "t: day, cosine", "t: week, sine", "t: week, cosine", "t: year, sine", "t: year, cosine"),
    ]
    made = parts(statistics, [HOURS[0], HOURS[-1], datetime.datetime(2024, 7, 4, 18), datetime.datetime(2024, 1, 1, 6)])
    assert made[:, 0].tolist() == pytest.approx([-1, 1, -0.36282, -0.99914], abs=1e-4)
    assert made[:, 1:3] == pytest.approx(np.array([[0, 1], [0.2588, 0.9659], [-1, 0], [1, 0]]), abs=1e-3)
    assert made[0, 3:].tolist() == [0, 1, 0, 1], "a Monday, and the first day of a year"
    assert made[2, 3:5] == pytest.approx([np.sin(6 * np.pi / 7), np.cos(6 * np.pi / 7)], abs=1e-6)
    shape = data_shape(spec().model_dump(mode="json"), statistics)
    assert shape.num_numeric == 7


def test_the_order_of_files_and_the_batch_show_nowhere() -> None:
    blocks = [block(HOURS[:700]), block(HOURS[700:]), block([FIRST])]
    assert fitted(blocks) == fitted(blocks[::-1])
    statistics = fitted(blocks)
    assert np.array_equal(parts(statistics, HOURS)[1500:], parts(statistics, HOURS[1500:]))


@pytest.mark.parametrize(
    ("values", "cycles"),
    [
        (HOURS[:2], []),
        ([each.date() for each in HOURS[:20]], []),
        ([each.date() for each in HOURS], ["week", "year"]),
        ([FIRST + datetime.timedelta(days=n) for n in range(9)], ["week"]),
        ([FIRST + datetime.timedelta(weeks=n, hours=8) for n in range(99)], ["year"]),
        ([FIRST + datetime.timedelta(minutes=17 * n) for n in range(100)], ["day"]),
    ],
)
def test_a_cycle_that_training_did_not_see_whole_or_that_never_moves_is_no_part(values: Any, cycles: list[str]) -> None:
    assert fitted([block(values)])["times"][0]["cycles"] == cycles


def test_a_moment_outside_of_training_counts_as_its_first_or_last() -> None:
    statistics = fitted([block(HOURS)])
    far = [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)]
    made = parts(statistics, far)
    assert made[:, 0].tolist() == [-1, 1]
    assert np.abs(made).max() <= 1
    extremes = pa.array([-(1 << 63), (1 << 63) - 1], pa.timestamp("us"))
    assert np.abs(parts(statistics, extremes)).max() <= 1


def test_a_column_of_one_moment_says_nothing_of_any_other() -> None:
    statistics = fitted([block([FIRST] * 5)])
    assert parts(statistics, HOURS[:3]).tolist() == [[0.0]] * 3


def test_missing_moments_are_refused_or_neither_here_nor_there() -> None:
    with pytest.raises(DataError, match="column 't' is null in row 1"):
        fitted([block([FIRST, None])])
    statistics = fitted([block([*HOURS, None])], missing="mean")
    assert statistics == {**fitted([block(HOURS)], missing="mean"), "num_rows": len(HOURS) + 1}
    assert parts(statistics, [None, FIRST], missing="mean")[0].tolist() == [0.0] * 7
    with pytest.raises(DataError, match="no value in the training split"):
        fitted([block([None, None], pa.timestamp("us"))], missing="mean")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_every_unit_and_a_date_of_midnight_say_the_same(unit: str) -> None:
    statistics = fitted([block(HOURS)])
    expected = parts(statistics, [FIRST, HOURS[24]])
    assert np.array_equal(parts(statistics, [FIRST, HOURS[24]], pa.timestamp(unit)), expected)
    for kind in (pa.date32(), pa.date64()):
        assert np.array_equal(parts(statistics, [FIRST.date(), HOURS[24].date()], kind), expected)


def test_a_moment_of_a_zone_is_read_in_utc_and_never_mixed_with_one_of_none() -> None:
    utc, berlin = (pa.timestamp("us", tz=zone) for zone in ("UTC", "Europe/Berlin"))
    zoned = fitted([block(pa.array(HOURS, berlin))])
    assert zoned == fitted([block(pa.array(HOURS, utc))]), "the same moments"
    assert np.array_equal(parts(zoned, HOURS, utc), parts(zoned, HOURS, berlin))
    plain = fitted([block(HOURS)])
    with pytest.raises(DataError, match=r"timestamp\[us\] and was fitted as times with a zone"):
        parts(zoned, HOURS)
    with pytest.raises(DataError, match="was fitted as dates, or times without a zone"):
        parts(plain, HOURS, utc)
    with pytest.raises(DataError, match=r"has a zone in b\.parquet and none in a\.parquet"):
        fitted([block(HOURS), block(HOURS, utc, "b.parquet")])


def test_what_is_no_time_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="column 't' is string, neither a date nor a time"):
        fitted([block(["2024-01-01"])])
    with pytest.raises(DataError, match="more than 290,000 years"):
        fitted([block(pa.array([1 << 60], pa.timestamp("s")))])


def test_what_a_pipeline_without_times_was_fitted_and_asked_by_is_as_before() -> None:
    without = {"kind": "tabular", "numeric": ["x"], "label": "y"}
    assert "times" not in ENCODER_SPEC.validate_python(without).fitting
    fit = TabularFit(TabularEncoderSpec(numeric=("y",)))
    fit.add(block(HOURS))
    assert "times" not in fit.statistics()


def test_a_column_goes_to_one_place() -> None:
    with pytest.raises(ValueError, match="`t` in `numeric` and in `times`"):
        spec(numeric=("t",))
