"""Rows have names: whatever files they lie in, the database knows which file and which row there."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.scans.rows_database import ALL_ROWS, BROKEN, NAMED_ROWS, ROWS, RowsDatabase
from headway.data_contracts.sources.reading import SourceSpec, rows_files, take_snapshot
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.rows_files import FILE_COLUMN, ROW_COLUMN, RowsFiles
from tests.data_contracts.local_rows import of_parquet

Connect = Callable[[RowsFiles], duckdb.DuckDBPyConnection]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    opened = []

    def run(rows: RowsFiles) -> duckdb.DuckDBPyConnection:
        folder = tmp_path / "the [data]*"
        folder.mkdir()
        database = RowsDatabase(folder=folder, rows=rows)
        context = database.connect()
        connection = context.__enter__()
        opened.append(context)
        database.create_views(connection)
        return connection

    yield run
    for context in opened:
        context.__exit__(None, None, None)


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_rows_are_named_by_file_and_number(tmp_path: Path, connect: Connect) -> None:
    paths = [write(tmp_path / f"it's [{name}]*.parquet", filename=list(name)) for name in ("abc", "de", "f")]
    rows = (
        connect(of_parquet(*paths)).execute(f"SELECT {FILE_COLUMN}, {ROW_COLUMN}, filename FROM {ALL_ROWS}").fetchall()
    )
    assert sorted(rows) == [(0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (1, 0, "d"), (1, 1, "e"), (2, 0, "f")]


def test_a_row_set_aside_is_gone_from_the_rows_and_keeps_the_others_names(tmp_path: Path, connect: Connect) -> None:
    connection = connect(of_parquet(*(write(tmp_path / f"{name}.parquet", x=[1, 2, 3]) for name in "ab")))
    for rule in ("one", "two"):
        connection.execute(f"INSERT INTO {BROKEN} VALUES (1, 1, '{rule}')")
    assert connection.execute(f"SELECT count(*), sum(x) FROM {ROWS}").fetchall() == [(5, 10)]
    names = connection.execute(f"SELECT {FILE_COLUMN}, {ROW_COLUMN} FROM {NAMED_ROWS} ORDER BY ALL").fetchall()
    assert names == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]


def test_the_rows_have_the_columns_of_the_data_alone(tmp_path: Path, connect: Connect) -> None:
    connection = connect(of_parquet(write(tmp_path / "a.parquet", b=[1], a=["x"])))
    assert [row[0] for row in connection.execute(f"DESCRIBE {ROWS}").fetchall()] == ["b", "a"]


def test_folders_columns_have_their_types_and_values(tmp_path: Path, connect: Connect) -> None:
    for day, rows in (("2026-01-01", [1, 2]), ("2026-01-02", [3]), ("__HIVE_DEFAULT_PARTITION__", [4])):
        write(tmp_path / "data" / f"day={day}" / "part.parquet", x=rows)
    spec = SourceSpec(format="parquet", uri="data", column_types={"day": "date32[day]"})
    snapshot = take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "ws" / "digests"))
    with rows_files(spec, snapshot, tmp_path, base=tmp_path) as files:
        connection = connect(files)
        found = connection.execute(f"SELECT day, sum(x) FROM {ROWS} GROUP BY day ORDER BY day").fetchall()
        assert [(str(day), total) for day, total in found] == [("2026-01-01", 3), ("2026-01-02", 3), ("None", 4)]
        kinds = dict(row[:2] for row in connection.execute(f"DESCRIBE {ROWS}").fetchall())
        assert kinds == {"day": "DATE", "x": "BIGINT"}
        names = connection.execute(f"SELECT x, {ROW_COLUMN} FROM {NAMED_ROWS} ORDER BY x").fetchall()
        assert names == [(1, 0), (2, 1), (3, 0), (4, 0)]


def test_a_column_that_a_file_lacks_is_null_there(tmp_path: Path, connect: Connect) -> None:
    write(tmp_path / "data" / "a.parquet", x=[1])
    write(tmp_path / "data" / "b.parquet", x=[2], y=["new"])
    spec = SourceSpec(format="parquet", uri="data", optional_columns=("y",))
    snapshot = take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "ws" / "digests"))
    with rows_files(spec, snapshot, tmp_path, base=tmp_path) as files:
        found = connect(files).execute(f"SELECT x, y, {FILE_COLUMN} FROM {NAMED_ROWS} ORDER BY x").fetchall()
    assert found == [(1, None, 0), (2, "new", 1)]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["text-files", "csv", "json-lines"])
def test_rows_of_every_format_are_named_alike(tmp_path: Path, connect: Connect, kind: str) -> None:
    (tmp_path / "data").mkdir()
    line = {"text-files": "x", "csv": "x\n1\n", "json-lines": '{"x": 1}\n'}[kind]
    for name in "abc":
        (tmp_path / "data" / name).write_text(line)
    spec = SourceSpec(format=kind, uri="data")
    snapshot = take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "ws" / "digests"))
    with rows_files(spec, snapshot, tmp_path, base=tmp_path) as files:
        connection = connect(files)
        found = connection.execute(f"SELECT {FILE_COLUMN}, {ROW_COLUMN} FROM {ALL_ROWS} ORDER BY ALL").fetchall()
        assert found == [(0, 0), (1, 0), (2, 0)]
        columns = {row[0] for row in connection.execute(f"DESCRIBE {ROWS}").fetchall()}
        assert columns == set(snapshot.columns)


def test_a_file_that_changes_under_the_database_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "data" / "a.parquet", x=[1])
    spec = SourceSpec(format="parquet", uri="data")
    snapshot = take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "ws" / "digests"))
    with (
        pytest.raises(DataError, match=r"a\.parquet: the file changed while it was read"),
        rows_files(spec, snapshot, tmp_path, base=tmp_path),
    ):
        write(path, x=[2])
    with pytest.raises(DataError, match=r"a\.parquet: the file changed since the snapshot"):
        rows_files(spec, snapshot, tmp_path, base=tmp_path).__enter__()


def test_the_database_reaches_its_files_and_its_folder_and_nothing_else(tmp_path: Path, connect: Connect) -> None:
    table, other = write(tmp_path / "a.parquet", x=[1]), tmp_path / "other.parquet"
    shutil.copy(table, other)
    connection = connect(of_parquet(table))
    for forbidden in (f"SELECT * FROM '{other}'", f"COPY (SELECT 1) TO '{other}'", "INSTALL httpfs"):
        with pytest.raises(duckdb.Error):
            connection.execute(forbidden)


def test_rows_files_say_which_files_they_stand_for(tmp_path: Path) -> None:
    rows = of_parquet(write(tmp_path / "a.parquet", x=[1, 2]))
    assert [(file.path, file.num_rows) for file in rows.files] == [("a.parquet", 2)]
    assert rows.names().column_names == [FILE_COLUMN, "_headway_path", "num_rows"]
    moved = dataclasses.replace(rows, columns={"x": "int64", "p": "int8"}, partitions={"p": ("7",)})
    assert moved.names()["p"].to_pylist() == [7]
