"""Of a text table with a few bad rows, every bad row is named by number and column, none by value; others are read."""

from __future__ import annotations

import gzip
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headway.data_contracts.sources.reading import read_rows, rows_files, take_snapshot
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables import unparsable_rows
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.source_spec import CsvOptions, SourceSpec
from headway.data_contracts.tables.text_table_reader import inferred_columns
from headway.data_contracts.tables.unparsable_rows import Unparsable, tolerant_batches, tolerant_columns
from headway.data_contracts.types.text_types import VALUELESS

pytestmark = pytest.mark.process

SECRET = "hunter2"
CSV = b"n,text,day\n1,x,2026-01-01\n2\nhunter2,y,2026-01-02\n\n4,\xff,hunter2\n,,\n1,2,3,4\n"
LINES = b'{"n": 1}\nhunter2\n\n{"n": "hunter2"}\n[1]\n{"n": 2}\n'
TYPES = {"n": "int64", "text": "string", "day": "date32[day]"}


def spec(name: str, **options: Any) -> SourceSpec:
    return SourceSpec(format="csv" if name.endswith("csv") else "json-lines", uri="data", **options)


def read(path: Path, types: dict[str, str], **options: Any) -> tuple[list[dict[str, Any]], list[Unparsable]]:
    found: list[Unparsable] = []
    batches = tolerant_batches(spec(path.name, **options), path, path.name, types, found)
    return [row for batch in batches for row in batch.to_pylist()], found


@pytest.mark.parametrize("max_row_bytes", [24, 40, 1 << 20])
def test_bad_csv_cells_are_null_and_rows_keep_their_numbers(tmp_path: Path, max_row_bytes: int) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    rows, found = read(tmp_path / "a.csv", TYPES, csv=CsvOptions(max_row_bytes=max_row_bytes))
    assert [row["n"] for row in rows] == [1, None, None, 4, None, None]
    assert [row["text"] for row in rows] == ["x", None, "y", None, None, None]
    assert found == [(1, 3, ""), (2, 4, "n"), (3, 5, "text"), (3, 5, "day"), (5, 7, "")]


def test_bad_json_lines_are_null_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    rows, found = read(tmp_path / "a.jsonl", {"n": "int64"})
    assert [row["n"] for row in rows] == [1, None, None, None, 2]
    assert found == [(1, 2, ""), (2, 4, "n"), (3, 5, "")]


@pytest.mark.parametrize(
    ("value", "kind", "is_read"),
    [
        (b" 5 ", "int64", True),
        (b'"5"', "int64", True),
        (b"5.0", "int64", False),
        (b"1e3", "double", True),
        (b"True", "bool", True),
        (b"yes", "bool", False),
        (b"2026-02-30", "date32[day]", False),
        (b'"a ""b"" \n,c"', "string", True),
    ],
)
def test_a_value_is_one_here_just_where_the_reader_of_good_files_takes_it(
    tmp_path: Path, value: bytes, kind: str, is_read: bool
) -> None:
    (tmp_path / "a.csv").write_bytes(b"v,w\n" + value + b",1\n")
    rows, found = read(tmp_path / "a.csv", {"v": kind, "w": "int64"})
    assert (found == []) is is_read
    if is_read:
        (tmp_path / "b.csv").write_bytes(b"v,w\n" + value + b",1\n,2\n")
        taken = take(tmp_path, "b.csv", column_types={"v": kind, "w": "int64"})
        assert next(iter(rows_of(tmp_path, "b.csv", taken)))["v"] == rows[0]["v"]


def test_types_are_those_of_the_rows_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"n,m\n1,2.5\n2\n\xff,3\n")
    assert tolerant_columns(spec("a.csv"), tmp_path / "a.csv", "a.csv", {}) == {"n": "int64", "m": "double"}
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n{\n{"n": "x"}\n')
    assert tolerant_columns(spec("a.jsonl"), tmp_path / "a.jsonl", "a.jsonl", {}) == {"n": "int64"}


def test_a_file_of_nothing_but_bad_rows_is_refused_before_all_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unparsable_rows, "MAX_UNPARSABLE_ROWS", 20)
    (tmp_path / "a.csv").write_bytes(b"n\n" + b"".join(b"x%d\n" % number for number in range(1000)))
    with pytest.raises(DataError, match=r"more than 20 values cannot be read.*rows 2 \(`n`\), 3 \(`n`\).*and 16 more"):
        read(tmp_path / "a.csv", {"n": "int64"})


def take(folder: Path, name: str, quarantined: dict[str, str] | None = None, **options: Any) -> Snapshot:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / name).write_bytes((folder / name).read_bytes())
    source = spec(name, include=(name,), **options)
    return take_snapshot(source, base=folder, cache=DigestCache(folder / "cache" / "digests"), quarantined=quarantined)


def rows_of(folder: Path, name: str, taken: Snapshot) -> list[dict[str, Any]]:
    cache = DigestCache(folder / "cache" / "digests")
    file = taken.files[0]
    batches = read_rows(spec(name, include=(name,)), file, base=folder, columns=taken.columns, digests=cache)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", CSV, r"Of 6 rows, 4 cannot be read: rows 3, 4 \(`n`\), 5 \(`day`, `text`\), 7\."),
        ("a.jsonl", LINES, r"Of 5 rows, 3 cannot be read: lines 2, 4 \(`n`\), 5\."),
    ],
)
def test_a_refusal_counts_all_bad_rows_names_the_first_and_says_how_to_leave_them_out(
    tmp_path: Path, name: str, data: bytes, message: str, is_declared: bool
) -> None:
    (tmp_path / name).write_bytes(data)
    types = TYPES if name == "a.csv" else {"n": TYPES["n"]} if is_declared else {}
    with pytest.raises(DataError, match=message) as raised:
        take(tmp_path, name, column_types=types)
    assert SECRET not in str(raised.value)
    assert "unparsable_rows: quarantine" in raised.value.advice
    assert f"`quarantine_limit_ratio: {0.67 if name == 'a.csv' else 0.6}`" in raised.value.advice


@pytest.mark.parametrize(("name", "data", "types"), [("a.csv", CSV, TYPES), ("a.jsonl", LINES, {"n": "int64"})])
def test_a_snapshot_for_a_quarantine_counts_them_and_rows_are_the_same_wherever_they_are_read(
    tmp_path: Path, name: str, data: bytes, types: dict[str, str]
) -> None:
    (tmp_path / name).write_bytes(data)
    taken = take(tmp_path, name, types)
    num_rows, bad = (6, (1, 2, 3, 5)) if name == "a.csv" else (5, (1, 2, 3))
    assert (taken.num_rows, taken.files[0].num_unparsable) == (num_rows, len(bad))
    assert taken.options["unparsable_rows"] == "quarantine"
    shown = rows_of(tmp_path, name, taken)
    cache = DigestCache(tmp_path / "cache" / "digests")
    with rows_files(spec(name, include=(name,)), taken, tmp_path, base=tmp_path, digests=cache) as rows:
        assert rows.unparsable == (bad,)
    for path in (tmp_path / "cache" / "tables").iterdir():
        path.unlink()
    assert rows_of(tmp_path, name, taken) == shown
    assert len(shown) == num_rows


def test_a_compressed_table_in_a_store_is_refused_alike(tmp_path: Path) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe_file(f"{root}/a.csv.gz", gzip.compress(CSV))
    source = SourceSpec(format="csv", uri=root, column_types=TYPES)
    with pytest.raises(DataError, match=r"/a\.csv\.gz, row 3 .*Of 6 rows, 4 cannot be read: rows 3, 4"):
        take_snapshot(source, base=tmp_path, cache=DigestCache(tmp_path / "cache" / "digests"))


def test_a_clean_file_s_snapshot_names_no_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"n\n1\n")
    assert b"num_unparsable" not in take(tmp_path, "a.csv", {"n": "int64"}).to_bytes()


def test_numbers_with_a_decimal_comma_are_no_bad_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("x;stra\xdfe\n1,5;k\xf6ln\nhunter2;\xe4\n".encode("latin-1"))
    options = {"csv": CsvOptions(delimiter=";", decimal=",", encoding="latin-1")}
    found, bad = read(path, {"x": "double", "straße": "string"}, **options)
    assert found == [{"x": 1.5, "straße": "köln"}, {"x": None, "straße": "ä"}]
    assert [(each.number, each.column) for each in bad] == [(3, "x")]
    assert tolerant_columns(spec("a.csv", **options), path, "a.csv", {}) == {"x": "string", "straße": "string"}


def test_dates_of_the_formats_are_no_bad_cells_and_others_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("day,n\n31/12/2025,1\n12/31/2025,2\n01/02/2026,x\n30/02/2026,4\n")
    options = {"csv": CsvOptions(timestamp_formats=("%d/%m/%Y",))}
    found, bad = read(path, {"day": "timestamp[us]", "n": "int64"}, **options)
    assert [row["day"] for row in found] == [datetime(2025, 12, 31), None, datetime(2026, 2, 1), None]
    assert [(each.number, each.column) for each in bad] == [(3, "day"), (4, "n"), (5, "day")]
    assert tolerant_columns(spec("a.csv", **options), path, "a.csv", {}) == {"day": "string", "n": "string"}


@pytest.mark.parametrize("valueless", ["", VALUELESS])
@pytest.mark.parametrize(
    ("text", "row"), [("Title\n1,2,3\n4,5,6\n", 2), ("a,b\n,1\n,2,3\n,3\n", 3)], ids=["all rows", "and an empty column"]
)
def test_rows_of_more_values_are_named_where_a_column_is_left_without_any(
    tmp_path: Path, valueless: str, text: str, row: int
) -> None:
    (tmp_path / "a.csv").write_text(text)
    spec = SourceSpec(format="csv", uri="data")
    with pytest.raises(DataError, match=f"row {row}") as refused:
        inferred_columns(spec, tmp_path / "a.csv", "a.csv", {}, keeps_bad=False, valueless=valueless)
    assert "UnknownType" not in str(refused.value) and "type is not known" not in str(refused.value)
