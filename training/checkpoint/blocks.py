"""Files with a digest per block: written once, and read in parts that are verified without the rest.

Blocks have XXH3-128, which is as fast as memory: a flipped bit shows when the block is read. BLAKE3 over the whole
file, which the chain of proof goes by, is worked out in a second thread while the file is written, and is done before
the disk is; SHA-256 would not be. What is hashed is what is then used: the same bytes in memory, so nothing can change
in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import xxhash

from headway.data_contracts.store.digests import HASHERS, Algorithm
from headway.data_contracts.store.documents import CheckpointFile
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError
from headway.data_contracts.store.publication import Sync, Workspace
from headway.data_contracts.store.regular_files import open_unbuffered
from headway.training.checkpoint.file_image import PAGE_BYTES
from headway.training.checkpoint.layout import LENGTH_BYTES, MAX_HEADER_BYTES, Entry, parse_header

BLOCK_BYTES = 4 << 20
DIRECT_BYTES = 1 << 20
"""Smaller files are not worth the trouble of writing past the cache."""
WRITE_BYTES = 16 << 20
SYNC_BYTES = 1 << 30
"""What goes into the cache goes on to the disk after so many bytes: all of a large file at once would take long, and
show no progress."""
READ_BYTES = 64 << 20
"""At most so many in one call."""


def nothing() -> None:
    """For who need not be told."""


def at_once(_stop: int) -> None:
    """For bytes that are all there."""


def publish_blocks(
    store: Workspace,
    relative: str,
    data: memoryview,
    *,
    algorithm: Algorithm = "blake3",
    prepare: Callable[[Path], object] = lambda _staging: None,
    sync: Sync = "file and name",
    wait_for: Callable[[int], object] = at_once,
    digesters: Executor | None = None,
    on_part: Callable[[], None] = nothing,
) -> CheckpointFile:
    """Write a file durably; nothing of that name is there before it is whole.

    Args:
        algorithm: of the digest of the whole.
        prepare: as of `Workspace.staged`; a file that it puts there is as long as `data`, and written over.
        sync: as of `Workspace.staged`.
        wait_for: returns once `data` is there up to that byte; what is, is written. Digests wait for all of it: they
            would take the processor from who fills it, whom training waits for.
        digesters: threads that digest this file and others; one of its own by default.
        on_part: called after each part that is written or digested, in threads of this one's.

    Raises:
        EnvironmentProblem: no space left, or writing is refused.
    """
    with (
        contextlib.ExitStack() as own,
        store.staged(relative, prepare=prepare, sync=sync) as staging,
    ):
        if digesters is None:
            digesters = own.enter_context(ThreadPoolExecutor(1, "checkpoint-digests"))
        digests = digesters.submit(_digests, data, algorithm, wait_for, on_part)
        write_past_cache(staging, data, wait_for=wait_for, on_part=on_part)
        whole, blocks = digests.result()
    return CheckpointFile(
        name=relative.rpartition("/")[2],
        size_bytes=len(data),
        block_bytes=BLOCK_BYTES,
        blocks=blocks,
        **{algorithm: whole},
    )


NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class BlockMissing(IntegrityError):
    """No such file, as far as this rank sees: it has read no wrong byte."""


def unreadable(path: Path, error: OSError) -> EnvironmentProblem:
    """A disk or a mount that gives no answer says nothing about the bytes: nothing is to be quarantined for it."""
    return EnvironmentProblem(
        f"cannot be read ({error.strerror}).",
        where=str(path),
        advice="See to the disk or the mount; the checkpoint was left where it is.",
    )


def write_past_cache(
    path: Path,
    data: memoryview,
    *,
    wait_for: Callable[[int], object] = at_once,
    on_part: Callable[[], None] = nothing,
) -> None:
    """Write all of a file, past the page cache where that can be.

    Memory for pages that nobody will read soon costs more time than the disk does, and drives out the shards that the
    loader is about to read. File systems that refuse get an ordinary write.
    """
    # Direct writes take whole pages at aligned offsets; what does not fill a page goes through the cache.
    past_cache = getattr(os, "O_DIRECT", 0) if len(data) >= DIRECT_BYTES else 0
    num_direct = len(data) - len(data) % PAGE_BYTES if past_cache else 0
    try:
        # O_DIRECT holds for a whole descriptor, and the unaligned rest cannot be written through it.
        _write(path, data[:num_direct], past_cache, 0, wait_for, on_part)
    except OSError as error:
        # tmpfs and some network file systems refuse O_DIRECT when it is opened, others at the first write.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        num_direct = 0
    _write(path, data[num_direct:], 0, num_direct, wait_for, on_part)


def _write(
    path: Path,
    data: memoryview,
    flags: int,
    offset: int,
    wait_for: Callable[[int], object],
    on_part: Callable[[], None],
) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags)
    try:
        for start in range(0, len(data), WRITE_BYTES):
            part = data[start : start + WRITE_BYTES]
            # Staging may still be copying; what is there already goes to the disk meanwhile.
            wait_for(offset + len(part))
            while part:
                # A write may be short, on a signal or a full disk; the rest follows, or the next call raises.
                num_written = os.pwrite(descriptor, part, offset)
                part, offset = part[num_written:], offset + num_written
            # Only through the cache; direct writes are on the disk already.
            if not flags and (start + WRITE_BYTES) % SYNC_BYTES == 0:
                os.fdatasync(descriptor)
            on_part()
    finally:
        os.close(descriptor)


def _digests(
    data: memoryview, algorithm: Algorithm, wait_for: Callable[[int], object], on_part: Callable[[], None]
) -> tuple[str, tuple[str, ...]]:
    """Of the whole, and of every block."""
    wait_for(len(data))
    whole, blocks = HASHERS[algorithm](), []
    for start in range(0, len(data), BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        # Of each block, so that a rank which reads a few rows need not read the file to verify them.
        blocks.append(xxhash.xxh3_128_hexdigest(block))
        whole.update(block)
        on_part()
    return whole.hexdigest(), tuple(blocks)


class BlockReader:
    """A safetensors file of a checkpoint, every byte of which is checked before it is given out.

    Args:
        on_part: called after each part that is read.

    Raises:
        BlockMissing: on opening, the file is missing.
        IntegrityError: on opening, the file is of another size; on reading, it differs from its manifest.
    """

    def __init__(self, directory: Path, file: CheckpointFile, *, on_part: Callable[[], None] = nothing) -> None:
        self._path, self._size_bytes, self._on_part = directory / file.name, file.size_bytes, on_part
        self._digests, self._block_bytes = file.blocks, file.block_bytes
        # Before anything is read: a manifest whose blocks do not cover the file would leave bytes unchecked.
        if self._block_bytes * (len(self._digests) - 1) >= max(1, file.size_bytes) or (
            self._block_bytes * len(self._digests) < file.size_bytes
        ):
            raise self._bad("the blocks in its manifest do not make up its size.")
        self._held, self._held_index = memoryview(b""), -1
        self.num_blocks_read = 0
        try:
            # Unbuffered: a buffer would read bytes of the next block, which are then read again and checked again.
            self._file = open_unbuffered(self._path)
        except NO_FILE as error:
            raise BlockMissing(f"not a file ({error.strerror}).", where=str(self._path)) from error
        except OSError as error:
            raise unreadable(self._path, error) from error
        if (actual := os.fstat(self._file.fileno()).st_size) != file.size_bytes:
            self._file.close()
            raise self._bad(f"{actual} bytes; its manifest says {file.size_bytes} bytes.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._file.close()

    def entries(self) -> dict[str, Entry]:
        """What the file holds, by name."""
        length = int.from_bytes(self._read(0, min(LENGTH_BYTES, self._size_bytes)), "little")
        # The length comes from the file; without this bound a flipped bit could ask for gigabytes.
        if length > min(MAX_HEADER_BYTES, self._size_bytes - LENGTH_BYTES):
            raise self._bad("not readable as safetensors (the header is longer than the file).")
        try:
            entries = parse_header(self._read(LENGTH_BYTES, LENGTH_BYTES + length))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._bad(f"not readable as safetensors ({error}).") from error
        # Bytes behind the last tensor are no tensor's, and no digest of a slice would cover them.
        if max((entry.stop for entry in entries.values()), default=LENGTH_BYTES + length) != self._size_bytes:
            raise self._bad("not readable as safetensors (its tensors do not fill it).")
        return entries

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `start` on, by whole blocks; reading in order, each is read once."""
        position, stop = start, start + len(target)
        while position < stop:
            index = position // self._block_bytes
            begin = index * self._block_bytes
            end = min(begin + self._block_bytes, self._size_bytes)
            # A whole block goes straight to its place; only parts of blocks pass through a copy.
            if index != self._held_index and begin == position and end <= stop:
                self._fetch(index, begin, target[begin - start : end - start])
                position = end
                continue
            if index != self._held_index:
                block = memoryview(bytearray(end - begin))
                self._fetch(index, begin, block)
                # One block is held: neighbouring tensors share it, and it is read and digested once.
                self._held, self._held_index = block, index
            taken = min(end, stop)
            target[position - start : taken - start] = self._held[position - begin : taken - begin]
            position = taken

    def _read(self, start: int, stop: int) -> bytes:
        data = bytearray(stop - start)
        self.read_into(start, memoryview(data))
        return bytes(data)

    def _fetch(self, index: int, begin: int, block: memoryview) -> None:
        filled = 0
        try:
            while filled < len(block):
                part = block[filled : filled + READ_BYTES]
                # `preadv` fills the caller's memory, so the digest is of the very bytes that are then used.
                if not (got := os.preadv(self._file.fileno(), [part], begin + filled)):
                    break
                filled += got
                self._on_part()
        except OSError as error:
            raise unreadable(self._path, error) from error
        self.num_blocks_read += 1
        digest = xxhash.xxh3_128_hexdigest(block) if filled == len(block) else "shorter than it was"
        if digest != self._digests[index]:
            raise self._bad(
                f"block {index} (from byte {begin}) is {digest[:12]}; its manifest says {self._digests[index][:12]}."
            )

    def _bad(self, what: str) -> IntegrityError:
        return IntegrityError(what, where=str(self._path))
