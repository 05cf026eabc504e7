"""Where the ranks of an attempt exchange the addresses of their process groups: a store that only they can reach.

torch's own TCPStore listens on all interfaces and serves whoever connects; its FileStore polls under a file lock, which
network file systems take seconds for. Here rank 0 listens at its node's own address, and serves who has the attempt's
key. Rank 0 lets all in before any asks for a peer, however much later than others it may have been started. Whoever has
taken its port before costs nothing: rank 0 takes another, and says so in the file that has the key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError

from headway.training.launch.base import protocol
from headway.training.launch.base.channel import Channel, Listener, connect
from headway.training.launch.base.protocol import AttemptFiles, StorePlace

CONNECT_S = 3.0
RETRY_S = 1.0
"""How often a rank that does not reach rank 0 looks whether it is at another port by now."""


class _Server:
    """The values, as rank 0 has them for all."""

    def __init__(self, place: StorePlace) -> None:
        self._values: dict[str, str] = {}
        """Bytes, each as the character of its number."""
        self._changed = threading.Condition()
        self._operations: dict[str, Callable[..., Any]] = {
            "set": self._set,
            "get": self._get,
            "add": self._add,
            "compare_set": self._compare_set,
            "delete_key": self._delete_key,
            "check": self._check,
            "wait": self._wait,
            "num_keys": self._num_keys,
        }
        try:
            self._listener = Listener(place.address, place.port, place.key, self._serve)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self._listener = Listener(place.address, 0, place.key, self._serve)
        self.place = dataclasses.replace(place, port=self._listener.port)
        self._listener.start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self, channel: Channel, deadline_s: float) -> None:
        request = channel.receive(deadline_s)
        # The handshake had a deadline; a rank may wait in here for as long as another reads its checkpoint.
        channel.connection.settimeout(None)
        while True:
            channel.send(self._answer(request))
            request = channel.receive()

    def _answer(self, request: bytes) -> bytes:
        operation, *arguments = json.loads(request)
        # One condition for all keys: there are few, and every change wakes who waits.
        with self._changed:
            answer = self._operations[operation](*arguments)
            self._changed.notify_all()
        return json.dumps(answer).encode()

    def _set(self, key: str, value: str) -> None:
        # Bytes travel as latin-1 text, since a request is JSON.
        self._values[key] = value

    def _get(self, key: str, within_s: float | None) -> str | None:
        return self._values[key] if self._wait([key], within_s) else None

    def _add(self, key: str, amount: int) -> int:
        self._values[key] = str(int(self._values.get(key, "0")) + amount)
        return int(self._values[key])

    def _compare_set(self, key: str, expected: str, desired: str) -> str:
        held = self._values.get(key)
        if held == expected or (held is None and not expected):
            self._values[key] = desired
        return self._values.get(key, expected)

    def _delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def _check(self, keys: list[str]) -> bool:
        return self._values.keys() >= set(keys)

    def _wait(self, keys: list[str], within_s: float | None) -> bool:
        return self._changed.wait_for(lambda: self._check(keys), within_s)

    def _num_keys(self) -> int:
        return len(self._values)


class KeyedStore(Store):
    """A client of rank 0's values; what torch asks of a store, and nothing else. Any thread may use it."""

    def __init__(self, place: StorePlace, patience_s: float) -> None:
        """Raises `OSError`: rank 0 was not there within `patience_s`."""
        super().__init__()
        self._place = place
        self._lock = threading.Lock()
        # Connections are kept: torch asks from several threads, and each may be blocked in a `wait`.
        self._idle = [connect(place.address, place.port, place.key, within_s=patience_s, once_s=CONNECT_S)]

    def _ask(self, *request: Any) -> Any:
        # Only the list is locked, never the conversation: one that waits would block all others.
        with self._lock:
            channel = self._idle.pop() if self._idle else None
        if channel is None:  # each is waited at by a thread of its own
            channel = connect(self._place.address, self._place.port, self._place.key, within_s=CONNECT_S)
        channel.send(json.dumps(request).encode())
        answer = json.loads(channel.receive())
        # Not after an error: a connection in the middle of an answer must not be used again.
        with self._lock:
            self._idle.append(channel)
        return answer

    def set(self, key: str, value: bytes | str) -> None:
        self._ask("set", key, _text(value))

    def get(self, key: str) -> bytes:
        """Raises `DistStoreError`: it was not set in time."""
        value = self._ask("get", key, self._patience_s(None))
        if value is None:
            raise self._late([key])
        return str(value).encode("latin-1")

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", key, value))

    def compare_set(self, key: str, expected_value: bytes | str, desired_value: bytes | str) -> bytes:
        answer = self._ask("compare_set", key, _text(expected_value), _text(desired_value))
        return str(answer).encode("latin-1")

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete_key", key))

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Raises `DistStoreError`: one of the keys was not set in time."""
        if not self._ask("wait", keys, self._patience_s(timeout)):
            raise self._late(keys)

    def num_keys(self) -> int:
        return int(self._ask("num_keys"))

    def _patience_s(self, timeout: timedelta | None) -> float | None:
        """None: for ever, which torch calls 0."""
        return (self.timeout if timeout is None else timeout).total_seconds() or None  # type: ignore[attr-defined]

    @staticmethod
    def _late(keys: list[str]) -> DistStoreError:
        return DistStoreError(f"not set in time: {', '.join(keys)}")

    def clone(self) -> KeyedStore:
        return KeyedStore(self._place, CONNECT_S)


@contextlib.contextmanager
def store_of_attempt(rank: int, world_size: int, patience_s: float) -> Iterator[KeyedStore | None]:
    """The store of the attempt that this process is a rank of, once all are there; None where no supervisor began one.

    Raises:
        ConnectionError: rank 0 cannot listen, or was not there within `patience_s`.
        DistStoreError: another rank was not.
        OSError: rank 0 cannot say at which other port it is.
    """
    folder = os.environ.get(protocol.ATTEMPT_DIR)
    files = None if folder is None else AttemptFiles(Path(folder))
    if files is None or (place := files.read_store()) is None:
        yield None
        return
    with contextlib.ExitStack() as at_the_end:
        deadline_s = time.monotonic() + patience_s
        # Rank 0 serves before it connects to itself, like any other rank.
        if rank == 0:
            with _naming(place):
                server = _Server(place)
            at_the_end.callback(server.close)
            # Someone else has taken the port since it was drawn; the others read the file again.
            if server.place != place:
                files.write_store(server.place)
        store = _reach(files, place, deadline_s)
        # All ranks arrive before any goes on: a peer's address must not be asked for before its rank is there.
        if store.add("arrived", 1) == world_size:
            store.set("all arrived", b"1")
        store.wait(["all arrived"], timedelta(seconds=max(1.0, deadline_s - time.monotonic())))
        yield store


def _reach(files: AttemptFiles, place: StorePlace, deadline_s: float) -> KeyedStore:
    """
    Args:
        place: where rank 0 was to be, unless it has told another since.
        deadline_s: by `time.monotonic()`.
    """
    while True:
        # Read again each time: rank 0 may have moved to another port.
        place = files.read_store() or place
        left_s = deadline_s - time.monotonic()
        with contextlib.suppress(OSError) if left_s > RETRY_S else _naming(place):
            return KeyedStore(place, min(left_s, RETRY_S))


@contextlib.contextmanager
def _naming(place: StorePlace) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"the store of rank 0 at {place.address}, port {place.port}"
        raise ConnectionError(f"{where}: {error.strerror or error}") from error


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
