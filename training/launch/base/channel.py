"""An authenticated stream between two processes that share a key: nobody else can write, replay, reorder or cut it.

    server ──► client   server nonce
    client ──► server   client nonce, HMAC(key, "client", nonces)
    server ──► client   HMAC(key, "server", nonces)
    then frames         length, payload, HMAC(key of this direction and session, sequence number, length, payload)

HMAC-SHA256 throughout. Each direction has a key of its own, derived from the shared key and both nonces, so that no
frame of another session, of another place in this one, or of the other direction is taken. What is sent can be read by
who sees the network: it is authenticated, not encrypted. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable

HANDSHAKE_S = 3.0
"""For all that comes before the first frame, however many pieces it comes in."""
MAX_UNAUTHENTICATED = 32
"""Connections that have not shown the key yet; the oldest is closed for one more."""
MAX_MESSAGE_BYTES = 1 << 24
"""Of one payload."""
RETRY_S = 0.05
PAUSE_S = 1.0
"""How long no connection is taken after one could not be."""
_NONCE_BYTES = _MAC_BYTES = hashlib.sha256().digest_size
_LENGTH, _PLACE = struct.Struct("!I"), struct.Struct("!QI")


class Channel:
    """One end of an authenticated connection. One thread may send while another receives.

    Raises `OSError` wherever the connection is lost, or what came is not the other end's.
    """

    def __init__(self, connection: socket.socket, sending: bytes, receiving: bytes) -> None:
        self.connection = connection
        self._sending, self._receiving = sending, receiving
        self._sent = self._received = 0

    def send(self, payload: bytes) -> None:
        tag = _tag(self._sending, self._sent, payload)
        self._sent += 1
        self.connection.sendall(_LENGTH.pack(len(payload)) + payload + tag)

    def receive(self, deadline_s: float | None = None) -> bytes:
        """The next payload.

        Args:
            deadline_s: by `time.monotonic()`, for the whole of it; None: whenever it comes.
        """
        (length,) = _LENGTH.unpack(_exactly(self.connection, _LENGTH.size, deadline_s))
        if length > MAX_MESSAGE_BYTES:
            # Checked before anything is allocated, for the length is not authenticated until its tag has come.
            raise ConnectionError("a frame is longer than any that is sent")
        payload = _exactly(self.connection, length, deadline_s)
        # Constant time: an ordinary comparison tells a stranger by its duration how much of a forged tag was right.
        if not hmac.compare_digest(
            _exactly(self.connection, _MAC_BYTES, deadline_s), _tag(self._receiving, self._received, payload)
        ):
            raise ConnectionError("a frame is not the other end's")
        self._received += 1
        return payload


def connect(address: str, port: int, key: str, *, within_s: float, once_s: float = HANDSHAKE_S) -> Channel:
    """Connect to a `Listener` and show the key, again and again until it answers.

    Args:
        within_s: how long another try is begun.
        once_s: for one try.

    Raises:
        OSError: nobody with the key answered in time.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            # Each try has its own deadline: one server that accepts and says nothing must not use up all the time.
            return _connect(address, port, key, time.monotonic() + once_s)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(RETRY_S)


def _connect(address: str, port: int, key: str, deadline_s: float) -> Channel:
    connection = socket.create_connection((address, port), timeout=_left_s(deadline_s))
    with contextlib.ExitStack() as on_failure:
        on_failure.enter_context(connection)
        # Small frames go back and forth; Nagle's algorithm would hold each back for the peer's delayed acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonces = _exactly(connection, _NONCE_BYTES, deadline_s)
        # Both sides contribute a nonce, so a recording of either side fits no other session.
        nonces += (own := secrets.token_bytes(_NONCE_BYTES))
        connection.sendall(own + _derive(key, b"client", nonces))
        proof = _exactly(connection, _MAC_BYTES, deadline_s)
        if not hmac.compare_digest(proof, _derive(key, b"server", nonces)):
            raise ConnectionError("who answers does not have the key")
        connection.settimeout(None)
        on_failure.pop_all()
    return Channel(connection, _derive(key, b"to server", nonces), _derive(key, b"to client", nonces))


def accept(connection: socket.socket, key: str, deadline_s: float) -> Channel:
    """The server's side of `connect`. Raises `OSError`: a stranger, or none that is quick enough."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    nonces = secrets.token_bytes(_NONCE_BYTES)
    connection.settimeout(_left_s(deadline_s))
    connection.sendall(nonces)
    nonces += _exactly(connection, _NONCE_BYTES, deadline_s)
    proof = _exactly(connection, _MAC_BYTES, deadline_s)
    if not hmac.compare_digest(proof, _derive(key, b"client", nonces)):
        raise ConnectionError("a stranger")
    # The client has to prove itself first: a server that answers anybody would give strangers material to test keys on.
    connection.sendall(_derive(key, b"server", nonces))
    connection.settimeout(None)
    return Channel(connection, _derive(key, b"to client", nonces), _derive(key, b"to server", nonces))


class Listener:
    """Listens at one address, and serves in a thread each who has the key.

    Others get nothing, no more than `HANDSHAKE_S`, and no more than `MAX_UNAUTHENTICATED` places.

    Args:
        address: never a wildcard.
        port: 0: any.
        serve: called with a channel and the deadline for its first frame, by `time.monotonic()`; may raise `OSError`.
    """

    def __init__(self, address: str, port: int, key: str, serve: Callable[[Channel, float], None]) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # A long queue: hundreds of ranks connect in the same moment, and a refused one would wait for its next try.
        self._socket = socket.create_server((address, port), family=family, backlog=1024)
        self._key, self._serve = key, serve
        self._unproved: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    @property
    def port(self) -> int:
        found: int = self._socket.getsockname()[1]
        return found

    def start(self) -> None:
        threading.Thread(target=self._accept, name="listener", daemon=True).start()

    def close(self) -> None:
        """Take no further connection; those that are served go on."""
        self._closing.set()
        # `close` alone does not wake a thread that is blocked in `accept`; `shutdown` does.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
                with contextlib.ExitStack() as on_failure:
                    # If no thread can be started the connection is closed again, and its place given back.
                    on_failure.callback(self._close, connection)
                    self._note(connection)
                    threading.Thread(target=self._admit, args=(connection,), daemon=True).start()
                    on_failure.pop_all()
            except (OSError, RuntimeError) as error:
                if self._closing.is_set():
                    return
                # Too many files or threads are open, which passes; who is deaf for good would only look alive.
                print(f"no connection can be taken now: {error}", flush=True)
                time.sleep(PAUSE_S)

    def _note(self, connection: socket.socket) -> None:
        """The newest strangers keep the places: a holder of the key takes milliseconds to prove it."""
        with self._lock:
            self._unproved[connection] = None
            if len(self._unproved) > MAX_UNAUTHENTICATED:
                oldest = next(iter(self._unproved))
                del self._unproved[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its own thread closes it

    def _admit(self, connection: socket.socket) -> None:
        deadline_s = time.monotonic() + HANDSHAKE_S
        try:
            with contextlib.suppress(OSError):
                channel = accept(connection, self._key, deadline_s)
                with self._lock:
                    self._unproved.pop(connection, None)
                self._serve(channel, deadline_s)
        finally:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        with self._lock:
            self._unproved.pop(connection, None)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that still reads from it
            connection.close()


def _derive(key: str, what: bytes, nonces: bytes) -> bytes:
    # Purpose and nonces are part of the derivation, so the four keys of a session have nothing in common.
    return hmac.digest(key.encode(), b"headway channel 1, " + what + b": " + nonces, "sha256")


def _tag(key: bytes, number: int, payload: bytes) -> bytes:
    return hmac.digest(key, _PLACE.pack(number, len(payload)) + payload, "sha256")


def _exactly(connection: socket.socket, length: int, deadline_s: float | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        # One deadline for all pieces: a timeout for each would let a stranger stay for ever by one byte at a time.
        if deadline_s is not None:
            connection.settimeout(_left_s(deadline_s))
        if not (part := connection.recv(length - len(data))):
            raise ConnectionError("the connection was lost")
        data += part
    return bytes(data)


def _left_s(deadline_s: float) -> float:
    if (left_s := deadline_s - time.monotonic()) <= 0:
        raise TimeoutError("the other end said too little in time")
    return left_s
