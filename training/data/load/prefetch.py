"""Results made ahead by threads: bounded in bytes, in order, with errors where the consumer can see them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from headway.data_contracts.store.errors import EnvironmentProblem

T = TypeVar("T")
FIRST_DEPTH = 2


class Prefetcher(Generic[T]):
    """Iterates over produce(start), produce(start + 1), ..., some results ahead of the consumer.

    How many: two at first, twice as many whenever the consumer had to wait, as far as `max_bytes` goes.

    Args:
        produce: called in `num_threads` threads, with one number after another; two calls may overlap.
        size_bytes: memory that a result takes.
        max_bytes: the most that results made or being made may take, each counted as the largest so far; one is
            always made.
        stop: the first number not to produce; None for no end.
        wait_s: how long the consumer waits for a result, and `close` for the threads.

    Raises (from `next`):
        whatever `produce` raised, after the results before it; and again at every further call.
        EnvironmentProblem: the next result is late.
    """

    def __init__(
        self,
        produce: Callable[[int], T],
        *,
        size_bytes: Callable[[T], int],
        max_bytes: int,
        start: int = 0,
        stop: int | None = None,
        num_threads: int = 1,
        wait_s: float = 600.0,
        name: str = "prefetch",
    ) -> None:
        if num_threads < 1 or max_bytes < 1:
            raise ValueError(f"{num_threads=} and {max_bytes=} must be at least 1")
        self._produce, self._size_bytes, self._max_bytes = produce, size_bytes, max_bytes
        self._stop, self._wait_s, self._name = stop, wait_s, name
        self._next_produced = self._next_taken = start
        self._ready: dict[int, T] = {}
        self._largest_bytes: int | None = None
        self._error: tuple[int, BaseException] | None = None
        self._closed = False
        self.depth = max(FIRST_DEPTH, num_threads)
        self._changed = threading.Condition()
        # Threads, not processes: gathering releases the GIL, and a process would copy each batch once more.
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(num_threads)]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._changed:
            if not self._arrived():
                # Deeper only after a wait: memory is spent where the consumer is really faster.
                self.depth *= 2 if self._fits(self.depth + 1) else 1
                self._changed.notify_all()
                # Bounded: a disk that hangs must not hang the rank without a word.
                if not self._changed.wait_for(self._arrived, self._wait_s):
                    raise EnvironmentProblem(
                        f"result {self._next_taken} did not come within {self._wait_s:g} s.",
                        where=self._name,
                        advice="Look at the storage that the shards lie on.",
                    )
            # In order, though threads finish as they like.
            if self._next_taken in self._ready:
                self._next_taken += 1
                self._changed.notify_all()
                return self._ready.pop(self._next_taken - 1)
            # After the results before it, so that every run fails at the same batch.
            if self._error is not None and not self._closed:
                raise self._error[1]
            raise StopIteration

    def close(self) -> None:
        """End the threads and drop what they made; harmless when repeated.

        Raises:
            EnvironmentProblem: a thread is still busy after `wait_s`.
        """
        with self._changed:
            self._closed = True
            # Dropped under the lock: a thread may finish just now, and must not put its result back.
            self._ready.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(self._wait_s)
        if any(thread.is_alive() for thread in self._threads):
            raise EnvironmentProblem(f"the thread did not end within {self._wait_s:g} s.", where=self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _arrived(self) -> bool:
        """Whether the consumer need not wait: its result is there, or will never be."""
        if self._closed or self._next_taken in self._ready or self._next_taken == self._stop:
            return True
        return self._error is not None and self._error[0] <= self._next_taken

    def _run(self) -> None:
        while (number := self._claim()) is not None:
            try:
                result = self._produce(number)
                size_bytes = self._size_bytes(result)
            except BaseException as error:
                self._fail(number, error)
                return
            with self._changed:
                self._largest_bytes = max(self._largest_bytes or 0, size_bytes)
                if not self._closed:
                    self._ready[number] = result
                self._changed.notify_all()

    def _claim(self) -> int | None:
        """The next number to make, once there is room for it; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._over() or self._has_room())
            if self._over():
                return None
            # Claimed under the lock: every number is made once.
            self._next_produced += 1
            return self._next_produced - 1

    def _over(self) -> bool:
        return self._closed or self._error is not None or self._next_produced == self._stop

    def _has_room(self) -> bool:
        ahead = self._next_produced - self._next_taken
        # One is always made, however large it is, or nothing would ever come.
        return ahead == 0 or (ahead < self.depth and self._fits(ahead + 1))

    def _fits(self, num_results: int) -> bool:
        # Until one result is known nothing can be said of its size, so only one is made.
        return self._largest_bytes is not None and num_results * self._largest_bytes <= self._max_bytes

    def _fail(self, number: int, error: BaseException) -> None:
        with self._changed:
            # The earliest error wins, which is the one that a single thread would have met.
            if self._error is None or number < self._error[0]:
                self._error = (number, error)
            self._changed.notify_all()
