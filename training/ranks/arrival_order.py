"""In which order workers of a parameter server take weights and hand in gradients: bounded staleness, without deadlock.

A gradient's staleness is how many updates came between its weights and itself. Stale synchronous parallel (Ho et al.,
2013) holds workers back where they would run ahead; here so that not even a halted worker's gradient gets too stale.
"""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """What a worker may do next."""

    worker: int
    takes_weights: bool
    """Else it hands in a gradient."""
    number: int
    """Of weights: which part of the work they are for, counted from 0, or -1: there is none left. Of a gradient: which
    update it is."""
    version: int
    """How many updates the weights have, or had when this gradient's were taken."""


class Arrival(NamedTuple):
    """An update, in the order in which they were made."""

    work: int
    """Which piece, counted from 0."""
    version: int
    """Updates that its weights had."""
    worker: int


class ArrivalOrder:
    """Args:
    first, end: updates [first, end) are to be made, each of one piece of work.
    staleness: the most that may be between taking weights and handing in their gradient.
    """

    def __init__(self, first: int, end: int, *, staleness: int) -> None:
        self._version, self._next, self._end, self._staleness = first, first, end, staleness
        self._in_flight: dict[int, int] = {}
        """The version of each worker's weights, whose gradient has not come."""
        self._waiting: list[tuple[int, bool]] = []

    def ask(self, worker: int, *, takes_weights: bool) -> list[Grant]:
        """What is granted now, to this worker or others that have waited, in this order."""
        self._waiting.append((worker, takes_weights))
        granted = []
        while (grant := self._first_granted()) is not None:
            granted.append(grant)
        return granted

    def _first_granted(self) -> Grant | None:
        for place, (worker, takes_weights) in enumerate(self._waiting):
            if grant := self._weights(worker) if takes_weights else self._update(worker):
                del self._waiting[place]
                return grant
        return None

    def _weights(self, worker: int) -> Grant | None:
        if self._next == self._end:
            return Grant(worker, True, -1, self._version)
        # All in flight may come before this one.
        if len(self._in_flight) > self._staleness:
            return None
        self._in_flight[worker] = self._version
        self._next += 1
        return Grant(worker, True, self._next - 1, self._version)

    def _update(self, worker: int) -> Grant | None:
        others = sorted(version for each, version in self._in_flight.items() if each != worker)
        # If those that are left came at once, the oldest first: that none would be too stale keeps a way out.
        if any(self._version + 1 + place - version > self._staleness for place, version in enumerate(others)):
            return None
        grant = Grant(worker, False, self._version, self._in_flight.pop(worker))
        self._version += 1
        return grant
