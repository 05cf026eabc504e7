"""The ledger: every process appends what happened, when and for how long; everything else derives from it.

One JSON object a line in the process's own spool file. Standard library only, because guards write too.
Times are wall-clock (`unix_s`) so that processes' records can be merged; durations are monotonic.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Listener = Callable[[Event], None]


class Ledger:
    """An append-only spool of events.

    Args:
        spool: the file to append to; its folder is made.
        common: fields that every event of this process carries, such as rank and attempt.
    """

    def __init__(self, spool: Path, **common: Any) -> None:
        spool.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(spool, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._common = common
        self.listeners: list[Listener] = []

    def event(self, name: str, **fields: Any) -> Event:
        """Record that something happened now."""
        return self._append({"event": name, "unix_s": time.time(), **self._common, **fields})

    @contextlib.contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Record that something took from here to there; fields may be added to the yielded dict."""
        started_unix_s, started = time.time(), time.perf_counter()
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
        # One write call a line: O_APPEND keeps lines of several threads whole.
        os.write(self._descriptor, json.dumps(event, separators=(",", ":"), default=str).encode() + b"\n")
        self.relay(event)
        return event

    def relay(self, event: Event) -> None:
        """Show listeners an event that another process has already written down."""
        for listener in self.listeners:
            listener(event)

    def close(self) -> None:
        os.close(self._descriptor)


def read_events(spool: Path) -> list[Event]:
    """All whole lines of a spool; a line torn by a kill is left out."""
    tail = SpoolTail(spool)
    return tail.poll()


class SpoolTail:
    """Follows a spool another process writes; each `poll` returns the whole lines that are new."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._offset = 0

    def poll(self) -> list[Event]:
        try:
            with self._spool.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    events.append(event)
        return events
