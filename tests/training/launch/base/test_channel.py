"""A stream that nobody but its two ends can write: every change of it ends it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headway.training.launch.base import channel as channels
from headway.training.launch.base.channel import MAX_UNAUTHENTICATED, Channel, Listener, accept, connect
from tests.waiting import DEADLINE_S, wait_until

KEY = "k" * 64


def pair(key: str = KEY, other: str = KEY) -> tuple[Channel, Channel, socket.socket]:
    """A server's end, its client's, and the wire to the server between them, on which frames can be put by hand."""
    made: list[Channel] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with contextlib.suppress(OSError):
                made.append(accept(connection, key, time.monotonic() + DEADLINE_S))
                return
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            client = connect("127.0.0.1", server.getsockname()[1], other, within_s=0.0, once_s=DEADLINE_S)
        finally:
            thread.join()
    return made[0], client, client.connection


class Tap:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)


def frames(channel: Channel, *payloads: bytes) -> list[bytes]:
    """What the channel would send."""
    tap, real = Tap(), channel.connection
    channel.connection = tap  # type: ignore[assignment]
    for payload in payloads:
        channel.send(payload)
    channel.connection = real
    return tap.sent


def test_what_one_end_says_the_other_hears_in_its_order() -> None:
    server, client, _ = pair()
    for payload in (b"", b"a word", bytes(10_000)):
        client.send(payload)
        assert server.receive() == payload
        server.send(payload)
        assert client.receive() == payload


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    "change",
    [
        lambda first, second: flipped(first, 5),
        lambda first, second: flipped(first, len(first) - 1),
        lambda first, second: flipped(first, 3) + second,
        lambda first, second: second + first,
        lambda first, second: first[:-1],
        lambda first, second: struct.pack("!I", 1 << 31) + first[4:],
        lambda first, second: struct.pack("!I", 0) + bytes(32) + first,
    ],
    ids=["payload", "tag", "length", "order", "cut", "too long", "made up"],
)
def test_a_frame_that_was_changed_moved_or_cut_is_not_heard(change: Callable[[bytes, bytes], bytes]) -> None:
    server, client, wire = pair()
    first, second = frames(client, b"one", b"two")
    wire.sendall(change(first, second))
    wire.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        server.receive()


def test_a_frame_is_heard_once_by_its_own_session_and_in_its_own_direction() -> None:
    server, client, wire = pair()
    (frame,) = frames(client, b"once")
    wire.sendall(frame * 2)
    assert server.receive() == b"once"
    with pytest.raises(ConnectionError, match="not the other end's"):
        server.receive()

    server, _, wire = pair()
    wire.sendall(frame)
    with pytest.raises(ConnectionError, match="not the other end's"):
        server.receive()

    server, client, wire = pair()
    wire.sendall(frames(server, b"my own")[0])
    with pytest.raises(ConnectionError, match="not the other end's"):
        server.receive()


def test_neither_end_speaks_to_one_without_the_key() -> None:
    with pytest.raises(OSError, match="lost"):
        pair(other="g" * 64)
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def lease() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(bytes(32))
                heard = connection.recv(64, socket.MSG_WAITALL)
                connection.sendall(heard[32:])  # the client's own proof

        thread = threading.Thread(target=lease)
        thread.start()
        with pytest.raises(ConnectionError, match="does not have the key"):
            connect("127.0.0.1", stranger.getsockname()[1], KEY, within_s=0.0, once_s=DEADLINE_S)
        thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    def echo(channel: Channel, deadline_s: float) -> None:
        while True:
            channel.send(channel.receive(deadline_s))

    made = Listener("127.0.0.1", 0, KEY, echo)
    made.start()
    yield made
    made.close()


def test_the_deadline_is_for_the_whole_handshake_however_many_bytes_come(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HANDSHAKE_S", 0.3)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=DEADLINE_S) as slow:
        slow.recv(32)
        with pytest.raises(ConnectionError):  # long before 64 bytes are there
            for _ in range(50):
                slow.sendall(b"x")
                time.sleep(0.05)


def test_strangers_have_so_many_places_and_the_newest_get_them(listener: Listener) -> None:
    with contextlib.ExitStack() as held:
        strangers = [
            held.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=DEADLINE_S))
            for _ in range(MAX_UNAUTHENTICATED + 8)
        ]
        channel = connect("127.0.0.1", listener.port, KEY, within_s=DEADLINE_S)
        held.enter_context(channel.connection)
        channel.send(b"heard")
        assert channel.receive() == b"heard"
        for oldest in strangers[:8]:
            oldest.recv(32, socket.MSG_WAITALL)
            assert oldest.recv(1) == b"", "the oldest make room"


def test_a_listener_that_is_closed_takes_nobody(listener: Listener) -> None:
    port = listener.port
    listener.close()

    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(is_refused, what="its end")
