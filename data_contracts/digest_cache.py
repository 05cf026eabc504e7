"""Remembered digests, so that a file whose stat identity or strong ETag is unchanged is not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from data_contracts.digests import CHUNK_BYTES, canonical_json, sha256_bytes, stat_identity
from data_contracts.errors import DataError
from data_contracts.leftovers import claimed, staging_name

FORMAT_VERSION = 1
RACY_NS = 2_000_000_000
"""A file whose ctime is younger than this when it is hashed is not remembered: file systems stamp in ticks (up to
2 s on FAT), so a second edit could carry the same stamp. Git calls such index entries racy, and does the same."""

Identity = tuple[int, int, int, int]
Remote = tuple[int, str, str]
"""Size in bytes, strong ETag and SHA-256 of a remote file."""


def is_settled(identity: Identity, hashed_at_ns: int) -> bool:
    """Whether any later edit must show in the stat identity."""
    return hashed_at_ns - identity[2] >= RACY_NS


class DigestCache:
    """SHA-256 of local files by absolute path and stat identity (size, mtime, ctime, inode).

    Args:
        path: the cache's own file. Missing or corrupt is the same as empty: a cache can only save time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries, self._remote = _load(path)
        self._is_changed = False

    def digest(self, path: Path) -> tuple[str, int]:
        """SHA-256 and size in bytes of a local file, which is read only if it may have changed.

        Raises:
            DataError: it changed while it was read.
            OSError: it cannot be read.
        """
        status = path.stat()
        remembered = self.lookup(path, status)
        if remembered is not None:
            return remembered, status.st_size
        hashed_at_ns = time.time_ns()
        sha256, identity = hash_stable(path)
        self.remember(path, identity, sha256, hashed_at_ns)
        return sha256, identity[0]

    def lookup(self, path: Path, status: os.stat_result) -> str | None:
        """The remembered SHA-256, if the file is certainly the one that was hashed."""
        entry = self._entries.get(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps `..`
        return entry[1] if entry is not None and entry[0] == stat_identity(status) else None

    def remember(self, path: Path, identity: Identity, sha256: str, hashed_at_ns: int) -> None:
        """Keep a digest that was begun at `hashed_at_ns` (Unix time), unless the file is too young to be sure."""
        name = os.path.abspath(path)  # noqa: PTH100
        if is_settled(identity, hashed_at_ns):
            self._entries[name] = identity, sha256
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

    def lookup_remote(self, uri: str, size_bytes: int, etag: str) -> str | None:
        """The remembered SHA-256 of a remote file, if its store still calls it by the same strong ETag.

        A store could be wrong; whoever reads the file hashes what was read.
        """
        entry = self._remote.get(_remote_name(uri))
        return entry[2] if etag and entry is not None and entry[:2] == (size_bytes, etag) else None

    def remember_remote(self, uri: str, size_bytes: int, etag: str, sha256: str) -> None:
        """Keep a digest of what was read under a strong ETag."""
        if etag:
            self._remote[_remote_name(uri)] = size_bytes, etag, sha256
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


def hash_stable(path: Path) -> tuple[str, Identity]:
    """SHA-256 of one version of a file, streamed, and the identity of that version.

    Raises:
        DataError: the file changed meanwhile, so the digest would be of a mixture.
    """
    sha256 = hashlib.sha256()
    size_bytes = 0
    with path.open("rb", buffering=0) as stream:
        before = stat_identity(os.fstat(stream.fileno()))
        while chunk := stream.read(CHUNK_BYTES):
            sha256.update(chunk)
            size_bytes += len(chunk)
        after = stat_identity(os.fstat(stream.fileno()))
    if before != after or size_bytes != before[0] or stat_identity(path.stat()) != before:
        raise DataError(
            "the file changed while it was read.",
            where=str(path),
            advice="Let its writer finish (publish by rename), then run again.",
        )
    return sha256.hexdigest(), before


def _load(path: Path) -> tuple[dict[str, tuple[Identity, str]], dict[str, Remote]]:
    try:
        value = json.loads(path.read_bytes())
        if value["format_version"] != FORMAT_VERSION:
            return {}, {}
        remote = {name: _remote_entry(*entry) for name, entry in value.get("remote", {}).items()}
        return {name: _entry(*entry) for name, entry in value["entries"].items()}, remote
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, {}


def _entry(identity: list[int], sha256: str) -> tuple[Identity, str]:
    size_bytes, mtime_ns, ctime_ns, inode = (int(part) for part in identity)
    return (size_bytes, mtime_ns, ctime_ns, inode), _digest(sha256)


def _remote_entry(size_bytes: int, etag: str, sha256: str) -> Remote:
    return int(size_bytes), str(etag), _digest(sha256)


def _digest(sha256: str) -> str:
    if len(sha256) != 64:
        raise ValueError(sha256)
    return sha256


def _remote_name(uri: str) -> str:
    # A URI may hold credentials.
    return sha256_bytes(uri.encode())
