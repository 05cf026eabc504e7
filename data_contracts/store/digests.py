"""Digests: canonical JSON, streamed hashes, and a read that notices a file changing under it.

SHA-256 names documents and proves files. BLAKE3 proves what has to be digested faster than disks write: it is as hard
to forge, and takes half the time or less.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from blake3 import blake3

from headway.data_contracts.store.errors import DataError, IntegrityError
from headway.data_contracts.store.regular_files import PUT_BACK, NotRegular, open_unbuffered

Algorithm = Literal["sha256", "blake3"]
"""Of a file's digest; both have 32 bytes."""

CHUNK_BYTES = 1 << 20


class Hasher(Protocol):
    """A hash that is under way."""

    def update(self, data: bytes | memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


HASHERS: dict[Algorithm, Callable[[], Hasher]] = {"sha256": hashlib.sha256, "blake3": blake3}


def canonical_json(value: Any) -> bytes:
    """Bytes that depend on the value alone: sorted keys, no spaces, UTF-8, one newline at the end.

    Raises:
        ValueError: NaN or infinity, which JSON cannot say.
    """
    # NaN is refused: JSON has no word for it, and two NaNs are not equal.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def sha256_bytes(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of(value: Any) -> str:
    """Digest of a JSON value in canonical form."""
    return sha256_bytes(canonical_json(value))


def sha256_file(path: Path) -> str:
    return file_digest(path, "sha256")


def opened(path: Path, where: str = "") -> io.FileIO:
    """A file to be read, unbuffered. What is no file is refused at once: a pipe that nobody writes to keeps no one.

    Args:
        where: the file's name in errors; its path by default.

    Raises:
        IntegrityError: a folder, pipe, socket or device lies there.
        OSError: nothing does, or it may not be read.
    """
    try:
        return open_unbuffered(path)
    except NotRegular as error:
        raise IntegrityError(f"is {error.what}, not a file.", where=where or str(path), advice=PUT_BACK) from error


def file_digest(path: Path, algorithm: Algorithm, where: str = "") -> str:
    """Args and errors as of `opened`."""
    hasher = HASHERS[algorithm]()
    with opened(path, where) as stream:
        # In parts: a file may be larger than memory.
        while chunk := stream.read(CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


class DigestingWriter:
    """A binary file that knows the SHA-256 and size of what went through it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        # Digested before it is written, so that what the disk does to the bytes shows when they are read.
        self._sha256.update(data)
        self.size_bytes += len(data)
        return self._stream.write(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


def stat_identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """What changes whenever a local file's bytes may have: size, mtime, ctime, inode.

    ctime cannot be set back from user space, so an edit that restores size and mtime still shows.
    """
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def read_stable(path: Path) -> bytes:
    """The whole file, or `DataError` when it changed while it was read: never a mixture of two versions."""
    with opened(path) as stream:
        before = stat_identity(os.fstat(stream.fileno()))
        data = stream.read()
        after = stat_identity(os.fstat(stream.fileno()))
    # The inode as well: a file that was replaced by a rename has another, though the open one did not change.
    if before != after or len(data) != before[0] or stat_identity(path.stat())[3] != before[3]:
        raise DataError(
            "the file changed while it was read.",
            where=str(path),
            advice="Let its writer finish (publish by rename), then run again.",
        )
    return data


def source_digest(modules: Mapping[str, Path]) -> str:
    """Digest of modules' source text, name by name: a stage's `code_version`."""
    return sha256_of({name: sha256_file(path) for name, path in sorted(modules.items())})
