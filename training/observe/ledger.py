"""The ledger: every process appends what happened, when and for how long; everything else derives from it.

One JSON object a line in the process's own spool file. Standard library only, because guards write too.
Times are wall-clock (`unix_s`) so that processes' records can be merged; durations are monotonic.

A disk without space ends no process for the sake of its records: what cannot be written waits in memory, within
bounds, and goes out with the first event that finds space again. Who must have it written asks `require_written`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.regular_files import open_regular
from headway.training.observe.ledger_lines import parse_event

Event = dict[str, Any]
Listener = Callable[[Event], None]

WAITING_BYTES = 4 << 20
"""How much may wait for space, and so the longest line; later events are counted and dropped."""
PIECE_BYTES = 64 << 10
"""How much of a spool is read at a time, where not all of it is wanted at once."""


class Ledger:
    """An append-only spool of events.

    Args:
        spool: the file to append to; its folder is made.
        common: fields that every event of this process carries, such as rank and attempt.
    """

    def __init__(self, spool: Path, **common: Any) -> None:
        self._spool, self._common = spool, common
        self._descriptor: int | None = None
        self._closed = False
        self._writing = threading.Lock()
        self._waiting, self._num_dropped = b"", 0
        self._refusal: OSError | None = None
        self.listeners: list[Listener] = []
        # At once: a spool that cannot be opened shows before the first event matters.
        self._write_waiting()

    def event(self, name: str, **fields: Any) -> Event:
        """Record that something happened now."""
        return self._append({"event": name, "unix_s": time.time(), **self._common, **fields})

    @contextlib.contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Record that something took from here to there; fields may be added to the yielded dict."""
        started_unix_s, started = time.time(), time.perf_counter()
        # A begin of its own: of a process that is killed inside a span nothing else would tell where it was.
        self._append({"event": f"{name}.begin", "unix_s": started_unix_s, **self._common, **fields})
        outcome = "ok"
        try:
            yield fields
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            self._append(
                {
                    "event": name,
                    "unix_s": started_unix_s,
                    "duration_s": time.perf_counter() - started,
                    "outcome": outcome,
                    **self._common,
                    **fields,
                }
            )

    def elapsed(self, name: str, since_unix_s: float, **fields: Any) -> Event:
        """Record something that began before there was a ledger, or elsewhere, and ends now."""
        duration_s = max(time.time() - since_unix_s, 0.0)
        return self._append(
            {"event": name, "unix_s": since_unix_s, "duration_s": duration_s, "outcome": "ok", **self._common, **fields}
        )

    def _append(self, event: Event) -> Event:
        line = _line(event)
        # Threads of one process share the spool, and two lines must not mix.
        with self._writing:
            # Bounded: a disk that stays full must not take the process's memory as well.
            if len(self._waiting) + len(line) > WAITING_BYTES:
                self._num_dropped += 1
            else:
                self._waiting += line
            self._write_waiting()
        # Outside the lock: a listener may record events itself.
        self.relay(event)
        return event

    def _write_waiting(self) -> None:
        """Write what waits, as far as there is space: a write may end short, in the middle of a line."""
        try:
            if self._closed:
                # Its descriptor's number may be another file's by now.
                raise OSError(errno.EBADF, "it is closed")
            if self._descriptor is None:
                self._descriptor = self._open()
            while self._waiting:
                # What was not taken stays, so the rest of a torn line is written next time.
                self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]
                if self._num_dropped and not self._waiting:
                    dropped = {"event": "ledger.dropped", "unix_s": time.time(), "num_events": self._num_dropped}
                    self._waiting, self._num_dropped = _line({**dropped, **self._common}), 0
            self._refusal = None
        except OSError as error:
            self._refusal = error

    def _open(self) -> int:
        self._spool.parent.mkdir(parents=True, exist_ok=True)
        # O_APPEND: a guard and its successors may have the file open at the same time. O_NOFOLLOW: a link that another
        # user put there could lead out of the workspace.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._spool, flags, 0o644)
        if _is_torn(descriptor):
            # A line that an earlier process could not finish must not swallow our first.
            self._waiting = b"\n" + self._waiting
        return descriptor

    def require_written(self) -> None:
        """Return when all that was recorded is on the disk; raises `EnvironmentProblem` when it cannot be written."""
        with self._writing:
            self._write_waiting()
            if self._descriptor is not None and self._refusal is None:
                # Written is not durable; who asks for this builds on it.
                os.fsync(self._descriptor)
        if self._refusal is not None:
            raise EnvironmentProblem(
                f"the ledger cannot be written ({self._refusal.strerror}).",
                where=str(self._spool),
                advice="Free some space, or check the workspace's owner and mode, and run again.",
            ) from self._refusal

    def take_over(self, event: Event) -> None:
        """Record what another process did in this one's stead: when it was stays, who it was for is ours."""
        self._append({**event, **self._common})

    def naming(self, **fields: Any) -> Ledger:
        """The same ledger for work that is one of several: its events carry these fields as well."""
        return _OfOne(self, fields)

    def relay(self, event: Event) -> None:
        """Show listeners an event that another process has already written down; one that cannot be shown more goes."""
        # A copy: a listener may remove itself.
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except OSError:
                self.listeners.remove(listener)

    def close(self) -> None:
        """What is recorded later is shown to listeners, and written nowhere."""
        with self._writing:
            self._write_waiting()
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor, self._closed = None, True


class _OfOne(Ledger):
    """What one of several works records, in the ledger of all."""

    def __init__(self, whole: Ledger, fields: Mapping[str, Any]) -> None:
        self._whole, self._common, self.listeners = whole, {**whole._common, **fields}, whole.listeners

    def _append(self, event: Event) -> Event:
        return self._whole._append(event)

    def require_written(self) -> None:
        self._whole.require_written()

    def close(self) -> None:
        """It is closed by whose it is."""


def _line(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":"), default=str).encode() + b"\n"


def _is_torn(descriptor: int) -> bool:
    """Whether the file ends in the middle of a line."""
    size_bytes = os.fstat(descriptor).st_size
    return size_bytes > 0 and os.pread(descriptor, 1, size_bytes - 1) != b"\n"


def event_end_unix_s(event: Event) -> float:
    """When it was over: a span is stamped with its beginning."""
    return float(event["unix_s"]) + (float(event.get("duration_s") or 0.0) if "outcome" in event else 0.0)


def read_events(spool: Path) -> list[Event]:
    """All events of a spool; what is none, such as a line torn by a kill, is left out."""
    tail = SpoolTail(spool)
    return tail.poll()


class SpoolTail:
    """Follows a spool another process writes; each `poll` returns the whole lines that are new."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._offset = 0

    def poll(self) -> list[Event]:
        return list(self.stream())

    def stream(self, without: Collection[str] = ()) -> Iterator[Event]:
        """What `poll` returns, a piece at a time: a long run's spool is larger than memory. Read it to its end.

        Args:
            without: names of events that are passed over unparsed, 40 times as fast: most of a long run's are steps.
        """
        # By how a ledger writes a line; the same event, written otherwise, only takes longer.
        beginnings = tuple(f'{{"event":"{name}",'.encode() for name in without)
        while lines := self._whole_lines():
            yield from (event for event in _events_in(lines, beginnings) if event["event"] not in without)

    def _whole_lines(self) -> bytes:
        """The next piece of what is new. It ends before a line that no ledger writes: a hole may be terabytes long."""
        try:
            with open_regular(self._spool) as stream:
                stream.seek(self._offset)
                # A whole line after the piece, however long: half an event is nobody's.
                data = stream.read(PIECE_BYTES) + stream.readline(WAITING_BYTES)
        except FileNotFoundError:
            return b""
        # A line without an end is still being written, or was torn by a kill.
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole


def _events_in(lines: bytes, without: tuple[bytes, ...]) -> Iterator[Event]:
    # A hole or a damaged line costs its event, not the report.
    return filter(None, (parse_event(line) for line in lines.splitlines() if not line.startswith(without)))
