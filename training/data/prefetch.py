"""Batches made ahead by a thread: bounded, in order, with errors where the consumer can see them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from data_contracts.errors import EnvironmentProblem

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Iterates over produce(start), produce(start + 1), ..., up to `depth` results ahead of the consumer.

    Args:
        produce: called in one thread, one number after another.
        stop: the first number not to produce; None for no end.
        wait_s: how long the consumer waits for a result, and `close` for the thread.

    Raises (from `next`):
        whatever `produce` raised, after the results before it; and again at every further call.
        EnvironmentProblem: the next result is late.
    """

    def __init__(
        self,
        produce: Callable[[int], T],
        *,
        start: int = 0,
        stop: int | None = None,
        depth: int = 2,
        wait_s: float = 600.0,
        name: str = "prefetch",
    ) -> None:
        if depth < 1:
            raise ValueError(f"{depth=} must be at least 1")
        self._produce, self._stop, self._depth, self._wait_s = produce, stop, depth, wait_s
        self._next = start
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready or self._ended or self._closed, self._wait_s):
                raise EnvironmentProblem(
                    f"result {self._next} did not come within {self._wait_s:g} s.",
                    where=self._thread.name,
                    advice="Look at the storage that the shards lie on.",
                )
            if self._ready:
                self._changed.notify_all()
                self._next += 1
                return self._ready.popleft()
            if self._error is not None:
                raise self._error
            raise StopIteration

    def close(self) -> None:
        """End the thread and drop what it made; harmless when repeated.

        Raises:
            EnvironmentProblem: the thread is still busy after `wait_s`.
        """
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(self._wait_s)
        if self._thread.is_alive():
            raise EnvironmentProblem(f"the thread did not end within {self._wait_s:g} s.", where=self._thread.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        number = self._next
        try:
            while (self._stop is None or number < self._stop) and self._room():
                result = self._produce(number)
                number += 1
                with self._changed:
                    if not self._closed:
                        self._ready.append(result)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _room(self) -> bool:
        """Wait until the consumer is less than `depth` behind; False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
            return not self._closed
