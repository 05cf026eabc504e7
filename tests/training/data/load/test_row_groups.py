from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.training.data.load.row_groups import RowGroupTable

SIZES = st.lists(st.one_of(st.integers(0, 3), st.integers(1, 200)), min_size=1, max_size=80).filter(any)


@given(SIZES)
def test_every_row_is_found_in_its_row_group(sizes: list[int]) -> None:
    table = RowGroupTable(sizes)
    assert table.num_rows == sum(sizes)
    expected = np.repeat(np.arange(len(sizes)), sizes)
    assert np.array_equal(table.find(np.arange(table.num_rows)), expected)


def test_crowds_of_tiny_row_groups_between_large_ones_are_told_apart() -> None:
    sizes = [100_000, *[1] * 500, 100_000, *[0] * 50, 7]
    table = RowGroupTable(sizes)
    assert np.array_equal(table.find(np.arange(table.num_rows)), np.repeat(np.arange(len(sizes)), sizes))


@pytest.mark.parametrize("rows", [[-1], [10], [0, 9, 10], [2**62]])
def test_a_row_out_of_range_is_refused(rows: list[int]) -> None:
    with pytest.raises(IndexError, match=r"a row outside range\(10\)"):
        RowGroupTable([4, 6]).find(np.array(rows))
    with pytest.raises(IndexError):
        RowGroupTable([]).find(np.array([0]))
