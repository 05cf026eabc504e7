from __future__ import annotations

import json
import zlib
from io import BytesIO
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.documents import PayloadColumn, RowGroup
from headway.training.config.shards import Codec
from headway.training.data.shards import parquet_payload
from headway.training.data.shards.parquet_payload import Bytes2D, payload_of, write_shard

COLUMNS = (PayloadColumn(name="x", dtype="uint16", shape=(3,)), PayloadColumn(name="y", dtype="int32", shape=(1,)))


def payloads(num_rows: int) -> dict[str, Bytes2D]:
    random = np.random.default_rng(0)
    x = random.integers(0, 1 << 16, (num_rows, 3)).astype(np.uint16)
    y = random.integers(-9, 9, (num_rows, 1)).astype(np.int32)
    return {"x": payload_of(COLUMNS[0], x), "y": payload_of(COLUMNS[1], y)}


def shard_bytes(
    columns: tuple[PayloadColumn, ...], source: dict[str, Bytes2D], rows_per_row_group: int, codec: Codec = "none"
) -> tuple[bytes, tuple[RowGroup, ...]]:
    def gather(first: int, last: int) -> dict[str, Bytes2D]:
        return {name: rows[first:last] for name, rows in source.items()}

    sink = BytesIO()
    row_groups = write_shard(sink, columns, gather, len(source["x"]), rows_per_row_group, codec)
    return sink.getvalue(), row_groups


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


def test_payloads_start_at_multiples_of_their_rows_bytes() -> None:
    columns = tuple(PayloadColumn(name=f"c{width}", dtype="uint8", shape=(width,)) for width in (1, 6, 60, 4096, 65537))
    data = {column.name: np.zeros((20, *column.shape), np.uint8) for column in columns}
    sink = BytesIO()
    row_groups = write_shard(
        sink, columns, lambda first, last: {name: rows[first:last] for name, rows in data.items()}, 20, 7
    )
    assert len(row_groups) == 3
    for held in row_groups:
        steps = [min(column.shape[0], 1 << 16) for column in columns[:-1]] + [4096]  # of the widest, a page
        assert [chunk.offset_bytes % step for chunk, step in zip(held.chunks, steps, strict=True)] == [0] * 5
    padded = len(sink.getvalue()) - sum(rows.nbytes for rows in data.values())
    assert padded < 3 * (1 + 6 + 60 + 4096 + 4096 + 5 * 64) + 2000  # less than a row a page, headers and the footer


def test_a_shard_of_many_columns_and_row_groups_is_read_back() -> None:
    """More than 15 of anything takes the long form of a list's header."""
    columns = tuple(PayloadColumn(name=f"c{number}", dtype="uint8", shape=(number + 1,)) for number in range(20))
    random = np.random.default_rng(0)
    source = {column.name: random.integers(0, 256, (100, *column.shape)).astype(np.uint8) for column in columns}

    def gather(first: int, last: int) -> dict[str, Bytes2D]:
        return {name: rows[first:last] for name, rows in source.items()}

    sink = BytesIO()
    write_shard(sink, columns, gather, 100, 5)
    table = pq.read_table(pa.BufferReader(sink.getvalue()), page_checksum_verification=True)
    assert {name: b"".join(table[name].to_pylist()) for name in table.column_names} == {
        name: rows.tobytes() for name, rows in source.items()
    }


@given(st.binary(min_size=1, max_size=40), st.integers(0))
def test_readers_notice_a_flipped_bit_of_a_page(data: bytes, position: int) -> None:
    column = PayloadColumn(name="x", dtype="uint8", shape=(1,))
    rows = np.frombuffer(data, dtype=np.uint8)[:, None]
    sink = BytesIO()
    (row_group,) = write_shard(sink, (column,), lambda first, last: {"x": rows[first:last]}, len(rows), 100)
    bad = bytearray(sink.getvalue())
    bad[row_group.chunks[0].offset_bytes + position % len(data)] ^= 1 << position % 8
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(pa.BufferReader(bytes(bad)), page_checksum_verification=True)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_cold_shard_is_smaller_and_holds_the_payload_that_its_crcs_name(codec: Codec) -> None:
    source = {name: np.sort(rows, axis=0) for name, rows in payloads(50_000).items()}
    hot, hot_groups = shard_bytes(COLUMNS, source, 25_000)
    cold, cold_groups = shard_bytes(COLUMNS, source, 25_000, codec)
    assert len(cold) < len(hot)
    table = pq.read_table(pa.BufferReader(cold), page_checksum_verification=True)
    assert b"".join(table["x"].to_pylist()) == source["x"].tobytes()
    assert [[chunk.crc32 for chunk in held.chunks] for held in cold_groups] == [
        [chunk.crc32 for chunk in held.chunks] for held in hot_groups
    ]
    footer = pq.read_metadata(pa.BufferReader(cold))
    assert footer.row_group(0).column(0).compression == {"lz4": "LZ4", "zstd": "ZSTD"}[codec]
