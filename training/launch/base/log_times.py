"""When log files grew, as their node's guard saw it: ranks write as they like, and every line still has its time.

A line of the index says that at a moment so many bytes of a file were there. The files stay byte for byte what was
written, also by a rank that dies in the middle of a line. Standard library only.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

from headway.data_contracts.store.regular_files import open_regular, open_to_write
from headway.training.launch.base.protocol import AttemptFiles

POLL_EVERY_S = 0.2
"""A line's time is late by this at the most, where the machine is not busy."""
MAX_MARK_BYTES = 64 << 10
"""No line of an index is longer; what is longer ends it."""
LATE_S = 2.0
"""How late it may be on a busy one: a time that a line itself says is believed so far back."""
PRINTED = re.compile(rb"(?:\[rank\d+\]:)?\[?[DIWEF](\d{4} \d\d:\d\d:\d\d\.\d{3,6})\b")
"""How torch begins a line: level, month and day, local time, with or without the rank."""


class LogTimes:
    """Writes the index of one node's logs. Never raises: a full disk must not cost the guard its duty."""

    def __init__(self, files: AttemptFiles, node: int) -> None:
        self._folder, self._index = files.folder, files.log_times(node)
        self._node_log, self._rank_logs = files.node_log(node), files.rank_logs(node)
        self._seen_bytes: dict[Path, int] = {}
        self._looked_s = 0.0

    def look(self, *, at_once: bool = False) -> None:
        """Note what has grown, a few times a second at the most."""
        now_s = time.monotonic()
        if not at_once and now_s - self._looked_s < POLL_EVERY_S:
            return
        self._looked_s = now_s
        with contextlib.suppress(OSError):
            if grown := {path: size for path, size in self._sizes() if size > self._seen_bytes.get(path, 0)}:
                with open_to_write(self._index, "ab") as stream:
                    for path, size in grown.items():
                        mark = [round(time.time(), 3), str(path.relative_to(self._folder)), size]
                        stream.write(json.dumps(mark).encode() + b"\n")
                self._seen_bytes |= grown

    def _sizes(self) -> Iterator[tuple[Path, int]]:
        for path in (self._node_log, *sorted(self._rank_logs.glob("**/std*.log"))):
            with contextlib.suppress(OSError):
                yield path, path.stat().st_size


class Marks:
    """The index, read as it grows: when a byte of a file was first seen."""

    def __init__(self, index: Path) -> None:
        self._index = index
        self._read_bytes = 0
        self._sizes: dict[str, list[int]] = {}
        self._unix_s: dict[str, list[float]] = {}

    def refresh(self) -> None:
        """Take in what was written since the last call; a torn last line waits for its end."""
        try:
            with open_regular(self._index) as stream:
                stream.seek(self._read_bytes)
                while (line := stream.readline(MAX_MARK_BYTES)).endswith(b"\n"):
                    self._read_bytes += len(line)
                    self._take(line)
        except OSError:
            return

    def _take(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, TypeError):
            # Marks come in time's order, so one bisection finds when a byte was there.
            unix_s, name, size = json.loads(line)
            self._sizes.setdefault(name, []).append(int(size))
            self._unix_s.setdefault(name, []).append(float(unix_s))

    def unix_s(self, name: str, end: int) -> float | None:
        """When the first `end` bytes were seen to be there; None: they were not."""
        index = bisect.bisect_left(self._sizes.get(name, []), end)
        times = self._unix_s.get(name, [])
        return times[index] if index < len(times) else None


class LineTimes:
    """Times of one file's lines: what a line says itself where that can be, else when it was first seen.

    They never go back, for the file's order is the truth; what follows such a line, as a traceback does, stays with it.
    """

    def __init__(self) -> None:
        self._unix_s = self._seen_unix_s = 0.0

    def next(self, line: bytes, seen_unix_s: float) -> float:
        """The time of the file's next line, which was first seen at `seen_unix_s`."""
        unix_s = _printed_unix_s(line, seen_unix_s)
        if unix_s is None:
            # Lines seen at once share a time; one that prints none stays with the line before it, as a traceback does.
            unix_s = self._unix_s if seen_unix_s == self._seen_unix_s else seen_unix_s
        self._seen_unix_s = seen_unix_s
        self._unix_s = max(self._unix_s, unix_s)
        return self._unix_s


def _printed_unix_s(line: bytes, seen_unix_s: float) -> float | None:
    if (message := PRINTED.match(line)) is None:
        return None
    # torch prints no year. The one in which the line was seen is right but for New Year's eve, and then the mark holds.
    year = datetime.datetime.fromtimestamp(seen_unix_s).year
    with contextlib.suppress(ValueError):
        unix_s = datetime.datetime.strptime(f"{year}{message[1].decode()}", "%Y%m%d %H:%M:%S.%f").timestamp()
        # Another time zone's, or a line that only quotes one.
        return unix_s if seen_unix_s - LATE_S <= unix_s <= seen_unix_s else None
    return None
