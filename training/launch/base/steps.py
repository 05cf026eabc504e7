"""Work that waits as a generator, so that one thread can have several of them going.

One thread, since that is where an interrupt arrives, and since a child's death signal is bound to the thread that
started it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

from headway.data_contracts.store.errors import HeadwayError

T = TypeVar("T")
Steps = Generator[float, None, T]
"""What comes to a T; it yields how many seconds it can wait for."""
Tolerable = Callable[[HeadwayError], bool]
"""Whether what ended one ends no other."""
Ended = Callable[[int, HeadwayError | None], object]
"""Told of one, by its number from 0, and of what ended it; None: it is done."""


def run_to_completion(steps: Steps[T]) -> T:
    """Do nothing else meanwhile. What interrupts a wait is raised where the work waits."""
    try:
        while True:
            time.sleep(next(steps))
    except StopIteration as end:
        value: T = end.value
        return value
    except BaseException as interrupt:
        # Work that has ended, as by this very error, lets it pass.
        steps.throw(interrupt)
        raise


class Turns:
    """Works that take turns, each begun as soon as there is room.

    Args:
        num: how many there are.
        begin: called with a number from 0; None: it has ended before it began.
        has_room: whether one more may be begun beside so many that are going.
        tolerable: asked of what ended one; what is not tolerable is raised.
        ended: called as soon as one is at its end; whatever it raises is raised.
    """

    def __init__(
        self,
        num: int,
        *,
        begin: Callable[[int], Steps[object] | None],
        has_room: Callable[[int], bool],
        tolerable: Tolerable,
        ended: Ended,
        pause_s: float,
    ) -> None:
        self._begin, self._has_room, self._tolerable, self._ended = begin, has_room, tolerable, ended
        self._pause_s = pause_s
        self.waiting = deque(range(num))
        self.going: dict[int, Steps[object]] = {}
        self.is_reporting = False
        """Whether what is raised was raised by `ended`."""

    def run(self) -> None:
        while self.waiting or self.going:
            while self.waiting and (not self.going or self._has_room(len(self.going))):
                number = self.waiting.popleft()
                if (steps := self._begin(number)) is not None:
                    self.going[number] = steps
                    self._turn(number)  # at once: beginning the next one may take long
            for number in tuple(self.going):
                self._turn(number)
            if self.going:
                time.sleep(self._pause_s)

    def _turn(self, number: int) -> None:
        error: HeadwayError | None
        try:
            next(self.going[number])
            return
        except StopIteration:
            error = None
        except Exception as failure:
            # What has ended need not be stopped; what is suspended must be.
            del self.going[number]
            if not isinstance(failure, HeadwayError) or not self._tolerable(failure):
                raise
            error = failure
        self.going.pop(number, None)
        self.is_reporting = True
        self._ended(number, error)
        self.is_reporting = False

    def finish(self) -> None:
        """Go on with those that are going, to whatever ends; none is begun, and nobody is told."""
        while self.going:
            for number in tuple(self.going):
                try:
                    next(self.going[number])
                except (StopIteration, HeadwayError):
                    del self.going[number]
            if self.going:
                time.sleep(self._pause_s)

    def close(self) -> None:
        """Where they are, each of them, whatever interrupts it.

        Left suspended, they would write the ends of their spans whenever they are collected.
        """
        interrupt: BaseException | None = None
        while self.going:
            _, steps = self.going.popitem()
            try:
                steps.close()
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
