"""Figures are exact, and the same whatever parts they are put together from."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.data_contracts.scans.figures import Scalar, exact_sum, sum_of


def grouped(values: list[float | None]) -> dict[int, int]:
    figure = exact_sum("x")
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (x DOUBLE)")
        if values:
            connection.executemany("INSERT INTO t VALUES (?)", [[value] for value in values])
        keyed = f"SELECT {figure.key_sql} AS key, {figure.weight_sql} AS weight FROM t"
        rows = connection.execute(f"SELECT key, sum(weight) FROM ({keyed}) GROUP BY key").fetchall()
    return {int(key): int(weight) for key, weight in rows}


@pytest.mark.process
@settings(max_examples=40)
@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)), max_size=30))
@example([1.8446744073709509e19])  # just below a power of two
@example([5e-324, -1.7976931348623157e308])
def test_a_sum_of_doubles_is_exact(values: list[float | None]) -> None:
    assert sum_of(grouped(values)) == sum((Fraction(value) for value in values if value is not None), Fraction(0))


def test_the_parts_of_a_sum_may_be_put_together_in_any_way() -> None:
    values = [float(value) for value in np.random.default_rng(0).normal(size=300) * 10.0 ** np.arange(-150, 150)]
    whole = exact_sum("x").merged([grouped(values)])
    assert exact_sum("x").merged([grouped(values[200:]), grouped(values[:50]), grouped(values[50:200])]) == whole
    assert float(sum_of(whole)) == math.fsum(values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, math.inf], math.inf),
        ([-math.inf, 5.0], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, math.inf], math.nan),
    ],
)
def test_what_is_no_number_makes_the_sum_none(values: list[float | None], expected: float) -> None:
    found = sum_of(grouped(values))
    assert found == expected or (math.isnan(float(found)) and math.isnan(expected))


def test_nan_is_the_greatest_and_never_the_least_as_in_the_database() -> None:
    assert math.isnan(Scalar("max(x)", merge="max").merged([1.0, math.nan, None]))
    assert Scalar("min(x)", merge="min").merged([1.0, math.nan, None]) == 1.0
    assert math.isnan(Scalar("min(x)", merge="min").merged([math.nan]))
    assert Scalar("min(x)", merge="min").merged([None]) is None
    assert Scalar("max(x)", merge="max").merged([1, 3, 2]) == 3
    assert Scalar("min(x)", merge="min").merged([2, 1, 3]) == 1
    assert Scalar("count(*)").merged([None, 2, 3]) == 5
