from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.errors import DataError
from headway.training.config.encoder_specs import TokenIdsSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.packing import NUM_MARKERS, unpack
from headway.training.data.encode.token_ids import TokenIdsEncoder

SPEC = TokenIdsSpec(vocab_size=50, sequence_tokens=8)


def block(lists: list[Any], kind: pa.DataType | None = None, path: str = "ids.parquet") -> SourceBlock:
    batch = pa.RecordBatch.from_pydict({"tokens": pa.array(lists, kind or pa.list_(pa.int32()))})
    numbers = np.arange(len(lists), dtype=np.int64)
    return SourceBlock(path, numbers, numbers.astype(np.uint64), batch)


def encoded(spec: TokenIdsSpec, blocks: list[SourceBlock]) -> np.ndarray:
    stream = TokenIdsEncoder(spec).stream(0)
    made = [part for held in blocks for part in stream.push(held)]
    made += list(stream.finish())
    return np.concatenate([part.values["tokens"] for part in made])


DOCUMENTS = st.lists(st.lists(st.integers(0, 49), max_size=30), min_size=1, max_size=10)


@given(DOCUMENTS.filter(any), st.integers(0, 10))
def test_documents_come_back_whatever_ids_they_use(documents: list[list[int]], cut: int) -> None:
    blocks = [block(part) for part in (documents[:cut], documents[cut:]) if part]
    found = unpack(encoded(SPEC, blocks))
    assert [(tokens - NUM_MARKERS).tolist() for tokens in found] == documents


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.uint16()), pa.list_(pa.int8(), 3)], ids=str)
def test_any_list_of_whole_numbers_will_do(kind: pa.DataType) -> None:
    lists = [[1, 2, 3], [4, 5, 49]]
    assert np.array_equal(encoded(SPEC, [block(lists, kind)]), encoded(SPEC, [block(lists)]))


def test_sliced_batches_are_read_where_their_slice_lies() -> None:
    held = block([[1], [2, 3], [4, 5, 6], [7]])
    sliced = held._replace(batch=held.batch.slice(1, 2), row_numbers=held.row_numbers[1:3], ids=held.ids[1:3])
    assert np.array_equal(encoded(SPEC, [sliced]), encoded(SPEC, [block([[2, 3], [4, 5, 6]])]))


def test_a_large_vocabulary_takes_32_bits() -> None:
    spec = TokenIdsSpec(vocab_size=100_000, sequence_tokens=4)
    rows = encoded(spec, [block([[99_999, 0]])])
    assert rows.dtype == np.uint32
    assert rows[0, 1:3].tolist() == [100_001, 2]
    assert TokenIdsEncoder(TokenIdsSpec(vocab_size=65_534)).columns[0].dtype == "uint16"


@pytest.mark.parametrize(
    ("lists", "kind", "message"),
    [
        ([[1], [2, 50], [3]], None, r"holds an id outside \[0, 50\) in row 1"),
        ([[], [], [0, -1]], None, r"outside \[0, 50\) in row 2"),
        ([[1], None], None, "is null in row 1"),
        ([[1, None]], None, "holds a null"),
        ([[1.0]], pa.list_(pa.float32()), "holds float, not whole numbers"),
        ([1], pa.int64(), "is int64, not a list of tokens"),
    ],
)
def test_what_is_no_list_of_known_ids_is_refused_by_row(
    lists: list[Any], kind: pa.DataType | None, message: str
) -> None:
    with pytest.raises(DataError, match=f"ids.parquet: .*{message}"):
        encoded(SPEC, [block(lists, kind)])
