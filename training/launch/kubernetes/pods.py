"""Transport `kubernetes`: the pods of the job that the supervisor runs in, each of which offers to start processes.

    supervisor ──client's stdin──► client ──connection──► pod's main process ──► guard, whose stdin is the connection

A pod says in the run's folder where it can be reached, and by which key, readable by its own user alone. Whoever shows
the key may start a process there; the order of a guard follows as its first line, and the end of the client or of the
connection is the end of the guard's stdin. Every frame is authenticated, to the exit status; see `channel`. Nothing is
encrypted: variables with secrets never take this way, since every pod has them from Kubernetes. Standard library only.

frames of the client: the command as JSON, then parts of its stdin, the last of them empty
frames of the pod:    `OUTPUT` and a part of what the command writes, at last `STATUS` and its exit status
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from headway.training.launch.base.channel import Channel, connect
from headway.training.launch.base.host_probe import Host
from headway.training.launch.base.protocol import read_json, write_json
from headway.training.launch.base.record import record_or_none

CONNECT_S = 3.0
SILENT_S = 8.0
"""A connection on which nothing is heard or acknowledged for so long is lost."""
LOST = 255
"""Exit status of a client that cannot say how the process ended, as ssh's."""
PART_BYTES = 1 << 16
MAX_PORT = 1 << 16
OUTPUT, STATUS = b"o", b"s"


@dataclass(frozen=True, kw_only=True, slots=True)
class PodPlace:
    """Where one pod of a job can be reached."""

    job: str
    index: int
    pod: str
    address: str
    port: int
    key: str
    machine: str = ""
    """The Kubernetes node that it stands on; empty where its job does not tell it."""
    state: Literal["here", "leaving", "over"] = "here"
    """`leaving`: it was told to end; `over`, of the first: the job has done its work."""

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{self.pod}.json", asdict(self), is_private=True)

    @property
    def host(self) -> Host:
        return Host(name=self.pod, address=self.address, machine=self.machine)

    def changed(self, state: Literal["leaving", "over"]) -> PodPlace:
        return replace(self, state=state)


def read_place(path: Path) -> PodPlace | None:
    """None where it is no pod's own, or leads to no pod."""
    # A place that another version wrote is nobody's address here.
    place = record_or_none(PodPlace, read_json(path), is_strict=True)
    return place if place is not None and place.pod == path.stem and _can_be_asked(place) else None


def _can_be_asked(place: PodPlace) -> bool:
    """Whether a connection can be tried at all: sockets refuse other words by errors of every kind."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(place.address)
        return 0 < place.port < MAX_PORT and place.index >= 0 and place.key != "" and place.key.isascii()
    return False


def places_of(folder: Path, job: str) -> list[PodPlace]:
    """Of a job's pods, in the order of their indexes."""
    found = [place for path in folder.glob("*.json") if (place := read_place(path)) is not None and place.job == job]
    return sorted(found, key=lambda place: place.index)


class Pods:
    name = "kubernetes"
    is_local = False
    has_environment = True
    python = sys.executable

    def __init__(self, folder: Path, job: str, gather_s: float) -> None:
        self._folder, self._job, self._gather_s = folder, job, gather_s
        self._since_s: float | None = None

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        return tuple(place.host for place in places_of(self._folder, self._job))

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        return (
            sys.executable,
            "-P",
            "-m",
            "headway.training.launch.kubernetes.pods",
            str(self._folder / f"{host.name}.json"),
            *argv,
        )

    def is_gathered(self, nodes: int, min_nodes: int) -> bool:
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        there = sum(_is_there(place) for place in places_of(self._folder, self._job))
        # After a while fewer hosts than wanted are enough, so that one that never comes does not hold the others.
        if there < min_nodes or (there < nodes and now_s - self._since_s < self._gather_s):
            return False
        self._since_s = None
        return True


def _is_there(place: PodPlace) -> bool:
    if place.state != "here":
        return False
    # A place on disk may be of a pod that is gone; only one that answers with the key counts.
    with contextlib.suppress(OSError):
        connect(place.address, place.port, place.key, within_s=CONNECT_S).connection.close()
        return True
    return False


def notice_silence(connection: socket.socket) -> None:
    """Have the kernel end a connection whose other end has gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The kernel's default notices a dead peer after two hours.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    # Keepalive does not run while data wait to be acknowledged; this bound covers that case.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(SILENT_S * 1000))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _run(place: PodPlace, argv: Sequence[str]) -> tuple[bytes, int]:
    """Have the pod run a command with this process's stdin.

    Returns:
        What it wrote, and its exit status.

    Raises:
        OSError: the pod cannot be reached, went away, or another spoke in its name.
    """
    channel = connect(place.address, place.port, place.key, within_s=CONNECT_S)
    with channel.connection:
        notice_silence(channel.connection)
        channel.send(json.dumps(list(argv)).encode())
        return _converse(channel)


def _converse(channel: Channel) -> tuple[bytes, int]:
    """Pass stdin on until the command is done; returns what came back."""
    message = bytearray()
    poll = select.poll()
    for descriptor in (0, channel.connection.fileno()):
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                data = os.read(0, PART_BYTES)
                # The empty frame is sent too: it tells the pod that stdin has ended.
                channel.send(data)
                if not data:
                    poll.unregister(0)
                continue
            # Read whole, however long it is: half a frame has no tag that could be checked.
            frame = channel.receive()
            kind, part = frame[:1], frame[1:]
            if kind == STATUS:
                return bytes(message), int(part)
            message += part


def main(path: str, *argv: str) -> int:
    place = read_place(Path(path))
    try:
        if place is None:
            raise ConnectionError("it is not there any more")
        out, status = _run(place, argv)
    except OSError as error:
        print(f"pod {Path(path).stem}: {error}", file=sys.stderr)
        return LOST
    # A failed command's words belong to stderr, where `run_on_all` looks for the reason.
    stream = sys.stderr if status else sys.stdout
    stream.buffer.write(out)
    stream.flush()
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
