"""One name for all Arrow types that hold the same values, and a reason for each type that rows cannot have."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.tables.row_batches import decoded
from headway.data_contracts.types.column_types import PLAIN_NAMES, UnknownType, arrow_type, type_name

NAMES = (
    *PLAIN_NAMES,
    *("timestamp[us, tz=Europe/Berlin]", "fixed_size_binary[16]", "decimal128(18, 2)", "decimal128(38, 0)"),
    *("list<int32>", "fixed_size_list<uint16>[256]", "list<decimal128(3, 1)>", "list<timestamp[us, tz=UTC]>"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_and_its_type_mean_each_other(name: str) -> None:
    assert type_name(arrow_type(name)) == name


@pytest.mark.parametrize("name", NAMES)
def test_a_type_survives_parquet(name: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.nulls(1, arrow_type(name))}), tmp_path / "x.parquet")
    assert type_name(pq.read_schema(tmp_path / "x.parquet").field("x").type) == name
    assert duckdb.sql(f"SELECT * FROM '{tmp_path}/x.parquet'").fetchall() == [(None,)]


@pytest.mark.parametrize(
    "name",
    [
        *("", "str", "integer", "decimal128(39, 0)", "decimal128(3, 4)", "list<list<int8>>", "list<>", "struct<>"),
        *("INT64", "fixed_size_binary[2147483648]", f"fixed_size_binary[{'9' * 5000}]", f"decimal128({'9' * 5000}, 0)"),
        *("fixed_size_list<int8>[2147483648]", f"fixed_size_list<int8>[{'9' * 5000}]"),
    ],
)
def test_what_is_no_type_is_refused(name: str) -> None:
    with pytest.raises(UnknownType, match="is no column type"):
        arrow_type(name)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pa.array(["a", None]).dictionary_encode(), "string"),
        (pa.array(["a", None], pa.large_string()), "string"),
        (pa.array(["a", None], pa.string_view()), "string"),
        (pa.array([b"a", None], pa.binary_view()), "binary"),
        (pa.array([[1], None], pa.large_list(pa.int16())), "list<int16>"),
        (pa.array([[1], None], pa.list_view(pa.int16())), "list<int16>"),
        (pa.array([[1], None], pa.list_(pa.field("x", pa.int16(), nullable=False))), "list<int16>"),
        (pa.array([1.5, None], pa.float16()), "float"),
        (pa.array([1, None], pa.timestamp("s", tz="UTC")), "timestamp[ms, tz=UTC]"),
        (pa.array([86_400_000, None], pa.date64()), "date32[day]"),
        (pa.array([1, None]).cast(pa.decimal256(22, 2)), "decimal128(22, 2)"),
        (pa.array([b"0123456789abcdef", None], pa.uuid()), "fixed_size_binary[16]"),
        (pa.array(["{}", None], pa.json_()), "string"),
        (pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["a", None])), "string"),
    ],
)
def test_values_keep_their_meaning_in_the_type_that_stands_for_theirs(values: pa.Array, name: str) -> None:
    assert type_name(values.type) == name
    found = decoded(values, arrow_type(name))
    assert found.type == arrow_type(name)
    assert found.null_count == 1
    plain = values.storage if isinstance(values, pa.ExtensionArray) else values
    assert str(found.to_pylist()[0]).removesuffix(".00") in str(plain.to_pylist()[0])


@pytest.mark.parametrize(
    ("refused", "advice"),
    [
        (pa.struct({"x": pa.int8()}), "write each field as a column"),
        (pa.list_(pa.struct({"x": pa.int8()})), "write each field as a column"),
        (pa.map_(pa.string(), pa.int8()), "write the keys you need"),
        (pa.list_(pa.list_(pa.int8())), "one flat list"),
        (pa.null(), "write it with the type it would have"),
        (pa.duration("us"), "an integer with its unit"),
        (pa.decimal256(60, 2), "decimal128 or double"),
        (pa.dense_union([pa.field("x", pa.int8())]), "cast it"),
    ],
)
def test_what_rows_cannot_have_is_refused_with_advice(refused: pa.DataType, advice: str) -> None:
    with pytest.raises(UnknownType, match=advice):
        type_name(refused)
