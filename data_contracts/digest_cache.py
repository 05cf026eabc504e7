"""Remembered digests of local files, so that a file whose stat identity is unchanged is not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import uuid
from pathlib import Path

from data_contracts.digests import CHUNK_BYTES, canonical_json, stat_identity
from data_contracts.errors import DataError

FORMAT_VERSION = 1
RACY_NS = 2_000_000_000
"""A file whose ctime is younger than this when it is hashed is not remembered: file systems stamp in ticks (up to
2 s on FAT), so a second edit could carry the same stamp. Git calls such index entries racy, and does the same."""

Identity = tuple[int, int, int, int]


def is_settled(identity: Identity, hashed_at_ns: int) -> bool:
    """Whether any later edit must show in the stat identity."""
    return hashed_at_ns - identity[2] >= RACY_NS


class DigestCache:
    """SHA-256 of local files by absolute path and stat identity (size, mtime, ctime, inode).

    Args:
        path: the cache's own file. Missing or corrupt is the same as empty: a cache can only save time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, tuple[Identity, str]] = _load(path)
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

    def save(self) -> None:
        """Write the cache, whole or not at all. A disk that refuses costs time later, never the run."""
        if not self._is_changed:
            return
        staging = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}.partial")
        value = {"format_version": FORMAT_VERSION, "entries": self._entries}
        with contextlib.suppress(OSError):
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                staging.write_bytes(canonical_json(value))
                staging.replace(self._path)
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


def _load(path: Path) -> dict[str, tuple[Identity, str]]:
    try:
        value = json.loads(path.read_bytes())
        if value["format_version"] != FORMAT_VERSION:
            return {}
        return {name: _entry(*entry) for name, entry in value["entries"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _entry(identity: list[int], sha256: str) -> tuple[Identity, str]:
    size_bytes, mtime_ns, ctime_ns, inode = (int(part) for part in identity)
    if len(sha256) != 64:
        raise ValueError(sha256)
    return (size_bytes, mtime_ns, ctime_ns, inode), sha256
