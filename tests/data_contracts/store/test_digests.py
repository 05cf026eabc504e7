"""Digests depend on values and bytes alone."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.digests import (
    HASHERS,
    DigestingWriter,
    canonical_json,
    file_digest,
    read_stable,
    sha256_bytes,
    sha256_file,
    sha256_of,
    stat_identity,
)
from headway.data_contracts.store.errors import DataError

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aé\n😀"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_canonical_json_is_read_back_as_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text("abc", max_size=3), st.integers(), max_size=5))
def test_the_order_of_keys_changes_no_digest(value: dict[str, int]) -> None:
    assert sha256_of(value) == sha256_of(dict(reversed(value.items())))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(value)


@given(st.lists(st.binary(max_size=50)))
def test_a_digesting_writer_digests_what_it_wrote(chunks: list[bytes]) -> None:
    writer = DigestingWriter(target := io.BytesIO())
    for chunk in chunks:
        writer.write(chunk)
    assert target.getvalue() == b"".join(chunks)
    assert (writer.sha256, writer.size_bytes) == (sha256_bytes(target.getvalue()), len(target.getvalue()))


def test_a_file_is_digested_like_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(3 << 20))
    assert sha256_file(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    for algorithm, new_hasher in HASHERS.items():
        whole = new_hasher()
        whole.update(path.read_bytes())
        assert file_digest(path, algorithm) == whole.hexdigest()


def test_blake3_is_the_one_that_everybody_else_means() -> None:
    """By the vectors that its authors publish, of the bytes 0, 1, ... 250, 0, 1, ..."""
    known = {
        0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
        1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    }
    for num_bytes, digest in known.items():
        hasher = HASHERS["blake3"]()
        hasher.update(bytes(place % 251 for place in range(num_bytes)))
        assert hasher.hexdigest() == digest


def test_an_edit_that_restores_size_and_mtime_still_shows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    before = path.stat()
    path.write_bytes(b"after!")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert stat_identity(after) != stat_identity(before)


def write_during_fstat(monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    """Change the file between the first look and the last one, as a concurrent writer would."""
    fstat = os.fstat
    calls = []

    def fstat_then_write(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        calls.append(descriptor)
        if len(calls) == 2:  # the first looks whether it is a file
            write()
        return status

    monkeypatch.setattr(os, "fstat", fstat_then_write)


def test_a_file_that_is_written_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    write_during_fstat(monkeypatch, lambda: path.write_bytes(b"longer than before"))
    with pytest.raises(DataError, match="changed while it was read"):
        read_stable(path)


def test_a_file_that_is_written_over_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    os.utime(path, ns=(0, 0))  # file systems stamp in ticks: the second write could carry the first one's
    write_during_fstat(monkeypatch, lambda: path.write_bytes(b"after!"))
    with pytest.raises(DataError, match="changed while it was read"):
        read_stable(path)


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"before")
    other.write_bytes(b"after!")
    write_during_fstat(monkeypatch, lambda: other.replace(path))
    with pytest.raises(DataError, match="changed while it was read"):
        read_stable(path)
