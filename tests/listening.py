"""Where a process listens, as its own network namespace shows it."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

_LISTENING = "0A"


def listening(pid: int) -> list[tuple[str, int]]:
    """Addresses and ports at which a process listens; none where it has ended."""
    found = []
    with contextlib.suppress(OSError):
        links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, place, _, state, *rest = line.split()
                if state == _LISTENING and rest[5] in inodes:
                    digits, port = place.split(":")
                    words = [int(digits[n : n + 8], 16) for n in range(0, len(digits), 8)]
                    packed = b"".join(struct.pack("=I", word) for word in words)
                    found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found
