"""How fast one host reaches the next: each listens, and each measures the way to its neighbour.

    python -m training.launch.links OWN_ADDRESS OWN_PORT PEER_ADDRESS PEER_PORT

Prints `{"latency_s": ..., "bytes_per_s": ...}`, or `{"problem": ...}`. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import struct
import sys
import threading
import time
from typing import NamedTuple

MOST_PINGS, MOST_BYTES, MOST_S = 20, 16 << 20, 0.5
"""What is sent to measure a way, unless the time is over before."""
PING, DATA = b"p", b"d"
BUFFER_BYTES = 1 << 18
"""Of the sender: what lies there when the time is over has still to go its slow way."""
PATIENCE_S = 3.0
"""For the neighbour to listen, and for each answer of its."""
_COUNT = struct.Struct("!Q")


class Link(NamedTuple):
    """The way from one host to another."""

    latency_s: float
    """Half of a round trip, the median of some."""
    bytes_per_s: float


def serve_one(listener: socket.socket) -> None:
    """Answer one neighbour: each ping at once, and what follows by its number of bytes."""
    listener.settimeout(PATIENCE_S)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (word := _exactly(connection, 1)) == PING:
            connection.sendall(word)
        received = 0
        while part := connection.recv(1 << 20):
            received += len(part)
        connection.sendall(_COUNT.pack(received))


def _serve(listener: socket.socket) -> None:
    # The neighbour tells what was wrong. A word of this thread's while Python ends would abort it.
    with contextlib.suppress(OSError):
        serve_one(listener)


def measure(address: str, port: int) -> Link:
    """Raises `OSError`: the neighbour cannot be reached, went away, or the way is too slow to wait for."""
    with _connected(address, port) as connection:
        connection.settimeout(PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        trips: list[float] = []
        while not trips or (len(trips) < MOST_PINGS and sum(trips) < MOST_S):
            began = time.perf_counter()
            connection.sendall(PING)
            _exactly(connection, 1)
            trips.append(time.perf_counter() - began)
        connection.sendall(DATA)
        part, sent, began = bytes(BUFFER_BYTES), 0, time.perf_counter()
        while sent < MOST_BYTES and time.perf_counter() - began < MOST_S:
            sent += connection.send(part)
        connection.shutdown(socket.SHUT_WR)
        (received,) = _COUNT.unpack(_exactly(connection, _COUNT.size))
        return Link(statistics.median(trips) / 2, received / (time.perf_counter() - began))


def _connected(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=max(0.1, deadline - time.monotonic()))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:  # it does not listen yet
                raise
            time.sleep(0.02)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        if not (part := connection.recv(length - len(data))):
            raise ConnectionError("the other end went away")
        data += part
    return data


def main(own_address: str, own_port: str, peer_address: str, peer_port: str) -> None:
    try:
        family = socket.AF_INET6 if ":" in own_address else socket.AF_INET
        with socket.create_server((own_address, int(own_port)), family=family) as listener:
            server = threading.Thread(target=_serve, args=(listener,), daemon=True)
            server.start()
            link = measure(peer_address, int(peer_port))
            server.join(PATIENCE_S)
        print(json.dumps(link._asdict()))
    except OSError as error:
        print(json.dumps({"problem": str(error)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
