"""Parquet files are read in bounded batches, whatever their footers say."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.parquet_files import BATCH_BYTES, MAX_EXPANSION, read_batches

pytestmark = pytest.mark.process


@pytest.mark.parametrize("as_list", [False, True])
def test_texts_that_are_not_utf_8_are_refused_by_their_column(tmp_path: Path, as_list: bool) -> None:
    ends = np.array([0, 1, 3, 4], np.int32)
    column = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(ends), pa.py_buffer(b"a\xff\xfeb")])
    if as_list:
        column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), column)
    pq.write_table(pa.table({"n": [1, 2, 3], "text": column}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet: column `text`: holds texts that are not UTF-8") as refused:
        list(read_batches(tmp_path / "x.parquet", "x.parquet"))
    assert "Write it as binary, or as UTF-8" in refused.value.advice


NUM_ROWS = 60_000
NUM_TRAPS = 20_000
VALUE = "x" * 20_000
READ = """
import re, sys
from pathlib import Path
import numpy, pyarrow.compute, pyarrow.parquet
from headway.data_contracts.tables.parquet_files import pieces, read_batches, read_footer
from headway.data_contracts.tables.row_batches import Conformer
def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
begun_kib = peak_kib()
path, num_rows = sys.argv[1], 0
conformer = Conformer(read_footer(path, path).columns, {})
for batch in read_batches(path, path):
    for piece in pieces(batch):
        num_rows += conformer.conform(piece).num_rows
print(num_rows, peak_kib() - begun_kib)
"""


def shared(num_values: int, kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * num_values, pa.int32()), pa.array([VALUE]).cast(kind))


def listed(kind: pa.DataType) -> pa.Array:
    values = shared(NUM_TRAPS * 2, kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, kind.list_size)
    ends = range(0, NUM_TRAPS * 2 + 1, 2)
    of = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return of.from_arrays(list(ends), values)


def written(folder: Path, column: pa.Array, **options: object) -> Path:
    path = folder / "trap.parquet"
    pq.write_table(pa.table({"c": column, "n": range(len(column))}), path, compression="zstd", **options)
    assert path.stat().st_size < 1 << 20
    return path


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_value_that_stands_in_a_small_file_once_and_in_each_of_its_rows_fills_no_memory(
    tmp_path: Path, kind: pa.DataType
) -> None:
    first = 0
    for batch in read_batches(path := written(tmp_path, shared(NUM_ROWS, kind), store_schema=False), str(path)):
        assert batch.nbytes <= MAX_EXPANSION * BATCH_BYTES + (1 << 20)
        assert batch.column("n").to_pylist() == list(range(first, first + batch.num_rows))
        assert batch.column("c").type == kind and len(batch.column("c")[0].as_py()) == len(VALUE)
        first += batch.num_rows
    assert first == NUM_ROWS


TRAPS = {
    "texts in lists": lambda: listed(pa.list_(pa.string())),
    "bytes in lists": lambda: listed(pa.list_(pa.binary())),
    "texts in large lists": lambda: listed(pa.large_list(pa.string())),
    "texts in lists of one length": lambda: listed(pa.list_(pa.string(), 2)),
    "JSON": lambda: pa.ExtensionArray.from_storage(pa.json_(), pa.array([VALUE] * NUM_TRAPS)),
    "bytes of one length": lambda: pa.array([VALUE.encode()] * NUM_TRAPS, pa.binary(20_000)),
    "numbers in lists": lambda: pa.ListArray.from_arrays(
        np.arange(NUM_TRAPS + 1, dtype=np.int32) * 2500, np.full(NUM_TRAPS * 2500, 7)
    ),
}
"""What takes 400 MB or more as rows, and kilobytes as a file."""


@pytest.mark.parametrize("trap", TRAPS)
def test_a_small_file_of_large_rows_is_read_in_little_memory(tmp_path: Path, trap: str) -> None:
    path = written(tmp_path, TRAPS[trap]())
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    num_rows, grown_kib = map(int, done.stdout.split())
    assert num_rows == NUM_TRAPS
    assert grown_kib << 10 <= 20 * BATCH_BYTES


def test_one_row_whose_list_repeats_a_text_beyond_all_memory_is_refused_by_column(tmp_path: Path) -> None:
    values = shared(NUM_ROWS, pa.string())
    path = written(tmp_path, pa.ListArray.from_arrays([0, 3, NUM_ROWS], values))
    with pytest.raises(DataError, match=r"trap\.parquet: column `c`: .*1,199,940,000 bytes in one row.*smaller rows"):
        list(read_batches(path, str(path)))


@pytest.mark.parametrize("store_schema", [True, False])
def test_texts_come_as_they_were_written(tmp_path: Path, store_schema: bool) -> None:
    draw = random.Random(0)
    texts = [draw.choice([None, "", "a", "ä" * 9, "long" * 2000, f"{draw.random()}"]) for _ in range(5000)]
    lists = [draw.choice([None, [], draw.choices(texts, k=draw.randrange(4))]) for _ in texts]
    pairs = [draw.choices(texts, k=2) for _ in texts]  # a null one cannot be read from Parquet
    table = pa.table(
        {
            "text": texts,
            "large": pa.array(texts, pa.large_string()),
            "view": pa.array(texts, pa.string_view()),
            "bytes": pa.array([None if each is None else each.encode() for each in texts], pa.binary()),
            "category": pa.array(texts).dictionary_encode(),
            "list": lists,
            "large list": pa.array(lists, pa.large_list(pa.large_string())),
            "pair": pa.array(pairs, pa.list_(pa.string(), 2)),
            "numbers": [None if each is None else list(range(len(each))) for each in lists],
            "number": range(5000),
        }
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path, row_group_size=700, store_schema=store_schema)
    read = pa.Table.from_batches(read_batches(path, str(path)))
    assert read.to_pylist() == table.to_pylist()
    assert [read.schema.field(name).type for name in ("text", "bytes")] == [pa.string(), pa.binary()]


def altered(folder: Path, was: bytes, becomes: bytes) -> Path:
    """A file of 40 rows with other bytes in its footer."""
    path = folder / "altered.parquet"
    table = pa.table({"n": range(40), "l": [[1.5] * (row % 3) for row in range(40)]})
    pq.write_table(table, path, compression="none")
    data = path.read_bytes()
    assert was in data[-1000:]
    path.write_bytes(data[:-1000] + data[-1000:].replace(was, becomes, 1))
    return path


UNCOMPRESSED, NUM_VALUES, OPTIONAL, REQUIRED, NAME = b"\x15\x00", b"\x16", b"\x35\x02", b"\x35\x00", b"\x18\x01l"


def test_a_file_whose_pages_hold_fewer_rows_than_its_footer_says_is_refused(tmp_path: Path) -> None:
    path = altered(tmp_path, UNCOMPRESSED + NUM_VALUES + b"\x50", UNCOMPRESSED + NUM_VALUES + b"\x00")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        list(read_batches(path, str(path)))


def test_a_footer_whose_statistics_do_not_fit_its_columns_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    path = altered(tmp_path, OPTIONAL + NAME, REQUIRED + NAME)
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "DataError: " in done.stderr and "not a readable Parquet file" in done.stderr
