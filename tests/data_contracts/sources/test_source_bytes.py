"""What is read later is the snapshot's bytes, from the first to the last, or an error."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.sources import verified_bytes
from headway.data_contracts.sources.reading import SourceSpec, read_rows, take_snapshot
from headway.data_contracts.sources.verified_bytes import hash_remote, proved
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import SourceFile
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables import digest_cache
from headway.data_contracts.tables.digest_cache import RACY_NS, DigestCache
from headway.data_contracts.tables.file_cache import FileCache

DATA = b"some bytes"
FILE = SourceFile(path="a", size_bytes=len(DATA), sha256=sha256_bytes(DATA))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(DATA)
    return tmp_path / "a"


def test_a_file_is_the_snapshots_or_refused(path: Path) -> None:
    with proved(str(path), FILE) as found:
        assert found.read_bytes() == DATA
    path.write_bytes(b"Some bytes")
    with pytest.raises(DataError, match=r"a: the file changed since the snapshot"), proved(str(path), FILE):
        pytest.fail("other bytes were handed out")


@pytest.mark.parametrize("change", ["write", "replace", "remove"])
def test_a_change_during_the_body_is_an_error(path: Path, tmp_path: Path, change: str) -> None:
    (tmp_path / "b").write_bytes(DATA)
    with pytest.raises(DataError, match=r"a: the file changed while it was read"), proved(str(path), FILE):
        if change == "write":
            path.write_bytes(b"Some bytes")
        elif change == "replace":
            (tmp_path / "b").replace(path)
        else:
            path.unlink()


def test_an_edit_within_one_tick_of_the_clock_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system with coarse stamps: size, times and inode say nothing."""
    identity = (len(DATA), 0, digest_cache.time.time_ns(), 1)
    for module in (digest_cache, verified_bytes):
        monkeypatch.setattr(module, "stat_identity", lambda status: identity)
    with pytest.raises(DataError, match=r"changed while it was read"), proved(str(path), FILE):
        path.write_bytes(b"Some bytes")


def test_a_problem_of_a_changed_file_is_the_change(path: Path) -> None:
    with pytest.raises(DataError, match=r"changed while it was read"), proved(str(path), FILE):
        path.write_bytes(b"")
        raise DataError("not a readable Parquet file")


def test_a_known_unchanged_file_is_not_hashed_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later_ns = digest_cache.time.time_ns() + 2 * RACY_NS
    monkeypatch.setattr(digest_cache.time, "time_ns", lambda: later_ns)
    digests = DigestCache(tmp_path / "digests")
    digests.digest(path)
    for module in (digest_cache, verified_bytes):
        monkeypatch.setattr(module, "hash_stable", lambda path: pytest.fail(f"{path} was hashed"))
    with proved(str(path), FILE, digests=digests) as found:
        assert found == path


def test_a_remote_file_is_hashed_as_it_is_copied(tmp_path: Path) -> None:
    uri, fs = f"memory://{uuid.uuid4().hex}/a", fsspec.filesystem("memory")
    copies = FileCache(tmp_path / "tables", DigestCache(tmp_path / "digests"))
    fs.pipe_file(uri, b"Some bytes")
    for options in ({}, {"copies": copies}):
        with pytest.raises(DataError, match=r"/a: the file changed since"), proved(uri, FILE, **options):
            pytest.fail("other bytes were handed out")
    fs.pipe_file(uri, DATA)
    with proved(uri, FILE) as found:
        assert found.read_bytes() == DATA
    assert not found.exists()
    with proved(uri, FILE, copies=copies) as found:
        assert found.read_bytes() == DATA
    fs.rm_file(uri)
    with proved(uri, FILE, copies=copies) as again:
        assert again == found
    found.write_bytes(b"damaged..")
    with pytest.raises(DataError, match=r"cannot be read"), proved(uri, FILE, copies=copies):
        pytest.fail("a damaged copy was handed out")


def test_a_file_that_vanished_or_is_forbidden_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()
    with pytest.raises(DataError, match=r"a: cannot be read \(No such file or directory\)"), proved(str(path), FILE):
        pass

    def refuse(*_: Any, **__: Any) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(verified_bytes, "hash_stable", refuse)
    path.write_bytes(DATA)
    with pytest.raises(DataError, match=r"a: cannot be read \(Permission denied\)"), proved(str(path), FILE):
        pass


class _Store(BaseHTTPRequestHandler):
    """A web server whose files have ETags, and which fails when it is told to."""

    files: dict[str, tuple[bytes, str]]
    fails: set[str]
    gets: list[str]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self.gets.append(self.path)
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        if self.path == "/data/":
            body, etag = "".join(f'<a href="{name}">x</a>' for name in sorted(self.files)).encode(), '"index"'
        elif self.path in self.fails or self.path.removeprefix("/data/") not in self.files:
            self.send_response(500 if self.path in self.fails else 404)
            self.end_headers()
            return
        else:
            body, etag = self.files[self.path.removeprefix("/data/")]
        start, end = 0, len(body)
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or end) + 1, end)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Type", "text/html" if self.path == "/data/" else "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", etag)
        self.end_headers()
        if with_body:
            self.wfile.write(body[start:end])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def store() -> Iterator[tuple[str, type[_Store]]]:
    pytest.importorskip("aiohttp")
    handler = type("Store", (_Store,), {"files": {}, "fails": set(), "gets": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/data/", handler
    server.shutdown()
    thread.join()
    server.server_close()


def parquet_bytes(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


def test_tables_on_a_web_server_are_read_and_failures_named(store: tuple[str, type[_Store]], tmp_path: Path) -> None:
    uri, handler = store
    handler.files |= {"a.parquet": (parquet_bytes(x=[1, 2]), '"1"'), "b.parquet": (parquet_bytes(x=[3]), '"2"')}
    spec = SourceSpec(format="parquet", uri=uri)
    cache = DigestCache(tmp_path / "ws" / "digests")
    snapshot = take_snapshot(spec, base=tmp_path, cache=cache)
    assert [(file.path, file.num_rows) for file in snapshot.files] == [("a.parquet", 2), ("b.parquet", 1)]
    handler.fails.add("/data/b.parquet")
    found = []
    with pytest.raises(DataError, match=r"/data/b\.parquet: cannot be read"):
        for file in snapshot.files:
            found += [b.to_pydict() for b in read_rows(spec, file, base=tmp_path, columns=snapshot.columns)]
    assert found == [{"x": [1, 2]}]
    with pytest.raises(DataError, match=r"cannot be read"):
        take_snapshot(spec, base=tmp_path, cache=cache)


@pytest.mark.process
def test_an_etag_saves_reading_and_a_wrong_one_is_found_out_by_the_reader(
    store: tuple[str, type[_Store]], tmp_path: Path
) -> None:
    uri, handler = store
    handler.files["a.csv"] = b"x\n1\n", '"1"'
    spec = SourceSpec(format="csv", uri=uri)
    cache = DigestCache(tmp_path / "ws" / "digests")
    first = take_snapshot(spec, base=tmp_path, cache=cache)
    cache.save()
    handler.gets.clear()
    assert take_snapshot(spec, base=tmp_path, cache=DigestCache(cache.path)) == first
    assert "/data/a.csv" not in handler.gets
    handler.files["a.csv"] = b"x\n2\n", '"1"'
    with pytest.raises(DataError, match=r"a\.csv: the file changed since the snapshot"):
        list(read_rows(spec, first.files[0], base=tmp_path, columns=first.columns))
    handler.files["a.csv"] = b"x\n2\n", '"2"'
    assert take_snapshot(spec, base=tmp_path, cache=cache) != first


@pytest.mark.process
@pytest.mark.parametrize("etag", ['W/"1"', ""])
def test_without_a_strong_etag_everything_is_read_again(
    store: tuple[str, type[_Store]], tmp_path: Path, etag: str
) -> None:
    uri, handler = store
    handler.files["a.csv"] = b"x\n1\n", etag
    cache = DigestCache(tmp_path / "ws" / "digests")
    first = take_snapshot(SourceSpec(format="csv", uri=uri), base=tmp_path, cache=cache)
    handler.files["a.csv"] = b"x\n2\n", etag
    assert take_snapshot(SourceSpec(format="csv", uri=uri), base=tmp_path, cache=cache) != first


def test_remembered_etags_survive_and_show_no_uri(tmp_path: Path) -> None:
    cache = DigestCache(tmp_path / "digests")
    cache.remember_remote("s3://key:secret@bucket/a", 3, "etag", "ab" * 32)
    cache.save()
    assert b"secret" not in (tmp_path / "digests").read_bytes()
    again = DigestCache(tmp_path / "digests")
    assert again.lookup_remote("s3://key:secret@bucket/a", 3, "etag") == "ab" * 32
    assert again.lookup_remote("s3://key:secret@bucket/a", 4, "etag") is None
    assert again.lookup_remote("s3://key:secret@bucket/a", 3, "other") is None


def test_hashing_a_remote_file_holds_a_chunk_at_a_time() -> None:
    uri = f"memory://{uuid.uuid4().hex}/a"
    fsspec.filesystem("memory").pipe_file(uri, b"x" * 3_000_000)
    assert hash_remote(uri) == (sha256_bytes(b"x" * 3_000_000), 3_000_000)
