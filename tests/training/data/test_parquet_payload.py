from __future__ import annotations

import json
import zlib
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.documents import PayloadColumn
from data_contracts.errors import IntegrityError
from training.data import parquet_payload
from training.data.parquet_payload import Bytes2D, payload_of, shard_bytes

COLUMNS = (PayloadColumn(name="x", dtype="uint16", shape=(3,)), PayloadColumn(name="y", dtype="int32", shape=(1,)))


def payloads(num_rows: int) -> dict[str, Bytes2D]:
    random = np.random.default_rng(0)
    x = random.integers(0, 1 << 16, (num_rows, 3)).astype(np.uint16)
    y = random.integers(-9, 9, (num_rows, 1)).astype(np.int32)
    return {"x": payload_of(COLUMNS[0], x), "y": payload_of(COLUMNS[1], y)}


@pytest.mark.parametrize(("num_rows", "rows_per_row_group"), [(1, 1), (7, 3), (50_000, 50_000), (50_001, 25_000)])
def test_recorded_offsets_and_crcs_find_the_payload(num_rows: int, rows_per_row_group: int) -> None:
    source = payloads(num_rows)
    data, row_groups = shard_bytes(COLUMNS, source, rows_per_row_group)
    assert sum(row_group.num_rows for row_group in row_groups) == num_rows
    first = 0
    for row_group in row_groups:
        for column, chunk in zip(COLUMNS, row_group.chunks, strict=True):
            expected = source[column.name][first : first + row_group.num_rows].tobytes()
            assert data[chunk.offset_bytes : chunk.offset_bytes + len(expected)] == expected
            assert chunk.crc32 == zlib.crc32(expected)
        first += row_group.num_rows


def test_the_file_is_ordinary_parquet_to_other_readers(tmp_path: Path) -> None:
    source = payloads(500)
    path = tmp_path / "shard.parquet"
    path.write_bytes(shard_bytes(COLUMNS, source, 128)[0])
    table = pq.read_table(path, page_checksum_verification=True)
    assert b"".join(table["x"].to_pylist()) == source["x"].tobytes()
    query = f"select count(*), count(distinct x), min(octet_length(y)) from '{path}'"
    found = duckdb.connect().execute(query).fetchall()
    assert found == [(500, len({row.tobytes() for row in source["x"]}), 4)]


def test_columns_are_required_plain_uncompressed_one_page_each_without_statistics() -> None:
    footer = pq.read_metadata(pa.BufferReader(shard_bytes(COLUMNS, payloads(300), 128)[0]))
    assert [footer.row_group(number).num_rows for number in range(footer.num_row_groups)] == [128, 128, 44]
    for number in range(footer.num_row_groups):
        for index in range(len(COLUMNS)):
            chunk = footer.row_group(number).column(index)
            assert (chunk.physical_type, chunk.compression) == ("FIXED_LEN_BYTE_ARRAY", "UNCOMPRESSED")
            assert set(chunk.encodings) <= {"PLAIN", "RLE"}
            assert not chunk.is_stats_set
            assert not chunk.has_dictionary_page
    assert all(footer.schema.column(index).max_definition_level == 0 for index in range(len(COLUMNS)))
    assert {key: json.loads(value) for key, value in footer.metadata.items()} == {
        parquet_payload.LAYOUT_KEY: [column.model_dump(mode="json") for column in COLUMNS]
    }


def test_a_payload_of_another_shape_or_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="column x"):
        payload_of(COLUMNS[0], np.zeros((2, 4), dtype=np.uint16))
    with pytest.raises(ValueError, match="column x"):
        payload_of(COLUMNS[0], np.zeros((2, 3), dtype=np.uint32))


def test_a_writer_that_lays_files_out_in_another_way_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def several_pages(sink: object, schema: object) -> object:
        return pq.ParquetWriter(sink, schema, compression="none", use_dictionary=False, max_rows_per_page=10)

    monkeypatch.setattr(parquet_payload, "_writer", several_pages)
    with pytest.raises(IntegrityError, match="laid column x out in an unknown way"):
        shard_bytes(COLUMNS, payloads(100), 100)
