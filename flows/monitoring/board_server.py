"""The board over HTTP, for who knows the password: what `headway board` writes, made anew for whoever looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from headway.flows.config.profiles import PricesSpec
from headway.flows.monitoring.closed_server import Answer, ClosedServer, listen_address, serve, served_password
from headway.flows.show.board import read_board
from headway.flows.show.board_page import render_html

PASSWORD_FILE = "board-password"
FRESH_S = 5.0
"""A page that is younger serves the next one who asks, too: a large workspace takes seconds to read."""


class BoardServer(ClosedServer):
    """Answers `GET /`.

    Args: and what is raised: as of `ClosedServer`.
        make: the page.
    """

    def __init__(self, address: tuple[str, int], make: Callable[[], str], password: str) -> None:
        self._make, self._making = make, threading.Lock()
        self._made: tuple[float, bytes] | None = None
        super().__init__(address, password)

    def page(self, accept: str) -> Answer:
        # One at a time: who waits for the lock finds the page that the other has made.
        with self._making:
            if self._made is None or time.monotonic() - self._made[0] >= FRESH_S:
                self._made = None  # what cannot be made anew is not served from before
                body = self._make().encode(errors="replace")
                self._made = (time.monotonic(), body)
            return Answer(self._made[1], "text/html; charset=utf-8")


def serve_board(workspace: str, num_days: int, prices: PricesSpec, listen: str, password_file: Path | None) -> None:
    """Until a signal ends it.

    Raises:
        ConfigError: no address, or no password in the file.
        EnvironmentProblem: there is no workspace, or the address cannot be had.
    """
    address = listen_address(listen)
    read_board(workspace, num_days, prices)  # what cannot be read is told before anybody looks
    password, file = served_password(password_file, PASSWORD_FILE)
    server = BoardServer(address, lambda: render_html(read_board(workspace, num_days, prices)), password)
    serve(server, f"board of {workspace}", file)
