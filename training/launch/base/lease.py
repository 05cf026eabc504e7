"""A detached run goes on for as long as somebody watches: the watcher renews a lease, the run looks for news of it.

Nobody's clock is compared with another's: what counts is how long the run itself has seen no news.
"""

from __future__ import annotations

import time
from pathlib import Path

from headway.training.launch.base.protocol import read_json, write_json


class WatcherLease:
    """The watcher's side."""

    def __init__(self, path: Path, lease_s: float) -> None:
        # Ten renewals in a lease: one that is late on a busy file system does not end the run.
        self._path, self._every_s = path, lease_s / 10
        self._renewed_s = -self._every_s

    def renew(self) -> None:
        """Call it often; it writes seldom."""
        now_s = time.monotonic()
        if now_s - self._renewed_s >= self._every_s:
            self._renewed_s = now_s
            write_json(self._path, {"unix_s": time.time()})


class WatcherLeaseMonitor:
    """The run's side."""

    def __init__(self, path: Path, lease_s: float) -> None:
        self._path, self._lease_s = path, lease_s
        # What lies there at the beginning is no news: the watcher that wrote it may be long dead.
        self._seen = read_json(path)
        self._since_s = time.monotonic()

    def is_over(self) -> bool:
        now_s = time.monotonic()
        found = read_json(self._path)
        # Any change counts. The time inside is the watcher's, whose clock may differ from this host's.
        if found is not None and found != self._seen:
            self._seen, self._since_s = found, now_s
        return now_s - self._since_s > self._lease_s
