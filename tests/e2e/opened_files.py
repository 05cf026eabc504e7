"""Which files were opened meanwhile, by whatever program and library: the kernel says so."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

IN_OPEN, IN_Q_OVERFLOW = 0x20, 0x4000
HEADER = struct.Struct("iIII")
LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def opened_files(paths: Iterable[Path]) -> Iterator[set[Path]]:
    """Those of `paths` that are opened meanwhile; complete at the end."""
    descriptor, opened = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), set[Path]()
    require(descriptor)
    try:
        watched = {require(LIBC.inotify_add_watch(descriptor, bytes(path), IN_OPEN)): path for path in paths}
        yield opened
        with contextlib.suppress(BlockingIOError):
            while data := os.read(descriptor, 1 << 16):
                place = 0
                while place < len(data):
                    watch, mask, _, name_bytes = HEADER.unpack_from(data, place)
                    assert not mask & IN_Q_OVERFLOW, "more was opened than the kernel keeps note of"
                    if mask & IN_OPEN:
                        opened.add(watched[watch])
                    place += HEADER.size + name_bytes
    finally:
        os.close(descriptor)


def require(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
