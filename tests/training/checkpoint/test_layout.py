"""Layout: slices are proved to make up whole tensors."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.documents import TensorSlice
from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.layout import (
    check_layout,
    checkpoint_path,
    directory_name,
    parse_header,
    step_of,
)


def piece(offsets, shape, *, tensor="w", file="a", dtype="float32", global_shape=(4, 6)) -> TensorSlice:
    return TensorSlice(tensor=tensor, file=file, dtype=dtype, global_shape=global_shape, offsets=offsets, shape=shape)


@pytest.mark.parametrize("step", [0, 7, 120, 99_999_999])
def test_a_folders_name_gives_its_step_back(step):
    assert step_of(directory_name(step)) == step
    assert checkpoint_path("runs/x", step) == f"runs/x/checkpoints/{directory_name(step)}"


@pytest.mark.parametrize(
    "name", ["step-12", ".step-00000012", "step-0000001x", "step-٠٠٠٠٠٠١٢", "result", "step--0000001"]
)
def test_other_names_are_no_checkpoints(name):
    assert step_of(name) is None


def test_slices_that_tile_a_tensor_are_a_layout():
    check_layout([piece((0, 0), (2, 6)), piece((2, 0), (2, 1), file="b"), piece((2, 1), (2, 5))], {"a", "b"})
    check_layout([piece((), (), global_shape=())], {"a"})


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([piece((0, 0), (3, 6))], "gap"),
        ([piece((0, 0), (4, 6)), piece((3, 0), (1, 6))], "overlap"),
        ([piece((0, 0), (2, 6)), piece((1, 0), (2, 6))], "overlap"),
        ([piece((1, 0), (4, 6))], "stick out"),
        ([piece((-1, 0), (4, 6))], "stick out"),
        ([piece((0,), (4, 6))], "stick out"),
        ([piece((0, 0), (2, 6)), piece((2, 0), (2, 6), dtype="float16")], "disagree"),
        ([piece((0, 0), (2, 6)), piece((2, 0), (2, 6), global_shape=(6, 6))], "disagree"),
        ([piece((0, 0), (4, 6), file="c")], "unlisted file"),
        ([piece((0, 0), (4, 6), dtype="object")], "unknown type"),
    ],
)
def test_anything_else_is_refused_with_the_tensors_name(pieces, problem):
    with pytest.raises(IntegrityError, match=f"tensor w: .*{problem}"):
        check_layout(pieces, {"a", "b"})


@pytest.mark.parametrize(
    "shape", [["a", 10**12], ["a" * 50, 10**9], [-1, -4], [True, 4], [4.0], "1111", {"4": 1}, [[4]], [None], 4]
)
def test_a_header_whose_shape_is_none_is_refused_at_once(shape):
    """A text times a length fills the memory, and so many dimensions of -1 make a number as large as any."""
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}).encode()
    with pytest.raises((ValueError, TypeError)):
        parse_header(header)


def test_a_header_whose_offsets_are_none_is_refused():
    for offsets in ([0, 16.0], [False, 16], ["0", "16"], [0], [0, 16, 32], None):
        with pytest.raises((ValueError, TypeError)):
            parse_header(json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": offsets}}).encode())


RECTANGLES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=6
)


@given(RECTANGLES)
def test_a_layout_is_one_exactly_where_every_element_lies_in_one_slice(rectangles):
    pieces = [piece((row, column), (rows, columns)) for row, column, rows, columns in rectangles]
    covered = [
        element
        for row, column, rows, columns in rectangles
        for element in itertools.product(range(row, row + rows), range(column, column + columns))
    ]
    sticks_out = any(row + rows > 4 or column + columns > 6 for row, column, rows, columns in rectangles)
    is_layout = not sticks_out and sorted(covered) == list(itertools.product(range(4), range(6)))
    try:
        check_layout(pieces, {"a"})
    except IntegrityError:
        assert not is_layout
    else:
        assert is_layout


@pytest.mark.parametrize("along", [0, 1])
def test_a_tensor_of_very_many_slices_is_checked_at_once(along):
    many = 20_000
    shape = tuple(many if dimension == along else 2 for dimension in range(2))
    offsets = [tuple(number if dimension == along else 0 for dimension in range(2)) for number in range(many)]
    one = tuple(1 if dimension == along else 2 for dimension in range(2))
    check_layout([piece(each, one, global_shape=shape) for each in offsets], {"a"})
    assert math.prod(shape) == 2 * many
