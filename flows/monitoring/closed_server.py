"""A server of one page for who knows its password: on one address, also beside clients that are slow, many or gone."""

from __future__ import annotations

import base64
import contextlib
import hmac
import ipaddress
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, SOCK_STREAM, getaddrinfo, socket
from typing import Any, NamedTuple

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, HeadwayError
from headway.flows.console.output import print_line
from headway.flows.prefect_api.server_password import USER, kept_password, private_folder

REQUEST_S = 10.0
"""For a whole request of somebody who may be slow on purpose."""
MAX_CONNECTIONS = 16
ROOM_S = 1.0
"""For a connection that is closed to be let go of."""
EVERYWHERE = frozenset({"", "*"})
"""Besides every spelling of the wildcard address, of which a resolver knows many: 0, 0x0, [::0]."""
MAX_PORT_DIGITS = 5

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
"""Whatever a ledger says, a page loads and runs nothing, and stays in no cache."""


class Answer(NamedTuple):
    body: bytes
    content_type: str


class _Handler(BaseHTTPRequestHandler):
    """Answers `GET` of the one page alone."""

    server: ClosedServer
    protocol_version = "HTTP/1.0"  # a connection a request: none is kept open

    def setup(self) -> None:
        super().setup()
        # Of the whole request: a socket's own timeout begins anew with each byte.
        self._deadline = threading.Timer(REQUEST_S, self._close)
        self._deadline.daemon = True
        self._deadline.start()

    def finish(self) -> None:
        self._deadline.cancel()
        super().finish()

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # it has gone by itself
            self.connection.shutdown(SHUT_RDWR)

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        self._deadline.cancel()  # it is read; a look at a large workspace may take longer
        self.connection.settimeout(REQUEST_S)
        given = self.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(given, self.server.wanted):
            self._answer(HTTPStatus.UNAUTHORIZED, b"It asks for the servers' password.\n", "text/plain")
        elif self.path.partition("?")[0] != self.server.path:
            self._answer(HTTPStatus.NOT_FOUND, f"The page is at {self.server.path}.\n".encode(), "text/plain")
        else:
            self._page()

    def _page(self) -> None:
        try:
            page = self.server.page(self.headers.get("Accept", ""))
        except (HeadwayError, OSError) as error:
            # Prometheus takes the target as down, which is what its alert is for.
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(errors="replace"), "text/plain")
            return
        self._answer(HTTPStatus.OK, page.body, page.content_type)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="headway"')
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A line each fifteen seconds tells nobody anything."""


class ClosedServer(ThreadingHTTPServer):
    """Serves until it is shut down. Who derives from it says where the page is, and makes it.

    Args:
        address: host and port to listen on; port 0: any that is free.
        password: `user:password`, for HTTP basic authentication.

    Raises:
        EnvironmentProblem: the address cannot be had.
    """

    daemon_threads = True
    allow_reuse_address = True
    path = "/"

    def __init__(self, address: tuple[str, int], password: str) -> None:
        self.wanted = b"Basic " + base64.b64encode(password.encode())
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._silent: dict[Any, None] = {}
        """Connections that have not asked yet, the oldest first."""
        self._listing = threading.Lock()
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise EnvironmentProblem(
                f"it cannot listen there ({error.strerror or error}).",
                where=f"{address[0]}:{address[1]}",
                advice="Name another address of this machine, or a free port, with --listen.",
            ) from error

    def page(self, accept: str) -> Answer:
        """Made in a thread of its own.

        Args:
            accept: the header of whoever asks.

        Raises:
            HeadwayError, OSError: it cannot be made now, which is told.
        """
        raise NotImplementedError

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}{self.path}"

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        # Bounded, or whoever opens many connections at once would have a thread for each. Who asks does so at once, so
        # that silence, which needs no password, keeps no scraper out.
        if self._slots.acquire(blocking=False) or (self._close_oldest() and self._slots.acquire(timeout=ROOM_S)):
            with self._listing:
                self._silent[request] = None
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _close_oldest(self) -> bool:
        """Whether there was one that had not asked."""
        with self._listing:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return False
            del self._silent[oldest]
            with contextlib.suppress(OSError):  # it has gone by itself
                oldest.shutdown(SHUT_RDWR)
        return True

    def has_asked(self, request: Any) -> None:
        """It is not closed for another's sake any more."""
        with self._listing:
            self._silent.pop(request, None)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._slots.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A client that went away is no error of ours."""


def listen_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` of one address.

    Raises:
        ConfigError: it is none, or all addresses of the machine.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if host in EVERYWHERE or _is_wildcard(host):
        raise ConfigError(
            "it listens on one address, never on all of a machine.",
            where=f"--listen {text}",
            advice="Name it, such as 127.0.0.1:9464, or the address that others reach this machine by.",
        )
    if not (port.isascii() and port.isdecimal() and len(port) <= MAX_PORT_DIGITS) or int(port) > 65535:
        raise ConfigError(
            "it has no port.", where=f"--listen {text}", advice="Write HOST:PORT, such as 127.0.0.1:9464."
        )
    return host, int(port)


def _is_wildcard(host: str) -> bool:
    """As the resolver reads it, which is how the socket will; who has no address at all is refused there."""
    try:
        found = getaddrinfo(host, None, type=SOCK_STREAM)
    except (OSError, ValueError):  # a name that no encoding has is a ValueError
        return False
    addresses = [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
    return any((getattr(each, "ipv4_mapped", None) or each).is_unspecified for each in addresses)


def served_password(file: Path | None, own: str) -> tuple[str, Path]:
    """`user:password`, and the file that holds the password alone, as Prometheus's `password_file` has it.

    Args:
        file: somebody else's; None: this user's own, drawn once.
        own: that file's name.

    Raises:
        ConfigError: there is nothing in it.
        EnvironmentProblem: it cannot be read, or written.
    """
    if file is None:
        file = private_folder() / own
        return f"{USER}:{kept_password(file, draw=secrets.token_urlsafe)}", file
    try:
        password = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"the password cannot be read ({error}).", where=str(file)) from error
    if not password:
        raise ConfigError("the password is empty.", where=str(file), advice="Write one into it, on one line.")
    return f"{USER}:{password}", file


def serve(server: ClosedServer, what: str, file: Path) -> None:
    """Until a signal ends it.

    Args:
        what: is served, for people.
        file: that holds the password.
    """
    with server:
        print_line(f"{what} at {server.url}")
        print_line(f"user {USER}, password in {file}; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
