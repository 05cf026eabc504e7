"""Several files mapped side by side into one range of addresses, so that a gather over all of them is one call.

Python's `mmap` cannot place a mapping, so the range is reserved and filled through the C library. Reading costs
memory only for the pages touched, which the page cache shares between the processes of a machine.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

PROT_NONE, PROT_READ, MAP_FIXED = 0, 1, 0x10
FAILED = ctypes.c_void_p(-1).value


class AddressRange:
    """Read-only bytes of files, each starting on a page; unmapped when the last array over it is gone.

    Args:
        files: paths with their sizes in bytes, as their documents say.
        keep: lives as long as the mapping, such as what keeps the files where they are.

    Attributes:
        array: uint8, all files in order with gaps up to the next page.
        starts: each file's offset in `array`.
        inodes: of the files mapped.
    """

    def __init__(self, files: Sequence[tuple[Path, int]], *, keep: object = None) -> None:
        self._sizes = [size for _, size in files]
        spans = [-(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE for size in self._sizes]
        self.starts = [end - span for end, span in zip(itertools.accumulate(spans), spans, strict=True)]
        self._mapping = _Mapping(max(sum(spans), mmap.PAGESIZE), keep)
        self.inodes = [0] * len(files)
        for number, (path, _) in enumerate(files):
            self.replace(number, path)
        self._all: NDArray[np.uint8] = np.asarray(self._mapping)
        self.array = self._all.view()
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

    def windows(self, width_bytes: int) -> Tensor:
        """The `width_bytes` bytes at every offset, shape (offsets, width): a view, to select rows of.

        Read-only like `array`, though torch has no word for it: writing through it ends the process.
        """
        import torch  # here, so that whoever only maps files need not pay for it

        num_offsets = max(self._all.size - width_bytes + 1, 0)
        return torch.from_numpy(self._all).as_strided((num_offsets, width_bytes), (1, 1))


class _Mapping:
    """Owns the addresses; arrays made from it keep it alive."""

    def __init__(self, size_bytes: int, keep: object) -> None:
        self._keep = keep
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
            "data": (self._base, False),
        }

    def place(self, path: Path, size_bytes: int, start: int) -> int:
        """Map a file's first bytes over the reserved addresses at `start`. Returns its inode."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if size_bytes:
                self._call(self._base + start, size_bytes, PROT_READ, mmap.MAP_SHARED | MAP_FIXED, descriptor)
            return os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)

    def _call(self, address: int | None, size_bytes: int, protection: int, flags: int, descriptor: int) -> int:
        placed: int = self._libc.mmap(address, size_bytes, protection, flags, descriptor, 0)
        if placed == FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return placed
