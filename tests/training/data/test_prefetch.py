from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from data_contracts.errors import EnvironmentProblem
from training.data.prefetch import Prefetcher


def until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.001)


def test_results_come_in_order_and_end() -> None:
    with Prefetcher(lambda number: number * number, start=3, stop=50, depth=4) as results:
        assert list(results) == [number * number for number in range(3, 50)]
        assert list(results) == []


def test_it_works_ahead_and_never_further_than_its_depth() -> None:
    consumed, ahead = 0, []

    def produce(number: int) -> int:
        ahead.append(number + 1 - consumed)
        return number

    with Prefetcher(produce, stop=200, depth=3) as results:
        until(lambda: len(ahead) == 3)
        for number in results:
            assert number == consumed
            consumed += 1
    assert max(ahead) <= 4  # the consumer counts a result just after taking it
    assert ahead[:3] == [1, 2, 3]


def test_an_error_reaches_the_consumer_after_the_results_before_it() -> None:
    def produce(number: int) -> int:
        if number == 2:
            raise KeyError("two")
        return number

    with Prefetcher(produce, depth=5) as results:
        assert [next(results), next(results)] == [0, 1]
        for _ in range(2):
            with pytest.raises(KeyError, match="two"):
                next(results)


def test_closing_ends_a_thread_that_waits_for_room_and_may_be_repeated() -> None:
    results = Prefetcher(lambda number: number, depth=1)
    assert next(results) == 0
    results.close()
    results.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())
    assert list(results) == []


def test_leaving_the_block_by_an_error_ends_the_thread() -> None:
    with pytest.raises(ZeroDivisionError), Prefetcher(lambda number: number, name="left") as results:
        raise ZeroDivisionError(next(results))
    assert not any(thread.name == "left" for thread in threading.enumerate())


def test_no_wait_is_without_end() -> None:
    release = threading.Event()
    results = Prefetcher(lambda _: release.wait(30), wait_s=0.05, name="slow batches")
    with pytest.raises(EnvironmentProblem, match=r"slow batches: result 0 did not come within 0\.05 s"):
        next(results)
    with pytest.raises(EnvironmentProblem, match="slow batches: the thread did not end"):
        results.close()
    release.set()
    until(lambda: not any(thread.name == "slow batches" for thread in threading.enumerate()))


def test_close_lets_a_waiting_consumer_go_before_the_thread_has_ended() -> None:
    release, found = threading.Event(), []
    results = Prefetcher(lambda _: release.wait(30), wait_s=30)
    consumer = threading.Thread(target=lambda: found.append(list(results)))
    closer = threading.Thread(target=results.close)
    consumer.start()
    closer.start()
    consumer.join(10)
    assert found == [[]]
    assert closer.is_alive()
    release.set()
    closer.join(10)
    assert not closer.is_alive()


def test_a_depth_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="depth=0"):
        Prefetcher(lambda number: number, depth=0)
