"""A remembered digest is only ever the digest of the file's bytes now."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from headway.data_contracts.store.digests import Algorithm, file_digest, sha256_bytes
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables import digest_cache
from headway.data_contracts.tables.digest_cache import RACY_NS, DigestCache, hash_stable, is_settled


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read, in order."""
    seen: list[Path] = []

    def counted(path: Path, algorithm: Algorithm) -> tuple[str, digest_cache.Identity]:
        seen.append(path)
        return hash_stable(path, algorithm)

    monkeypatch.setattr(digest_cache, "hash_stable", counted)
    return seen


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock past the racy time, so that files just written count as settled."""
    time_ns = time.time_ns
    monkeypatch.setattr(digest_cache.time, "time_ns", lambda: time_ns() + 2 * RACY_NS)


def test_a_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    assert DigestCache(tmp_path / "cache").digest(tmp_path / "a") == (sha256_bytes(b"x" * 3_000_000), 3_000_000)


@pytest.mark.usefixtures("later")
def test_an_unchanged_file_is_read_once_even_by_the_next_process(tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    cache = DigestCache(tmp_path / "cache")
    first = cache.digest(path)
    assert cache.digest(path) == first
    cache.save()
    assert DigestCache(tmp_path / "cache").digest(path) == first
    assert reads == [path]


@pytest.mark.usefixtures("later")
def test_digests_of_two_kinds_of_one_file_are_never_taken_for_each_other(tmp_path: Path, reads: list[Path]) -> None:
    path, cache = tmp_path / "a", DigestCache(tmp_path / "cache")
    path.write_bytes(b"abc")
    kinds: tuple[Algorithm, ...] = ("sha256", "blake3")
    for algorithm in kinds:
        assert cache.digest(path, algorithm)[0] == file_digest(path, algorithm)
        cache.remember_remote("s3://b/a", 3, "e", algorithm[0] * 64, algorithm)
    cache.save()
    again = DigestCache(tmp_path / "cache")
    for algorithm in kinds:
        assert again.digest(path, algorithm)[0] == file_digest(path, algorithm)
        assert again.lookup_remote("s3://b/a", 3, "e", algorithm) == algorithm[0] * 64
    assert reads == [path, path]


@pytest.mark.usefixtures("later")
def test_an_edit_that_keeps_size_and_mtime_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    cache = DigestCache(tmp_path / "cache")
    cache.digest(path)
    before = path.stat()
    path.write_bytes(b"after!")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.digest(path)[0] == sha256_bytes(b"after!")


@pytest.mark.usefixtures("later")
def test_another_file_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"before")
    other.write_bytes(b"after!")
    cache = DigestCache(tmp_path / "cache")
    cache.digest(path)
    other.replace(path)
    assert cache.digest(path)[0] == sha256_bytes(b"after!")


def test_a_file_just_written_is_not_remembered(tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    cache = DigestCache(tmp_path / "cache")
    cache.digest(path)
    cache.digest(path)
    assert len(reads) == 2


def test_an_edit_within_the_same_clock_tick_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A coarse clock gives both versions one identity; only the youth of the first can give it away.
    tick_ns = 1_700_000_000 * 10**9
    monkeypatch.setattr(digest_cache, "stat_identity", lambda status: (6, tick_ns, tick_ns, 2))
    monkeypatch.setattr(digest_cache.time, "time_ns", lambda: tick_ns + RACY_NS // 2)
    path = tmp_path / "a"
    path.write_bytes(b"before")
    cache = DigestCache(tmp_path / "cache")
    cache.digest(path)
    path.write_bytes(b"after!")
    assert cache.digest(path)[0] == sha256_bytes(b"after!")


@pytest.mark.parametrize(("age_ns", "settled"), [(RACY_NS, True), (RACY_NS - 1, False), (0, False), (-RACY_NS, False)])
def test_a_file_is_settled_two_seconds_after_its_ctime(age_ns: int, settled: bool) -> None:
    ctime_ns = 1_700_000_000 * 10**9
    assert is_settled((1, 0, ctime_ns, 1), ctime_ns + age_ns) is settled


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'{"format_version": 1}',
        b'{"format_version": 2, "entries": {}}',
        b'{"format_version": 1, "entries": {"a": [1]}}',
        b'{"format_version": 1, "entries": {"a": [[1, 2, 3], "x"]}}',
        b'{"format_version": 1, "entries": {"a": [[1, 2, 3, 4], 5]}}',
        b"[" * 100_000,
    ],
)
def test_a_corrupt_cache_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cache").write_bytes(content)
    (tmp_path / "a").write_bytes(b"abc")
    assert DigestCache(tmp_path / "cache").digest(tmp_path / "a")[0] == sha256_bytes(b"abc")


@pytest.mark.usefixtures("later")
def test_saving_leaves_one_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    cache = DigestCache(tmp_path / "new" / "cache")
    cache.digest(tmp_path / "a")
    cache.save()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["cache"]
    assert list(json.loads((tmp_path / "new" / "cache").read_bytes())["entries"]) == [str(tmp_path / "a")]


@pytest.mark.usefixtures("later")
def test_a_cache_that_cannot_be_saved_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    cache = DigestCache(tmp_path / "a" / "cache")
    cache.digest(tmp_path / "a")
    cache.save()


def test_a_file_that_changes_while_it_is_hashed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    fstat = os.fstat

    def fstat_then_append(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        with path.open("ab") as stream:
            stream.write(b"more")
        return status

    monkeypatch.setattr(os, "fstat", fstat_then_append)
    with pytest.raises(DataError, match=f"{path}: the file changed while it was read"):
        DigestCache(tmp_path / "cache").digest(path)


def test_a_file_that_is_replaced_while_it_is_hashed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"before")
    other.write_bytes(b"after!")
    fstat = os.fstat

    def fstat_then_replace(descriptor: int) -> os.stat_result:
        if other.exists():
            other.replace(path)
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", fstat_then_replace)
    with pytest.raises(DataError, match="changed while it was read"):
        DigestCache(tmp_path / "cache").digest(path)


@pytest.mark.usefixtures("later")
def test_after_a_surprise_nothing_is_believed_by_this_process_or_the_next(tmp_path: Path, reads: list[Path]) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    cache = DigestCache(tmp_path / "cache")
    for path in paths:
        path.write_bytes(b"abc")
        cache.digest(path)
    cache.save()
    DigestCache(tmp_path / "cache").digest(paths[0])
    assert len(reads) == 2
    cache.forget_all()
    cache.digest(paths[0])
    cache.save()
    DigestCache(tmp_path / "cache").digest(paths[1])
    assert len(reads) == 4
