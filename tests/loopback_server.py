"""An HTTP server of a test's own, on loopback, which says nothing of clients that go away."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that gave up waiting."""


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], ended: threading.Event) -> Iterator[str]:
    """Its address.

    Args:
        ended: is set before it ends, for answers that wait.
    """
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
