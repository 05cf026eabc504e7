"""Several files mapped side by side into one range of addresses, so that a gather over all of them is one call.

Python's `mmap` cannot place a mapping, so the range is reserved and filled through the C library. Reading costs
memory only for the pages touched, which the page cache shares between the processes of a machine.

Each file starts on a huge page, so that the processor may look up 2 MB of it at once: random rows of 4 KB then come a
fifth faster, and what is not cached yet is read from the disk in such pieces, at a tenth of the CPU time.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROT_NONE, PROT_READ, MAP_FIXED, MADV_HUGEPAGE = 0, 1, 0x10, 14
FAILED = ctypes.c_void_p(-1).value
HUGE_PAGE_BYTES = 2 << 20
MAX_ADDRESSES = 1 << 44
"""An eighth of what a process has; no file or memory stands behind those left free."""


class AddressRange:
    """Read-only bytes of files; unmapped when the last array over it is gone. Between files lies nothing: reading
    there ends the process.

    Args:
        files: paths with their sizes in bytes, as their documents say.
        widths: files start at multiples of these too, in bytes, as far as there are addresses for it.
        keep: lives as long as the mapping, such as what keeps the files where they are.

    Attributes:
        array: uint8, all files in order.
        starts: each file's offset in `array`.
        inodes: of the files mapped.
    """

    def __init__(self, files: Sequence[tuple[Path, int]], *, widths: Sequence[int] = (), keep: object = None) -> None:
        self._sizes = [size for _, size in files]
        spacing = _spacing(self._sizes, widths)
        self.starts, end = [], 0
        for size in self._sizes:
            self.starts.append(end)
            # An empty file takes a place too, so that starts stay distinct.
            end += -(-max(size, 1) // spacing) * spacing
        # Reserved as one range first: separate mappings could not be addressed by one array.
        self._mapping = _Mapping(max(end, spacing), keep)
        self.inodes = [0] * len(files)
        for number, (path, _) in enumerate(files):
            self.replace(number, path)
        self.array: NDArray[np.uint8] = np.asarray(self._mapping)
        # The mapping is read-only, and a write would end the process by a signal instead of an error.
        self.array.flags.writeable = False

    def replace(self, number: int, path: Path) -> None:
        """Map another file of the same size over the one mapped there."""
        self.inodes[number] = self._mapping.place(path, self._sizes[number], self.starts[number])

    def file(self, number: int) -> NDArray[np.uint8]:
        """The mapped bytes of one file."""
        start = self.starts[number]
        return self.array[start : start + self._sizes[number]]

    def sha256(self, number: int) -> str:
        return hashlib.sha256(self.file(number).data).hexdigest()

    def records(self, width_bytes: int, *, every_bytes: int) -> NDArray[np.void]:
        """The `width_bytes` bytes at every so many bytes, shape (n,): a view, to take records of."""
        count = max((self.array.size - width_bytes) // every_bytes + 1, 0)
        # A view that overlaps itself where the step is smaller than a record: no byte is copied.
        return np.ndarray(count, f"V{width_bytes}", buffer=self.array.data, strides=(every_bytes,))


def _spacing(sizes: Sequence[int], widths: Sequence[int]) -> int:
    """Files start at multiples of this: of as many of the widths, too, as there are addresses for."""
    spacing = HUGE_PAGE_BYTES
    # Multiples of a column's width let one array of records cover all files.
    for width in widths:
        wider = math.lcm(spacing, width)
        if sum(sizes) + len(sizes) * wider <= MAX_ADDRESSES:
            spacing = wider
    return spacing


class _Mapping:
    """Owns the addresses; arrays made from it keep it alive."""

    def __init__(self, size_bytes: int, keep: object) -> None:
        self._keep = keep
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        offset_type = ctypes.c_long  # off_t on 64-bit systems
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, offset_type]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        # One huge page more than needed, so that the base can be aligned to one.
        reserved_bytes = size_bytes + HUGE_PAGE_BYTES
        reserved = self._call(None, reserved_bytes, PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._base = -(-reserved // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        # Called when the last array is gone; the finalizer holds no reference to the mapping itself.
        release = weakref.finalize(self, self._libc.munmap, reserved, reserved_bytes)
        release.atexit = False  # a thread may still be reading while the interpreter ends
        # numpy's protocol for foreign memory; arrays made by it keep this object alive.
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (self._base, True),
        }

    def place(self, path: Path, size_bytes: int, start: int) -> int:
        """Map a file's first bytes over the reserved addresses at `start`. Returns its inode."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if size_bytes:
                # MAP_FIXED replaces reserved pages alone: the addresses are ours.
                placed = self._call(self._base + start, size_bytes, PROT_READ, mmap.MAP_SHARED | MAP_FIXED, descriptor)
                self._libc.madvise(placed, size_bytes, MADV_HUGEPAGE)  # advice: a system without them may refuse
            return os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)

    def _call(self, address: int | None, size_bytes: int, protection: int, flags: int, descriptor: int) -> int:
        placed: int = self._libc.mmap(address, size_bytes, protection, flags, descriptor, 0)
        if placed == FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return placed
