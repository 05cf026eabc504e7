"""Whose a listening port of this machine is: any account may have taken it before the server that was meant."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import urlsplit

from data_contracts.errors import EnvironmentProblem

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


def require_own_listener(url: str, server: str) -> None:
    """Before a password that is meant for a server of this user's own goes there. Root's are as good.

    Args:
        url: of a loopback address.

    Raises:
        EnvironmentProblem: another user listens on that port.
    """
    others = users_listening(urlsplit(url).port or 0) - {os.geteuid(), 0}
    if others:
        raise EnvironmentProblem(
            f"another user (uid {min(others)}) has taken {server}'s port.",
            where=url,
            advice="Give another port, and ask that user.",
        )
