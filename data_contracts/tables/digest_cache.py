"""Remembered digests, so that a file whose stat identity or strong ETag is unchanged is not read again."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from headway.data_contracts.store.digests import (
    CHUNK_BYTES,
    HASHERS,
    Algorithm,
    canonical_json,
    opened,
    sha256_bytes,
    stat_identity,
)
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.store.leftovers import claimed, staging_name
from headway.data_contracts.store.regular_files import read_regular

FORMAT_VERSION = 1
RACY_NS = 2_000_000_000
"""A file whose ctime is younger than this when it is hashed is not remembered: file systems stamp in ticks (up to
2 s on FAT), so a second edit could carry the same stamp. Git calls such index entries racy, and does the same."""

Identity = tuple[int, int, int, int]
Remote = tuple[int, str, str]
"""Size in bytes, strong ETag and digest of a remote file."""


def is_settled(identity: Identity, hashed_at_ns: int) -> bool:
    """Whether any later edit must show in the stat identity."""
    return hashed_at_ns - identity[2] >= RACY_NS


class DigestCache:
    """Digests of local files by absolute path and stat identity (size, mtime, ctime, inode).

    Args:
        path: the cache's own file. Missing or corrupt is the same as empty: a cache can only save time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries, self._remote = _load(path)
        self._is_changed = False

    def digest(self, path: Path, algorithm: Algorithm = "sha256") -> tuple[str, int]:
        """Digest and size in bytes of a local file, which is read only if it may have changed.

        Raises:
            DataError: it changed while it was read.
            OSError: it cannot be read.
        """
        status = path.stat()
        remembered = self._lookup(path, status, algorithm)
        if remembered is not None:
            return remembered, status.st_size
        # The clock is read before hashing starts, so that a write during it makes the file too young.
        hashed_at_ns = time.time_ns()
        digest, identity = hash_stable(path, algorithm)
        self._remember(path, identity, digest, hashed_at_ns, algorithm)
        return digest, identity[0]

    def _lookup(self, path: Path, status: os.stat_result, algorithm: Algorithm) -> str | None:
        """The remembered digest, if the file is certainly the one that was hashed."""
        entry = self._entries.get(_local_name(path, algorithm))
        return entry[1] if entry is not None and entry[0] == stat_identity(status) else None

    def _remember(self, path: Path, identity: Identity, digest: str, hashed_at_ns: int, algorithm: Algorithm) -> None:
        """Keep a digest that was started at `hashed_at_ns` (Unix time), unless the file is too young to be sure."""
        name = _local_name(path, algorithm)
        if is_settled(identity, hashed_at_ns):
            self._entries[name] = identity, digest
            self._is_changed = True
        elif self._entries.pop(name, None) is not None:
            self._is_changed = True

    def forget_all(self) -> None:
        """Believe nothing that was hashed before: for when a file turned out to be other than its stat identity said.

        Bits that rot leave size and times alone, and seldom rot in one place only.
        """
        self._is_changed = self._is_changed or bool(self._entries or self._remote)
        self._entries.clear()
        self._remote.clear()

    def lookup_remote(self, uri: str, size_bytes: int, etag: str, algorithm: Algorithm = "sha256") -> str | None:
        """The remembered digest of a remote file, if its store still calls it by the same strong ETag.

        A store could be wrong; whoever reads the file hashes what was read.
        """
        entry = self._remote.get(_remote_name(uri, algorithm))
        return entry[2] if etag and entry is not None and entry[:2] == (size_bytes, etag) else None

    def remember_remote(
        self, uri: str, size_bytes: int, etag: str, digest: str, algorithm: Algorithm = "sha256"
    ) -> None:
        """Keep a digest of what was read under a strong ETag."""
        if etag:
            self._remote[_remote_name(uri, algorithm)] = size_bytes, etag, digest
            self._is_changed = True

    def save(self) -> None:
        """Write the cache, whole or not at all. A disk that refuses costs time later, never the run."""
        if not self._is_changed:
            return
        staging = self.path.with_name(staging_name(self.path.name))
        value = {"format_version": FORMAT_VERSION, "entries": self._entries, "remote": self._remote}
        with contextlib.suppress(OSError):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with claimed(staging):
                    staging.write_bytes(canonical_json(value))
                    staging.replace(self.path)
                self._is_changed = False
            finally:
                staging.unlink(missing_ok=True)


def hash_stable(path: Path, algorithm: Algorithm = "sha256") -> tuple[str, Identity]:
    """Digest of one version of a file, streamed, and the identity of that version.

    Raises:
        DataError: the file changed meanwhile, so the digest would be of a mixture.
        IntegrityError: it is no file.
    """
    digest = HASHERS[algorithm]()
    size_bytes = 0
    with opened(path) as stream:
        before = stat_identity(os.fstat(stream.fileno()))
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
        after = stat_identity(os.fstat(stream.fileno()))
    # The name is looked at too: a rename may have put another file under it, which the open one does not show.
    if before != after or size_bytes != before[0] or stat_identity(path.stat()) != before:
        raise DataError(
            "the file changed while it was read.",
            where=str(path),
            advice="Let its writer finish (publish by rename), then run again.",
        )
    return digest.hexdigest(), before


def _load(path: Path) -> tuple[dict[str, tuple[Identity, str]], dict[str, Remote]]:
    try:
        value = json.loads(read_regular(path))
        if value["format_version"] != FORMAT_VERSION:
            return {}, {}
        remote = {name: _remote_entry(*entry) for name, entry in value.get("remote", {}).items()}
        return {name: _entry(*entry) for name, entry in value["entries"].items()}, remote
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, {}


def _entry(identity: list[int], digest: str) -> tuple[Identity, str]:
    size_bytes, mtime_ns, ctime_ns, inode = (int(part) for part in identity)
    return (size_bytes, mtime_ns, ctime_ns, inode), _digest(digest)


def _remote_entry(size_bytes: int, etag: str, digest: str) -> Remote:
    return int(size_bytes), str(etag), _digest(digest)


def _digest(digest: str) -> str:
    if len(digest) != 64:
        raise ValueError(digest)
    return digest


def _local_name(path: Path, algorithm: Algorithm) -> str:
    return _kind(algorithm) + os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps `..`


def _remote_name(uri: str, algorithm: Algorithm) -> str:
    # A URI may hold credentials.
    return _kind(algorithm) + sha256_bytes(uri.encode())


def _kind(algorithm: Algorithm) -> str:
    return "" if algorithm == "sha256" else f"{algorithm}:"
