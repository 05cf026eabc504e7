"""Files with a digest per block, written once: parts of them are verified without the rest (`verified_files`).

Blocks have XXH3-128, which is as fast as memory: a flipped bit shows when the block is read. BLAKE3 over the whole
file, which the chain of proof goes by, is worked out in a second thread while the file is written, and is done before
the disk is; SHA-256 would not be.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import xxhash

from headway.data_contracts.store.digests import HASHERS, Algorithm
from headway.data_contracts.store.documents import CheckpointFile
from headway.data_contracts.store.publication import Sync, Workspace
from headway.training.checkpoint.file_image import PAGE_BYTES
from headway.training.checkpoint.verified_files import nothing

BLOCK_BYTES = 4 << 20
DIRECT_BYTES = 1 << 20
"""Smaller files are not worth the trouble of writing past the cache."""
WRITE_BYTES = 16 << 20
SYNC_BYTES = 1 << 30
"""What goes into the cache goes on to the disk after so many bytes: all of a large file at once would take long, and
show no progress."""


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
