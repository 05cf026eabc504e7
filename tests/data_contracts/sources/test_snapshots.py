"""A snapshot of tables: columns, rows and digests of files that fit together, or an error that says which does not."""

from __future__ import annotations

import bz2
import datetime
import gzip
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.sources import stores
from headway.data_contracts.sources.reading import SourceSpec, read_rows, rows_files, take_snapshot
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.tables import converted_tables, digest_cache
from headway.data_contracts.tables.digest_cache import RACY_NS, DigestCache
from headway.data_contracts.tables.parquet_files import Footer, read_footer

Take = Callable[..., Snapshot]


@pytest.fixture
def cache(tmp_path: Path) -> DigestCache:
    return DigestCache(tmp_path / "workspace" / "digests.json")


@pytest.fixture
def take(tmp_path: Path, cache: DigestCache) -> Take:
    """Take a snapshot of `data`; options go into the source's spec."""

    def run(kind: str, **options: Any) -> Snapshot:
        return take_snapshot(SourceSpec(**{"format": kind, "uri": "data", **options}), base=tmp_path, cache=cache)

    return run


def parquet(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def text(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_parquet_files_are_listed_with_their_rows_and_common_columns(tmp_path: Path, take: Take) -> None:
    parquet(tmp_path / "data" / "b.parquet", b=["x"], a=[1])
    parquet(tmp_path / "data" / "a.parquet", a=[1, 2], b=["x", None])
    snapshot = take("parquet")
    assert snapshot.columns == {"a": "int64", "b": "string"}
    assert [(file.path, file.num_rows) for file in snapshot.files] == [("a.parquet", 2), ("b.parquet", 1)]
    assert snapshot.num_rows == 3


def test_files_that_say_the_same_in_other_arrow_types_agree(tmp_path: Path, take: Take) -> None:
    parquet(tmp_path / "data" / "a.parquet", a=pa.array(["x"]), b=pa.array([[1]], pa.list_(pa.int32())))
    codes = pa.array(["x"]).dictionary_encode()
    parquet(tmp_path / "data" / "b.parquet", a=codes, b=pa.array([[1]], pa.large_list(pa.int32())))
    parquet(
        tmp_path / "data" / "c.parquet", a=pa.array(["x"], pa.large_string()), b=pa.array([[1]], pa.list_(pa.int32()))
    )
    assert take("parquet").columns == {"a": "string", "b": "list<int32>"}


def test_a_file_of_another_type_is_named_with_both_types_before_a_page_is_read(
    tmp_path: Path, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet(tmp_path / "data" / "a.parquet", a=[1])
    parquet(tmp_path / "data" / "b.parquet", a=[1.5])
    monkeypatch.setattr(DigestCache, "digest", lambda *_: pytest.fail("a file was read"))
    with pytest.raises(DataError, match=r"^b\.parquet: column `a` is double here and int64 in a\.parquet"):
        take("parquet")


@pytest.mark.parametrize(
    ("second", "problem"),
    [({"a": [1]}, r"it lacks `b`"), ({"a": [1], "b": [1], "c": [1], "d": [1]}, r"it has `c`, `d` besides")],
)
def test_a_file_of_other_columns_is_refused(tmp_path: Path, take: Take, second: dict[str, Any], problem: str) -> None:
    parquet(tmp_path / "data" / "a.parquet", a=[1], b=[2])
    parquet(tmp_path / "data" / "b.parquet", **second)
    with pytest.raises(DataError, match=rf"^b\.parquet: its columns are not those of a\.parquet: {problem}"):
        take("parquet")


def test_a_column_that_came_later_is_taken_where_the_source_says_so(tmp_path: Path, take: Take) -> None:
    parquet(tmp_path / "data" / "a.parquet", a=[1])
    parquet(tmp_path / "data" / "b.parquet", a=[1], b=["x"])
    with pytest.raises(DataError, match=r"optional_columns"):
        take("parquet")
    assert take("parquet", optional_columns=("b",)).columns == {"a": "int64", "b": "string"}


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([{"x": 1}]), "structs"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "maps"),
        (pa.array([[[1]]]), "lists of lists"),
        (pa.array([None]), "no type"),
        (pa.array([1], pa.duration("s")), "an integer with its unit"),
    ],
)
def test_a_column_that_rows_cannot_have_is_refused_by_name_with_advice(
    tmp_path: Path, take: Take, column: pa.Array, reason: str
) -> None:
    parquet(tmp_path / "data" / "a.parquet", fine=[1], nested=column)
    with pytest.raises(DataError, match=rf"a\.parquet: column `nested`: .*{reason}"):
        take("parquet")


@pytest.mark.parametrize("name", ["_headway_row", "file_row_number", "", "a\nb", "FINE"])
def test_a_column_name_that_cannot_be_told_from_another_is_refused(tmp_path: Path, take: Take, name: str) -> None:
    parquet(tmp_path / "data" / "a.parquet", **{"fine": [1], name: [1]})
    with pytest.raises(DataError, match=r"a\.parquet: column `"):
        take("parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 not really PAR1", b"x" * 5000])
def test_garbage_is_no_parquet(tmp_path: Path, take: Take, content: bytes) -> None:
    text(tmp_path / "data" / "a.parquet", content)
    with pytest.raises(DataError, match=r"a\.parquet: not a readable Parquet file"):
        take("parquet")


def test_a_file_cut_short_is_no_parquet(tmp_path: Path, take: Take) -> None:
    path = tmp_path / "data" / "a.parquet"
    parquet(path, a=list(range(10_000)))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"a\.parquet: not a readable Parquet file"):
        take("parquet")


def test_a_file_replaced_between_its_footer_and_its_digest_is_an_error(
    tmp_path: Path, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data" / "a.parquet"
    parquet(path, a=[1])

    def read_and_replace(stream: Any, where: str) -> Footer:
        found = read_footer(stream, where)
        parquet(path, a=[1, 2])
        return found

    monkeypatch.setattr(stores, "read_footer", read_and_replace)
    with pytest.raises(DataError, match=r"a\.parquet: the file changed while it was read"):
        take("parquet")


def test_folders_names_are_columns_of_their_declared_types(tmp_path: Path, take: Take, cache: DigestCache) -> None:
    for day, region in (("2026-01-01", "a%2Fb"), ("2026-01-02", "__HIVE_DEFAULT_PARTITION__")):
        parquet(tmp_path / "data" / f"day={day}" / f"region={region}" / "part.parquet", a=[1, 2])
    options = {"column_types": {"day": "date32[day]"}}
    snapshot = take("parquet", **options)
    assert snapshot.columns == {"a": "int64", "day": "date32[day]", "region": "string"}
    spec = SourceSpec(format="parquet", uri="data", **options)
    rows = [
        row
        for file in snapshot.files
        for b in read_rows(spec, file, base=tmp_path, columns=snapshot.columns)
        for row in b.to_pylist()
    ]
    first, second = datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)
    assert [(row["day"], row["region"], row["a"]) for row in rows] == [
        *((first, "a/b", 1), (first, "a/b", 2), (second, None, 1), (second, None, 2))
    ]
    assert take("parquet", partitions=False).columns == {"a": "int64"}


def test_folders_that_do_not_fit_are_refused_by_name(tmp_path: Path, take: Take) -> None:
    parquet(tmp_path / "data" / "day=2026-01-01" / "a.parquet", a=[1])
    with pytest.raises(DataError, match=r"day=2026-01-01/a\.parquet: column `day`: the folder's name holds no int64"):
        take("parquet", column_types={"day": "int64"})
    parquet(tmp_path / "data" / "b.parquet", a=[1])
    with pytest.raises(DataError, match=r"day=2026-01-01/a\.parquet: its folders hold the columns \['day'\]"):
        take("parquet")
    (tmp_path / "data" / "b.parquet").unlink()
    parquet(tmp_path / "data" / "day=2026-01-01" / "a.parquet", day=[1])
    with pytest.raises(DataError, match=r"column `day` is in the file and in a folder's name"):
        take("parquet")


def test_a_type_declared_for_a_parquet_column_is_a_mistake(tmp_path: Path, take: Take) -> None:
    parquet(tmp_path / "data" / "a.parquet", a=[1])
    with pytest.raises(ConfigError, match=r"source\.column_types: `a` is a column of no folder"):
        take("parquet", column_types={"a": "int32"})


@pytest.mark.process
def test_the_first_csv_files_types_hold_for_all(tmp_path: Path, take: Take) -> None:
    text(tmp_path / "data" / "a.csv", "n,s,c\n1,x,007\n,y,010\n")
    text(tmp_path / "data" / "b.csv.gz", gzip.compress(b"s,n,c\nz,5,1\n"))
    text(tmp_path / "data" / "c.csv.bz2", bz2.compress(b"n,s,c\n5,,1\n"))
    snapshot = take("csv")
    assert snapshot.columns == {"n": "int64", "s": "string", "c": "string"}
    assert [file.num_rows for file in snapshot.files] == [2, 1, 1]
    text(tmp_path / "data" / "d.csv", "n,s,c\n1,x,y\n1.5,x,y\n")
    with pytest.raises(DataError, match=r"d\.csv, row 3 of all, header included: column `n`: a value is no int64"):
        take("csv")


@pytest.mark.process
def test_csv_files_of_other_columns_are_refused_and_optional_ones_taken(tmp_path: Path, take: Take) -> None:
    text(tmp_path / "data" / "a.csv", "n\n1\n")
    text(tmp_path / "data" / "b.csv", "n,s\n1,x\n")
    with pytest.raises(DataError, match=r"b\.csv: its columns are not those of a\.csv: it has `s` besides"):
        take("csv")
    snapshot = take("csv", optional_columns=("s",), column_types={"s": "string"})
    assert snapshot.columns == {"n": "int64", "s": "string"}
    assert snapshot.num_rows == 2


@pytest.mark.process
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("n", r"it lacks `total_minutes`, which `source\.column_types` in the pipeline file lists\. Write"),
        (
            "n,minutes_total",
            r"has `minutes_total`, which .* does not list\. Did `total_minutes` become `minutes_total`\?",
        ),
        ("n,Total_Minute", r"Did `total_minutes` become `Total_Minute`\?"),
        ("n,q", r"has `q`, which `source\.column_types` does not list\. Write"),
    ],
)
def test_a_declared_csv_column_that_the_first_file_lacks_is_told_with_what_is_there_instead(
    tmp_path: Path, take: Take, header: str, message: str
) -> None:
    text(tmp_path / "data" / "a.csv", f"{header}\n{'1,2'[: 2 * header.count(',') + 1]}\n")
    with pytest.raises(DataError, match=rf"a\.csv: .*{message}"):
        take("csv", column_types={"n": "int64", "total_minutes": "int64"})


@pytest.mark.process
def test_a_renamed_column_of_a_later_file_is_told_with_its_new_name(tmp_path: Path, take: Take) -> None:
    text(tmp_path / "data" / "a.csv", "n,spend\n1,2\n")
    text(tmp_path / "data" / "b.csv", "n,spent\n1,2\n")
    with pytest.raises(DataError, match=r"it lacks `spend` and has `spent` besides\. Did `spend` become `spent`\?"):
        take("csv")


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(("prefix", "is_guessed"), [("", True), (40 * "x", False)], ids=["short", "long"])
def test_of_thousands_of_other_columns_some_are_told_and_compared_as_far_as_that_is_quick(
    tmp_path: Path, take: Take, prefix: str, is_guessed: bool
) -> None:
    for name, column in (("a", "reading"), ("b", "readout")):
        header = ",".join(f"{prefix}{column}_{number}" for number in range(5000))
        text(tmp_path / "data" / f"{name}.csv", f"{header}\n{','.join('1' * 5000)}\n")
    with pytest.raises(DataError, match=r"reading_9` and 4,990 more and has .*readout_9` and 4,990 more") as refused:
        take("csv")
    assert ("Did `reading_0` become `readout_0`" in str(refused.value)) == is_guessed
    assert len(str(refused.value)) < 2000


@pytest.mark.process
def test_json_lines_may_lack_keys_and_have_no_others(tmp_path: Path, take: Take) -> None:
    text(tmp_path / "data" / "a.jsonl", '{"a": 1, "tokens": [1, 2]}\n\n{"b": "x"}\n')
    text(tmp_path / "data" / "b.jsonl", '{"b": null}\n')
    snapshot = take("json-lines")
    assert snapshot.columns == {"a": "int64", "tokens": "list<int64>", "b": "string"}
    assert [file.num_rows for file in snapshot.files] == [2, 1]
    text(tmp_path / "data" / "c.jsonl", '{"a": 1}\n{"c": 1}\n')
    with pytest.raises(DataError, match=r"c\.jsonl, line 2: the key `c` is none of the columns"):
        take("json-lines")


@pytest.mark.process
@pytest.mark.parametrize("kind", ["csv", "json-lines"])
def test_an_empty_text_file_is_refused(tmp_path: Path, take: Take, kind: str) -> None:
    text(tmp_path / "data" / "a", b"")
    with pytest.raises(DataError, match=r"data/a: the file (is empty|holds no row)"):
        take(kind)


@pytest.mark.process
def test_zero_rows_are_rows_too(tmp_path: Path, take: Take) -> None:
    pq_path = tmp_path / "data" / "a.parquet"
    parquet(pq_path, a=pa.array([], pa.int64()))
    assert take("parquet").num_rows == 0
    pq_path.unlink()
    text(tmp_path / "data" / "a.csv", "a\n")
    assert take("csv", column_types={"a": "int64"}).num_rows == 0


@pytest.mark.process
def test_text_whose_bytes_are_known_is_not_parsed_again(
    tmp_path: Path, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        text(tmp_path / "data" / f"{number}.csv", f"n\n{number}\n")
    before = take("csv")
    parsed = []
    convert = converted_tables.convert

    def counting(spec: SourceSpec, path: Path, *arguments: Any, **options: Any) -> Any:
        parsed.append(path.name)
        return convert(spec, path, *arguments, **options)

    monkeypatch.setattr(converted_tables, "convert", counting)
    assert take("csv") == before
    assert parsed == []
    text(tmp_path / "data" / "1.csv", "n\n7\n")
    take("csv")
    assert parsed == ["1.csv"]
    # Other options are other rows, even where the number of rows and the columns stay.
    other = take("csv", csv={"nulls": ("9",)})
    assert other.sha256 != take("csv").sha256
    assert parsed == ["1.csv", "0.csv", "1.csv", "2.csv"]


def test_a_remote_table_is_the_local_one(tmp_path: Path, take: Take, cache: DigestCache) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    parquet(tmp_path / "data" / "x=1" / "a.parquet", a=list(range(1000)))
    fsspec.filesystem("memory").pipe_file(
        f"{uri}/x=1/a.parquet", (tmp_path / "data" / "x=1" / "a.parquet").read_bytes()
    )
    assert take("parquet", uri=uri) == take("parquet")


@pytest.mark.process
def test_a_remote_file_that_changes_while_it_is_read_is_an_error(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, fs = f"memory://{uuid.uuid4().hex}", fsspec.filesystem("memory")
    fs.pipe_file(f"{uri}/a.csv", b"n\n1\n")
    copy_remote = stores.copy_remote

    def copy_and_replace(*arguments: Any) -> Any:
        copied = copy_remote(*arguments)
        fs.pipe_file(f"{uri}/a.csv", b"n\n2\n")
        return copied

    monkeypatch.setattr(stores, "copy_remote", copy_and_replace)
    with pytest.raises(DataError, match=r"a\.csv: the file changed while it was read"):
        take("csv", uri=uri)


@pytest.mark.process
@pytest.mark.parametrize("num_files", [2_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_thousands_of_files_are_one_snapshot_whose_second_look_reads_no_data(
    tmp_path: Path, take: Take, cache: DigestCache, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    parquet(tmp_path / "one.parquet", a=[1])
    (tmp_path / "data").mkdir()
    for number in range(num_files):
        (tmp_path / "data" / f"{number:05}.parquet").hardlink_to(tmp_path / "one.parquet")
    later_ns = digest_cache.time.time_ns() + 2 * RACY_NS
    monkeypatch.setattr(digest_cache.time, "time_ns", lambda: later_ns)
    first = take("parquet")
    assert (len(first.files), first.num_rows) == (num_files, num_files)
    monkeypatch.setattr(digest_cache, "hash_stable", lambda path: pytest.fail(f"{path} was read"))
    assert take("parquet") == first


@pytest.mark.process
def test_files_converted_once_are_kept_for_the_database(
    tmp_path: Path, take: Take, cache: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    text(tmp_path / "data" / "a.csv", "n\n1\n2\n")
    snapshot = take("csv")
    monkeypatch.setattr(converted_tables, "convert", lambda *_, **__: pytest.fail("parsed again"))
    spec = SourceSpec(format="csv", uri="data")
    with rows_files(spec, snapshot, tmp_path, base=tmp_path, digests=cache) as rows:
        assert pq.read_table(rows.local[0]).to_pydict() == {"n": [1, 2]}
