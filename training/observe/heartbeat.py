"""Signs of life from long work that has no steps: a watch takes a growing ledger for a rank that moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from headway.training.observe.ledger import Ledger

HEARTBEAT_EVERY_S = 1.0
T = TypeVar("T")


class Heartbeat:
    """Called once a piece of work; writes one ledger event a second at most.

    Args:
        what: the work, as the ledger shall name it.
        clock: monotonic seconds.
    """

    def __init__(self, ledger: Ledger, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._what, self._clock = ledger, what, clock
        self._num_done, self._written_s = 0, clock()

    def __call__(self) -> None:
        self._num_done += 1
        now_s = self._clock()
        if now_s - self._written_s >= HEARTBEAT_EVERY_S:
            self._written_s = now_s
            self._ledger.event("heartbeat", what=self._what, num_done=self._num_done)

    def beside(self, values: Iterable[T]) -> Iterator[T]:
        """The values; each one that was used is a piece of work."""
        for value in values:
            yield value
            self()
