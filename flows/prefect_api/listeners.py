"""Whose a listening port of this machine is: any account may have taken it before the server that was meant."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

from headway.data_contracts.store.errors import EnvironmentProblem

LISTENS = "0A"
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""proc(5): local address in the second column, state in the fourth, user in the eighth."""

DEFAULT_PORTS = {"http": 80, "https": 443}


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

    Raises:
        EnvironmentProblem: that is another machine, or another user listens on that port.
    """
    place = urlsplit(url)
    if not _is_loopback(place.hostname or ""):
        raise EnvironmentProblem(
            f"the password is of this machine's own {server}, and {place.hostname} may be anybody's.",
            where=url,
            advice="Name it by 127.0.0.1, or give that server's own password.",
        )
    others = users_listening(place.port or DEFAULT_PORTS.get(place.scheme, 0)) - {os.geteuid(), 0}
    if others:
        raise EnvironmentProblem(
            f"another user (uid {min(others)}) has taken {server}'s port.",
            where=url,
            advice="Give another port, and ask that user.",
        )


def _is_loopback(host: str) -> bool:
    """Of a name, `localhost` alone: what others stand for is for a resolver to say."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
