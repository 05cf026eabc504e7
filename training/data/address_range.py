"""Several files mapped side by side into one range of addresses, so that a gather over all of them is one call.

Python's `mmap` cannot place a mapping, so the range is reserved and filled through the C library. Reading costs
memory only for the pages touched, which the page cache shares between the processes of a machine.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROT_NONE, PROT_READ, MAP_FIXED = 0, 1, 0x10
FAILED = ctypes.c_void_p(-1).value


class AddressRange:
    """Read-only bytes of files, each starting on a page; unmapped when the last array over it is gone.

    Args:
        files: paths with their sizes in bytes, as their documents say.

    Attributes:
        array: uint8, all files in order with gaps up to the next page.
        starts: each file's offset in `array`.
    """

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        spans = [-(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE for _, size in files]
        self.starts = [sum(spans[:number]) for number in range(len(spans))]
        self._mapping = _Mapping(max(sum(spans), mmap.PAGESIZE))
        for (path, size), start in zip(files, self.starts, strict=True):
            self._mapping.place(path, size, start)
        self.array: NDArray[np.uint8] = np.asarray(self._mapping)


class _Mapping:
    """Owns the addresses; arrays made from it keep it alive."""

    def __init__(self, size_bytes: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        offset_type = ctypes.c_long  # off_t on 64-bit systems
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, offset_type]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._base = self._call(None, size_bytes, PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        release = weakref.finalize(self, self._libc.munmap, self._base, size_bytes)
        release.atexit = False  # a thread may still be reading while the interpreter ends
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (self._base, True),
        }

    def place(self, path: Path, size_bytes: int, start: int) -> None:
        """Map a file's first bytes over the reserved addresses at `start`."""
        if size_bytes == 0:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._call(self._base + start, size_bytes, PROT_READ, mmap.MAP_SHARED | MAP_FIXED, descriptor)
        finally:
            os.close(descriptor)

    def _call(self, address: int | None, size_bytes: int, protection: int, flags: int, descriptor: int) -> int:
        placed: int = self._libc.mmap(address, size_bytes, protection, flags, descriptor, 0)
        if placed == FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return placed
