"""The cache hands out what was put in or nothing, and stays within its bound."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.file_cache import KEPT_S, FileCache


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "tables", DigestCache(tmp_path / "digests"), max_bytes=250)


def put(cache: FileCache, key: str, data: bytes = b"x" * 100) -> Path:
    with cache.making(key) as staging:
        staging.write_bytes(data)
        return cache.keep(key, staging, sha256_bytes(data), {"num_rows": 3})


def test_what_was_kept_is_found_with_its_facts(cache: FileCache) -> None:
    path = put(cache, "a", b"data")
    assert cache.find("a") == path
    assert path.read_bytes() == b"data"
    assert cache.note("a") == {"sha256": sha256_bytes(b"data"), "num_rows": 3}
    assert cache.find("b") is None and cache.note("b") is None


def test_a_flipped_bit_is_as_if_nothing_was_kept(cache: FileCache) -> None:
    path = put(cache, "a")
    path.write_bytes(b"y" + b"x" * 99)
    assert cache.find("a") is None
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"", b"not json", b"[]", b'{"sha256": 5}', b"\xff"])
def test_a_damaged_note_is_as_if_nothing_was_kept(cache: FileCache, damage: bytes, tmp_path: Path) -> None:
    put(cache, "a")
    (tmp_path / "tables" / "a.json").write_bytes(damage)
    assert cache.find("a") is None


def test_what_was_not_finished_leaves_nothing(cache: FileCache, tmp_path: Path) -> None:
    with pytest.raises(KeyError), cache.making("a") as staging:
        staging.write_bytes(b"half")
        raise KeyError
    assert list((tmp_path / "tables").iterdir()) == []


def test_a_full_disk_is_a_clear_error(cache: FileCache) -> None:
    with pytest.raises(EnvironmentProblem, match="no space left"), cache.making("a"):
        raise OSError(28, "No space left on device")


def test_the_least_recently_used_go_first_and_the_days_work_stays(cache: FileCache, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "gone.data").symlink_to(tmp_path / "nowhere")  # as what another process has just trimmed
    for age, key in enumerate("abcd"):
        path, then_s = put(cache, key), time.time() - 10 * KEPT_S + age
        os.utime(path, (then_s, then_s))
    assert cache.find("a") is not None  # used now
    cache.trim()
    assert [key for key in "abcd" if cache.find(key)] == ["a", "d"]
    put(cache, "e")
    put(cache, "f")
    cache.trim()
    assert [key for key in "adef" if cache.find(key)] == ["a", "d", "e", "f"]
    assert cache.note("b") == {"sha256": sha256_bytes(b"x" * 100), "num_rows": 3}
