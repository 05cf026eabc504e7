"""Whose a port of this machine is, and who is connected to one: any account may listen, and connect, on loopback."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from headway.data_contracts.store.errors import EnvironmentProblem

LISTENS, CONNECTED = "0A", "01"
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""proc(5): local address in the second column, the other end's in the third, state in the fourth, user in the eighth.
"""

IPV4_DIGITS = 8
DEFAULT_PORTS = {"http": 80, "https": 443}


def users_listening(port: int) -> set[int]:
    """Numbers of the users that listen on a port, on whatever address; none where nobody does."""
    return {int(columns[7]) for columns in _sockets() if columns[3] == LISTENS and _ends_with_port(columns[1], port)}


def users_connected(port: int) -> dict[tuple[str, int], int]:
    """Numbers of the users that are connected to a port of loopback, by their own ends' IPv4 addresses and ports."""
    found = {}
    for columns in _sockets():
        if columns[3] == CONNECTED and _ends_with_port(columns[2], port):
            address, _, own_port = columns[1].partition(":")
            if len(address) == IPV4_DIGITS:
                host = socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder))
                found[host, int(own_port, 16)] = int(columns[7])
    return found


def _sockets() -> Iterator[list[str]]:
    for table in TABLES:
        with contextlib.suppress(OSError):
            yield from (line.split() for line in table.read_text().splitlines()[1:])


def _ends_with_port(end: str, port: int) -> bool:
    return int(end.rpartition(":")[2], 16) == port


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
