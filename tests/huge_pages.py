"""Memory of this process in huge pages, so that its forks cost little: the kernel copies one entry instead of 512.

A process that has imported all tests holds most of a gigabyte. To fork it takes the kernel a fifteenth of a second of a
core, half of it when the fork ends, and the programs of one retrain are dozens of forks. A fork that writes to a huge
page gets the small ones that it writes to, as ever.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

HUGE_BYTES = 2 << 20
MADV_COLLAPSE = 25
"""Since Linux 6.1: now, and whatever the system's policy for huge pages is."""


def into_huge_pages() -> int:
    """What of this process's own memory the kernel lets be in huge pages; how many there are. None on an older one."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    num_huge = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]):  # neither a file's nor a stack
            begin, end = (int(each, 16) for each in places.split("-"))
            for place in range(-(-begin // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES + 1, HUGE_BYTES):
                num_huge += libc.madvise(place, HUGE_BYTES, MADV_COLLAPSE) == 0
    return num_huge
