"""Whose a listening port of this machine is: any account may have taken it before the server that was meant."""

from __future__ import annotations

import contextlib
from pathlib import Path

LISTENS = "0A"
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""proc(5): local address in the second column, state in the fourth, user in the eighth."""


def users_listening(port: int) -> set[int]:
    """Numbers of the users that listen on a port, on whatever address; none where nobody does."""
    found = set()
    for table in TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == LISTENS and int(columns[1].rpartition(":")[2], 16) == port:
                    found.add(int(columns[7]))
    return found
