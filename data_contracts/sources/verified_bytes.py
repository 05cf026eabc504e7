"""Bytes of source files, proved to be a snapshot's: where they lie for local files, in a copy for remote ones."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from headway.data_contracts.sources.locations import is_remote
from headway.data_contracts.store.digests import CHUNK_BYTES, read_stable, sha256_bytes, stat_identity
from headway.data_contracts.store.documents import SourceFile
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.store.file_systems import file_system_of
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.tables.digest_cache import DigestCache, hash_stable, is_settled
from headway.data_contracts.tables.file_cache import FileCache
from headway.data_contracts.tables.source_errors import changed, changed_while_read, reading_remote, unreadable


def read_proved(where: str, file: SourceFile) -> bytes:
    """The bytes of a snapshot's file, held in memory.

    Args:
        where: an absolute path, or an fsspec URI.

    Raises:
        DataError: gone, unreadable, or changed since the snapshot was taken.
    """
    try:
        data = _read_remote(where) if is_remote(where) else read_stable(Path(where))
    except OSError as error:
        raise unreadable(where, error) from error
    if len(data) != file.size_bytes or sha256_bytes(data) != file.sha256:
        raise changed(where)
    return data


@contextlib.contextmanager
def proved(
    where: str, file: SourceFile, *, digests: DigestCache | None = None, copies: FileCache | None = None
) -> Iterator[Path]:
    """A local path whose bytes are a snapshot's file, from the start of the body to its end.

    A local file is hashed first, unless `digests` knows it by its stat identity, and looked at again in the end; a
    remote one is hashed while it is copied.

    Args:
        where: an absolute path, or an fsspec URI.
        copies: where copies of remote files are kept; without it, a copy ends with the body.

    Raises:
        DataError: gone, unreadable, or not the bytes of the snapshot; changed during the body.
    """
    if not is_remote(where):
        with unchanged(Path(where), file, digests) as path:
            yield path
    elif copies is not None:
        yield kept_copy(where, file, copies)
    else:
        with _copied(where, file) as path:
            yield path


@contextlib.contextmanager
def unchanged(path: Path, file: SourceFile, digests: DigestCache | None) -> Iterator[Path]:
    """`proved` for a local file."""
    try:
        # The clock is read before the stat, so that a later change cannot look settled.
        started_ns, identity = time.time_ns(), stat_identity(path.stat())
        sha256 = digests.digest(path)[0] if digests is not None else hash_stable(path)[0]
    except OSError as error:
        raise unreadable(str(path), error) from error
    if sha256 != file.sha256:
        raise changed(str(path))
    try:
        yield path
    # A file that changes during the read often looks damaged: the change is the cause to report.
    except DataError as error:
        if not _is_still(path, identity):
            raise changed_while_read(str(path)) from error
        raise
    # A file changed a moment ago could change again within the same tick of the clock, which its stamps do not show.
    if not _is_still(path, identity) or not (is_settled(identity, started_ns) or hash_stable(path)[0] == file.sha256):
        raise changed_while_read(str(path))


def _is_still(path: Path, identity: tuple[int, int, int, int]) -> bool:
    try:
        return stat_identity(path.stat()) == identity
    except OSError:
        return False


@contextlib.contextmanager
def _copied(uri: str, file: SourceFile) -> Iterator[Path]:
    with scratch_folder("headway-") as folder:
        path = folder / "copy"
        with path.open("wb") as stream:
            sha256, _ = hash_remote(uri, stream)
        if sha256 != file.sha256:
            raise changed(uri)
        yield path


def kept_copy(uri: str, file: SourceFile, copies: FileCache) -> Path:
    """A local copy of a remote file of a snapshot, copied only if there is none yet.

    Raises:
        DataError: gone, unreadable, or not the bytes of the snapshot.
    """
    found = copies.find(file.sha256)
    if found is not None:
        return found
    if copy_remote(uri, copies)[0] != file.sha256:
        raise changed(uri)
    found = copies.find(file.sha256)
    assert found is not None, uri
    return found


def copy_remote(uri: str, copies: FileCache) -> tuple[str, int]:
    """Copy a remote file under its digest; SHA-256 and size in bytes of what was copied.

    Raises:
        DataError: it cannot be read.
    """
    # The digest is known only after the copy, so the place to copy to is named after the URI.
    with copies.making(f"copy-{sha256_bytes(uri.encode())}") as staging:
        with staging.open("wb") as stream:
            sha256, size_bytes = hash_remote(uri, stream)
        copies.keep(sha256, staging, sha256, {"size_bytes": size_bytes})
    return sha256, size_bytes


def hash_remote(uri: str, copy: BinaryIO | None = None) -> tuple[str, int]:
    """SHA-256 and size in bytes of a remote file as it is read, which is also written to `copy`.

    Raises:
        DataError: it cannot be read.
    """
    sha256, size_bytes = hashlib.sha256(), 0
    with open_remote(uri) as source:
        while True:
            with reading_remote(uri):
                chunk = source.read(CHUNK_BYTES)
            if not chunk:
                return sha256.hexdigest(), size_bytes
            sha256.update(chunk)
            size_bytes += len(chunk)
            if copy is not None:
                copy.write(chunk)


@contextlib.contextmanager
def open_remote(uri: str) -> Iterator[Any]:
    """A remote file, open for reading.

    Raises:
        DataError: it cannot be opened.
    """
    with reading_remote(uri):
        fs, path = file_system_of(uri, uri)
        source = fs.open(path, "rb")
    with source:
        yield source


def _read_remote(uri: str) -> bytes:
    with reading_remote(uri):
        fs, path = file_system_of(uri, uri)
        data: bytes = fs.cat_file(path)
    return data
