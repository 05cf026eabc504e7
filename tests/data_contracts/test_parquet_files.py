"""Parquet files are read in bounded batches, whatever their footers say."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.parquet_files import BATCH_BYTES, MOST_TIMES, read_batches

NUM_ROWS = 60_000


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_value_that_stands_in_a_small_file_once_and_in_each_of_its_rows_fills_no_memory(
    tmp_path: Path, kind: pa.DataType
) -> None:
    value = "x" * 20_000
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * NUM_ROWS, pa.int32()), pa.array([value]).cast(kind))
    path = tmp_path / "trap.parquet"
    table = pa.table({"text": shared, "n": range(NUM_ROWS)})
    pq.write_table(table, path, store_schema=False, compression="zstd")
    assert path.stat().st_size < 1 << 20
    first = 0
    for batch in read_batches(path, str(path)):
        assert batch.nbytes <= MOST_TIMES * BATCH_BYTES + (1 << 20)
        assert batch.column("n").to_pylist() == list(range(first, first + batch.num_rows))
        assert batch.column("text").type == kind and len(batch.column("text")[0].as_py()) == len(value)
        first += batch.num_rows
    assert first == NUM_ROWS


def test_texts_come_as_they_were_written(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [draw.choice([None, "", "a", "ä" * 9, f"{draw.random()}"]) for _ in range(5000)]
    table = pa.table(
        {
            "text": texts,
            "large": pa.array(texts, pa.large_string()),
            "bytes": pa.array([None if each is None else each.encode() for each in texts], pa.binary()),
            "category": pa.array(texts).dictionary_encode(),
            "list": [[each, "b"] for each in texts],
            "number": range(5000),
        }
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path, row_group_size=700)
    read = pa.Table.from_batches(read_batches(path, str(path)))
    assert read.to_pylist() == table.to_pylist()
    assert [read.schema.field(name).type for name in ("text", "bytes")] == [pa.string(), pa.binary()]
