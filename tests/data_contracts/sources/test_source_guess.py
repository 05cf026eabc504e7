"""A folder, a file or a URI is recognised by its files' names, and reads as the source that is guessed."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pytest

from headway.data_contracts.sources.inference import GuessedSource, guess_source
from headway.data_contracts.sources.listing import list_local, list_remote
from headway.data_contracts.sources.reading import resolve_base_uri
from headway.data_contracts.store.errors import ConfigError, DataError


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")


def wanted(found: GuessedSource, base: Path) -> list[str]:
    """The files that the guessed source reads."""
    spec, root = found.spec, resolve_base_uri(found.spec, base=base)
    if "://" in root:
        return [file.path for file in list_remote(root, spec.include, spec.exclude)]
    return [path for path, _ in list_local(Path(root), spec.include, spec.exclude)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", "parquet"),
        ("a.pq", "parquet"),
        ("a.csv", "csv"),
        ("a.csv.gz", "csv"),
        ("a.tsv", "csv"),
        ("a.jsonl", "json-lines"),
        ("a.ndjson.zst", "json-lines"),
        ("a.txt", "text-files"),
        ("a", "text-files"),
    ],
)
def test_the_format_is_what_the_suffix_says_for_a_folder_and_for_a_file(tmp_path: Path, name: str, kind: str) -> None:
    make(tmp_path, f"data/{name}")
    for data in ("data", f"data/{name}", str(tmp_path / "data"), f"file://{tmp_path}/data/{name}"):
        found = guess_source(data, base=tmp_path)
        assert found.spec.format == kind
        assert wanted(found, tmp_path) == [name]


def test_tabs_are_read_as_tabs(tmp_path: Path) -> None:
    make(tmp_path, "data/a.tsv")
    assert guess_source("data", base=tmp_path).spec.csv.delimiter == "\t"


def test_what_writers_leave_beside_tables_is_left_out(tmp_path: Path) -> None:
    make(
        tmp_path,
        "data/day=1/a.parquet",
        "data/_SUCCESS",
        "data/.a.parquet.crc",
        "data/_tmp/b.parquet",
        "data/readme.md",
    )
    found = guess_source("data", base=tmp_path)
    assert wanted(found, tmp_path) == ["day=1/a.parquet"]
    assert found.num_excluded >= 1


def test_texts_of_the_commonest_kind_are_read_and_the_others_counted(tmp_path: Path) -> None:
    make(tmp_path, "data/a.py", "data/pkg/__init__.py", "data/b.md")
    found = guess_source("data", base=tmp_path)
    assert wanted(found, tmp_path) == ["a.py", "pkg/__init__.py"]
    assert found.num_excluded == 1


def test_two_formats_of_tables_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "data/a.parquet", "data/b.parquet", "data/c.csv")
    with pytest.raises(ConfigError, match=r"parquet \(2 files\) and csv \(1 file\)"):
        guess_source("data", base=tmp_path)


@pytest.mark.parametrize("name", ["a*.csv", "a[1].csv", "a?.csv", "[.csv"])
def test_a_single_file_is_read_alone_whatever_its_name(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"data/{name}", "data/a1.csv", "data/ab.csv")
    assert wanted(guess_source(f"data/{name}", base=tmp_path), tmp_path) == [name]


@pytest.mark.parametrize("data", ["data", "nowhere", "data/nothing.csv"])
def test_nothing_there_is_refused(tmp_path: Path, data: str) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError):
        guess_source(data, base=tmp_path)


def test_uris_of_folders_and_of_files_are_recognised(tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    for name in ("day=1/a.parquet", "day=2/b.parquet"):
        fsspec.filesystem("memory").pipe_file(f"{uri}/{name}", b"x")
    assert wanted(guess_source(uri, base=tmp_path), tmp_path) == ["day=1/a.parquet", "day=2/b.parquet"]
    assert wanted(guess_source(f"{uri}/day=1/a.parquet", base=tmp_path), tmp_path) == ["a.parquet"]


def test_an_unknown_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        guess_source("nosuch://bucket/data", base=tmp_path)


@pytest.mark.process  # for what it takes of the processor
def test_files_of_an_installed_package_are_recognised(tmp_path: Path) -> None:
    found = guess_source("python:stdlib", base=tmp_path)
    assert (found.spec.format, found.spec.include) == ("text-files", ("**/*.py",))


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("größe,b\n1.5,2\n".encode(), {}),
        ("größe;b\n1,5;2\n".encode("latin-1"), {"delimiter": ";", "encoding": "cp1252", "decimal": ","}),
        ("größe;b\n1,5;2.5\n".encode(), {"delimiter": ";"}),
        ("a\tb\n1\t2\n".encode("utf-16"), {"delimiter": "\t", "encoding": "utf-16"}),
        (b"a;b\n\x81;x\n", {"delimiter": ";", "encoding": "latin-1"}),
    ],
)
def test_how_a_csv_file_is_written_is_seen_in_its_first_lines(tmp_path: Path, data: bytes, options) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    assert guess_source("a.csv", base=tmp_path).spec.csv.model_dump(exclude_defaults=True) == options


def test_a_first_column_without_a_name_is_seen_behind_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf,a\n0,1\n")
    assert guess_source("a.csv", base=tmp_path).has_index
