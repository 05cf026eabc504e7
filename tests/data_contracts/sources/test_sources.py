"""A snapshot names exact bytes, and whatever is read later is those bytes or an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from itertools import takewhile
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from headway.data_contracts.sources.reading import (
    SourceSpec,
    read_file,
    read_rows,
    resolve_base_uri,
    rows_files,
    take_snapshot,
)
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import Snapshot, SourceFile
from headway.data_contracts.store.errors import ConfigError, DataError, IntegrityError
from headway.data_contracts.tables import digest_cache
from headway.data_contracts.tables.digest_cache import RACY_NS, DigestCache
from headway.data_contracts.tables.parquet_files import BATCH_BYTES
from headway.data_contracts.tables.text_rows import TEXT_COLUMNS

FILES = {"a.py": b"print(1)\n", "b/c.py": b"x = 'caf\xc3\xa9'\n", "d.txt": b"not wanted", "empty.py": b""}
SPEC = SourceSpec(uri="data", include=("**/*.py",))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


@pytest.fixture
def remote() -> SourceSpec:
    uri = f"memory://{uuid.uuid4().hex}"
    for name, data in FILES.items():
        fsspec.filesystem("memory").pipe_file(f"{uri}/{name}", data)
    return SourceSpec(uri=uri, include=("**/*.py",))


@pytest.fixture
def cache(tmp_path: Path) -> DigestCache:
    return DigestCache(tmp_path / "cache.json")


def test_a_snapshot_names_every_wanted_file_with_its_bytes(base: Path, cache: DigestCache) -> None:
    snapshot = take_snapshot(SPEC, base=base, cache=cache)
    assert {file.path: (file.size_bytes, file.sha256) for file in snapshot.files} == {
        name: (len(data), sha256_bytes(data)) for name, data in FILES.items() if name.endswith(".py")
    }
    assert snapshot.num_rows == 3
    assert snapshot.columns == TEXT_COLUMNS


def test_where_the_data_lie_is_no_part_of_the_snapshot(base: Path, remote: SourceSpec, cache: DigestCache) -> None:
    here = take_snapshot(SPEC, base=base, cache=cache)
    (base / "data").rename(base / "moved")
    there = take_snapshot(SPEC.model_copy(update={"uri": str(base / "moved")}), base=Path("/"), cache=cache)
    far = take_snapshot(remote, base=Path("/"), cache=cache)
    assert here.sha256 == there.sha256 == far.sha256


def test_touching_a_file_changes_nothing_and_editing_it_does(base: Path, cache: DigestCache) -> None:
    before = take_snapshot(SPEC, base=base, cache=cache)
    os.utime(base / "data" / "a.py", (1, 1))
    assert take_snapshot(SPEC, base=base, cache=cache).sha256 == before.sha256
    (base / "data" / "a.py").write_bytes(b"print(2)\n")
    assert take_snapshot(SPEC, base=base, cache=cache).sha256 != before.sha256


def test_an_edit_that_keeps_size_and_mtime_is_noticed(
    base: Path, cache: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(digest_cache.time, "time_ns", lambda: now_ns + 2 * RACY_NS)
    before = take_snapshot(SPEC, base=base, cache=cache)
    path = base / "data" / "a.py"
    status = path.stat()
    path.write_bytes(b"print(2)\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert take_snapshot(SPEC, base=base, cache=cache).sha256 != before.sha256


def test_an_unchanged_file_is_not_read_again(base: Path, cache: DigestCache, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(digest_cache.time, "time_ns", lambda: now_ns + 2 * RACY_NS)
    before = take_snapshot(SPEC, base=base, cache=cache)

    def refuse(path: Path) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(digest_cache, "hash_stable", refuse)
    assert take_snapshot(SPEC, base=base, cache=cache) == before


@pytest.mark.parametrize("include", ["**/*.rs", "nowhere/*"])
def test_an_empty_source_is_an_error_that_shows_the_globs(base: Path, cache: DigestCache, include: str) -> None:
    spec = SPEC.model_copy(update={"include": (include,)})
    with pytest.raises(DataError, match=r"the source is empty: .*" + include.replace("*", r"\*")):
        take_snapshot(spec, base=base, cache=cache)


def test_a_file_over_the_bound_is_named(base: Path, remote: SourceSpec, cache: DigestCache) -> None:
    for spec in (SPEC, remote):
        with pytest.raises(DataError, match=r"b/c\.py: the file has 12 bytes, more than source\.max_file_bytes"):
            take_snapshot(spec.model_copy(update={"max_file_bytes": 10}), base=base, cache=cache)


def test_a_file_that_changes_while_it_is_read_is_an_error(
    base: Path, cache: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat, path = os.fstat, base / "data" / "b" / "c.py"

    def fstat_then_write(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        if status.st_ino == path.stat().st_ino:
            path.write_bytes(b"something else")
        return status

    monkeypatch.setattr(os, "fstat", fstat_then_write)
    with pytest.raises(DataError, match=r"b/c\.py: the file changed while it was read"):
        take_snapshot(SPEC, base=base, cache=cache)


@pytest.mark.process
def test_an_unreadable_file_is_named(base: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from headway.data_contracts.tables.digest_cache import DigestCache\n"
        "from headway.data_contracts.store.errors import DataError\n"
        "from headway.data_contracts.sources.reading import SourceSpec, take_snapshot\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: take_snapshot(SourceSpec(uri='.'), base=Path(sys.argv[1]), cache=DigestCache(Path('/nowhere/cache')))\n"
        "except DataError as error: print(error)\n"
    )
    for folder in (base / "data", base, *takewhile(lambda parent: parent != Path(tempfile.gettempdir()), base.parents)):
        folder.chmod(folder.stat().st_mode | 0o055)
    (base / "data" / "a.py").chmod(0)
    done = subprocess.run([sys.executable, "-c", code, str(base / "data")], capture_output=True, text=True)
    assert done.stdout.startswith(f"{base}/data/a.py: cannot be read (Permission denied)"), done.stderr


def test_a_file_is_read_back_as_it_was(base: Path, remote: SourceSpec, cache: DigestCache) -> None:
    for spec in (SPEC, remote):
        for file in take_snapshot(spec, base=base, cache=cache).files:
            assert read_file(spec, file, base=base) == FILES[file.path]


def test_a_file_that_changed_since_the_snapshot_is_refused(base: Path, remote: SourceSpec, cache: DigestCache) -> None:
    for spec in (SPEC, remote):
        file = take_snapshot(spec, base=base, cache=cache).files[0]
        fs, root = fsspec.core.url_to_fs(resolve_base_uri(spec, base=base))
        fs.pipe_file(f"{root}/{file.path}", b"print(2)\n")
        with pytest.raises(DataError, match=r"a\.py: the file changed since the snapshot"):
            read_file(spec, file, base=base)
        fs.rm_file(f"{root}/{file.path}")
        with pytest.raises(DataError, match=r"a\.py: cannot be read"):
            read_file(spec, file, base=base)


def test_a_path_from_a_forged_snapshot_leads_nowhere(base: Path) -> None:
    with pytest.raises(IntegrityError, match="leaves the workspace"):
        read_file(SPEC, SourceFile(path="../secret", size_bytes=0, sha256="0" * 64), base=base)


def test_the_table_has_one_row_a_file_in_order(base: Path, cache: DigestCache, tmp_path: Path) -> None:
    (base / "data" / "latin.py").write_bytes(b"\xe9\n\0")
    snapshot = take_snapshot(SPEC, base=base, cache=cache)
    with rows_files(SPEC, snapshot, tmp_path, base=base) as rows:
        table = pq.read_table(rows.local[0])
    assert rows.is_packed
    assert {field.name: str(field.type) for field in table.schema} == snapshot.columns
    assert table["path"].to_pylist() == ["a.py", "b/c.py", "empty.py", "latin.py"]
    assert table["is_utf8"].to_pylist() == [True, True, True, False]
    assert table["has_nul"].to_pylist() == [False, False, False, True]
    assert table["num_lines"].to_pylist() == [1, 1, 0, 2]
    assert table["num_chars"].to_pylist() == [9, 11, 0, None]
    assert table["max_line_chars"].to_pylist() == [8, 10, 0, None]
    assert table["text"].to_pylist() == ["print(1)\n", "x = 'café'\n", "", None]


def test_a_table_of_another_snapshot_is_never_written(base: Path, cache: DigestCache, tmp_path: Path) -> None:
    snapshot = take_snapshot(SPEC, base=base, cache=cache)
    (base / "data" / "b" / "c.py").write_bytes(b"edited since")
    with pytest.raises(DataError, match=r"b/c\.py: the file changed since the snapshot"):
        rows_files(SPEC, snapshot, tmp_path, base=base).__enter__()


def test_a_text_file_is_a_table_of_one_row(base: Path, cache: DigestCache) -> None:
    snapshot = take_snapshot(SPEC, base=base, cache=cache)
    for file in snapshot.files:
        (batch,) = read_rows(SPEC, file, base=base, columns=snapshot.columns)
        assert batch.to_pylist()[0] | {"path": file.path} == batch.to_pylist()[0]
        assert batch["text"].to_pylist() == [FILES[file.path].decode()]
        assert {field.name: str(field.type) for field in batch.schema} == TEXT_COLUMNS


@pytest.mark.process
@pytest.mark.parametrize("kind", ["parquet", "csv", "json-lines"])
def test_rows_of_every_format_come_in_file_order_and_the_columns_of_the_snapshot(
    tmp_path: Path, cache: DigestCache, kind: str
) -> None:
    numbers = list(range(1000))
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "a"
    if kind == "parquet":
        codes = pa.array([str(n % 7) for n in numbers]).dictionary_encode()
        pq.write_table(pa.table({"s": codes, "n": numbers}), path, row_group_size=100)
    elif kind == "csv":
        path.write_text("s,n\n" + "".join(f'"{n % 7}",{n}\n' for n in numbers))
    else:
        path.write_text("".join(json.dumps({"s": str(n % 7), "n": n}) + "\n" for n in numbers))
    spec = SourceSpec(format=kind, uri="data", column_types={} if kind == "parquet" else {"s": "string"})
    snapshot = take_snapshot(spec, base=tmp_path, cache=cache)
    batches = list(read_rows(spec, snapshot.files[0], base=tmp_path, columns=snapshot.columns))
    assert {str(batch.schema.types) for batch in batches} == {"[DataType(int64), DataType(string)]"}
    assert [row for b in batches for row in b.to_pylist()] == [{"n": n, "s": str(n % 7)} for n in numbers]


@pytest.mark.process
def test_a_row_group_as_large_as_its_file_is_never_held_whole(tmp_path: Path, cache: DigestCache) -> None:
    (tmp_path / "data").mkdir()
    floats = np.random.default_rng(0).random((8, 1_000_000))
    columns = {f"f{number}": column for number, column in enumerate(floats)}
    pq.write_table(pa.table(columns), tmp_path / "data" / "a", row_group_size=1_000_000, use_dictionary=False)
    del columns
    spec = SourceSpec(format="parquet", uri="data")
    snapshot = take_snapshot(spec, base=tmp_path, cache=cache)
    before_bytes, num_rows, most_bytes = pa.total_allocated_bytes(), 0, 0
    for batch in read_rows(spec, snapshot.files[0], base=tmp_path, columns=snapshot.columns):
        num_rows += batch.num_rows
        most_bytes = max(most_bytes, pa.total_allocated_bytes() - before_bytes)
        assert batch.nbytes <= BATCH_BYTES * 1.1
    assert num_rows == 1_000_000
    assert most_bytes < 40 << 20  # of 64 MB


@pytest.mark.process
def test_one_giant_row_among_small_ones_is_split_from_them(tmp_path: Path, cache: DigestCache) -> None:
    (tmp_path / "data").mkdir()
    texts = ["x"] * 1000
    texts[500] = "y" * (3 * BATCH_BYTES)
    pq.write_table(pa.table({"s": texts}), tmp_path / "data" / "a")
    spec = SourceSpec(format="parquet", uri="data")
    snapshot = take_snapshot(spec, base=tmp_path, cache=cache)
    batches = list(read_rows(spec, snapshot.files[0], base=tmp_path, columns=snapshot.columns))
    assert [text for batch in batches for text in batch["s"].to_pylist()] == texts
    assert len(batches) > 2


@pytest.mark.process
def test_the_standard_library_is_found_through_the_interpreter(cache: DigestCache) -> None:
    spec = SourceSpec(
        uri="python:stdlib", include=("**/*.py",), exclude=("site-packages/**", "**/__pycache__/**", "test/**")
    )
    assert resolve_base_uri(spec, base=Path("/")) == sysconfig.get_path("stdlib")
    snapshot: Snapshot = take_snapshot(spec, base=Path("/"), cache=cache)
    paths = [file.path for file in snapshot.files]
    assert {"os.py", "json/decoder.py"} <= set(paths)
    assert paths == sorted(paths)
    assert not any(path.startswith(("site-packages/", "test/")) for path in paths)


@pytest.mark.process
def test_a_misspelt_python_source_gets_the_right_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'python:stdlib'"):
        resolve_base_uri(SourceSpec(uri="python:stdlb"), base=Path("/"))


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("data", "/base/data"),
        ("../data", "/data"),
        ("/abs/data", "/abs/data"),
        ("file:///abs/data", "/abs/data"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_a_relative_uri_starts_at_the_pipeline_file(uri: str, expected: str) -> None:
    assert resolve_base_uri(SourceSpec(uri=uri), base=Path("/base")) == expected


@pytest.mark.parametrize("wrong", [{"uri": ""}, {"uri": "a", "include": ()}, {"uri": "a", "max_file_bytes": 0}])
def test_a_source_that_can_never_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SourceSpec.model_validate(wrong)
