"""A Prefect server on a socket that it is handed: `python -m headway.flows.prefect_api.server_process DESCRIPTOR`.

Prefect's own command takes a port, shows it to every user of the machine, and binds it seconds later: whoever was there
before kept the server from starting. Settings come from the environment and the user's Prefect profile.
"""

from __future__ import annotations

import gc
import socket
import sys

from headway.flows.console.prefect_settings import leave_out_the_current_folder

ALONE = "--alone"
"""Without services for schedules and late runs."""


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
    config = uvicorn.Config(
        create_app(final=True, webserver_only=ALONE in options),
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )
    listener = socket.socket(fileno=int(descriptor))
    listener.set_inheritable(False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
