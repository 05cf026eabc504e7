"""How fast one host reaches the next: each listens, and each measures the way to its neighbour.

    python -m headway.training.launch.hosts.links KEY_FILE OWN_ADDRESS OWN_PORT PEER_ADDRESS PEER_PORT

Prints `{"latency_s": ..., "bytes_per_s": ...}`, or `{"problem": ...}`. It answers who has the key, and nobody else.
Standard library only.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.training.launch.base.channel import Channel, Listener, connect

MAX_PINGS, MAX_MESSAGE_BYTES, MAX_DURATION_S = 20, 16 << 20, 0.5
"""What is sent to measure a way, unless the time is over before."""
PING, DATA = b"p", b"d"
BUFFER_BYTES = 1 << 18
"""Of the sender: what lies there when the time is over has still to go its slow way."""
PATIENCE_S = 3.0
"""For the neighbour to listen, and for each answer of its."""
_COUNT = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """The way from one host to another."""

    latency_s: float
    """Half of a round trip, the median of some."""
    bytes_per_s: float


def serve_probe(channel: Channel, deadline_s: float) -> None:
    """A neighbour: each ping at once, and what follows by its number of bytes."""
    connection = channel.connection
    connection.settimeout(max(0.0, deadline_s - time.monotonic()))
    while (word := _exactly(connection, 1)) == PING:
        connection.settimeout(PATIENCE_S)
        connection.sendall(word)
    received = 0
    while part := connection.recv(1 << 20):
        received += len(part)
    connection.sendall(_COUNT.pack(received))


def measure(address: str, port: int, key: str) -> NetworkLink:
    """Raises `OSError`: the neighbour cannot be reached, went away, or the way is too slow to wait for."""
    # It may not listen yet.
    with connect(address, port, key, within_s=PATIENCE_S, once_s=PATIENCE_S).connection as connection:
        connection.settimeout(PATIENCE_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        trips: list[float] = []
        while not trips or (len(trips) < MAX_PINGS and sum(trips) < MAX_DURATION_S):
            started = time.perf_counter()
            connection.sendall(PING)
            _exactly(connection, 1)
            # The clock of one end alone; clocks of two hosts differ by more than a trip takes.
            trips.append(time.perf_counter() - started)
        connection.sendall(DATA)
        part, sent, started = bytes(BUFFER_BYTES), 0, time.perf_counter()
        while sent < MAX_MESSAGE_BYTES and time.perf_counter() - started < MAX_DURATION_S:
            sent += connection.send(part)
        # The end of the stream tells the receiver that the count is due, and the answer that all has arrived.
        connection.shutdown(socket.SHUT_WR)
        (received,) = _COUNT.unpack(_exactly(connection, _COUNT.size))
        # Time runs until the receiver's count has come: `send` returns as soon as the kernel has the bytes.
        return NetworkLink(statistics.median(trips) / 2, received / (time.perf_counter() - started))


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        if not (part := connection.recv(length - len(data))):
            raise ConnectionError("the other end went away")
        data += part
    return data


def main(key_file: str, own_address: str, own_port: str, peer_address: str, peer_port: str) -> None:
    was_asked = threading.Event()

    def serve(channel: Channel, deadline_s: float) -> None:
        try:
            serve_probe(channel, deadline_s)
        finally:
            was_asked.set()

    try:
        key = Path(key_file).read_text()
        listener = Listener(own_address, int(own_port), key, serve)
        listener.start()
        link = measure(peer_address, int(peer_port), key)
        # The neighbour that measures this host may still be at it; closing now would look like a broken link.
        was_asked.wait(PATIENCE_S)
        listener.close()
        print(json.dumps(asdict(link)))
    except OSError as error:
        print(json.dumps({"problem": str(error)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
