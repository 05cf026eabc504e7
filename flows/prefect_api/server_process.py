"""A Prefect server on a socket that it is handed: `python -m headway.flows.prefect_api.server_process DESCRIPTOR`.

Prefect's own command takes a port, shows it to every user of the machine, and binds it seconds later: whoever was there
before kept the server from starting. Settings come from the environment and the user's Prefect profile.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from asyncio import BaseTransport
from collections.abc import Iterable
from typing import Any

from headway.flows.console.prefect_settings import leave_out_the_current_folder
from headway.flows.prefect_api.listeners import users_connected

ALONE = "--alone"
"""Without services for schedules and late runs."""
MAX_CONNECTIONS = 256
"""Beyond so many those of other users are closed. Their silence would use up the files that the server may open, of
which there are 1024 by default, and a stranger needs no password to be silent."""
BACKLOG = 128
"""So many may be accepted before the first of them is looked at, and a look takes a file, too."""


def main(descriptor: str, *options: str) -> None:
    """
    Args:
        descriptor: the number of a socket that listens.
    """
    leave_out_the_current_folder()
    gc.set_threshold(50_000, 20, 20)  # as in `headway`: most of what is imported stays
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[valid-type, misc] # whichever is installed
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > MAX_CONNECTIONS:
                close_strangers(each.transport for each in list(self.connections))

    config = uvicorn.Config(
        create_app(final=True, webserver_only=ALONE in options),
        http=BoundedProtocol,
        backlog=BACKLOG,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )
    listener = socket.socket(fileno=int(descriptor))
    listener.set_inheritable(False)
    uvicorn.Server(config).run(sockets=[listener])


def close_strangers(connections: Iterable[BaseTransport]) -> None:
    """Close the connections of other users to this server; root's are as good as our own."""
    users: dict[tuple[str, int], int] | None = None
    for transport in connections:
        if transport.is_closing():
            continue
        if users is None:  # one look for all of them
            users = users_connected(transport.get_extra_info("sockname")[1])
        if users.get(transport.get_extra_info("peername"), 0) not in (0, os.geteuid()):
            transport.abort()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(*sys.argv[1:])
