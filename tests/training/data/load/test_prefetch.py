from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.data.load.prefetch import Prefetcher
from tests.waiting import DEADLINE_S, wait_until


def prefetcher(produce: Callable[[int], Any], *, max_bytes: int = 4, **options: Any) -> Prefetcher[Any]:
    """Results of one byte each, unless said otherwise."""
    options.setdefault("size_bytes", lambda _: 1)
    return Prefetcher(produce, max_bytes=max_bytes, **options)


def test_results_come_in_order_and_end() -> None:
    with prefetcher(lambda number: number * number, start=3, stop=50) as results:
        assert list(results) == [number * number for number in range(3, 50)]
        assert list(results) == []


@pytest.mark.parametrize("num_threads", [2, 5])
def test_threads_keep_the_order_whoever_is_slow(num_threads: int) -> None:
    turns = [threading.Event() for _ in range(num_threads)]

    def produce(number: int) -> int:
        if number < num_threads:  # the first results are finished last first
            turns[number].wait(DEADLINE_S)
            if number:
                turns[number - 1].set()
        return number

    with prefetcher(produce, stop=40, num_threads=num_threads, max_bytes=100) as results:
        turns[-1].set()
        if num_threads > 1:
            turns[0].set()  # nothing is known of sizes before the first result: it comes alone
        assert list(results) == list(range(40))


@pytest.mark.parametrize("num_threads", [1, 4])
def test_it_works_ahead_and_never_beyond_its_bytes(num_threads: int) -> None:
    consumed, most = 0, 0

    def produce(number: int) -> int:
        nonlocal most
        most = max(most, number + 1 - consumed)
        return number

    with prefetcher(produce, stop=300, max_bytes=70, size_bytes=lambda _: 10, num_threads=num_threads) as results:
        for number in results:
            assert number == consumed
            consumed += 1
    assert 1 < most <= 8  # seven fit; the consumer counts a result just after taking it
    assert results.depth <= 8


def answers_about_room(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Every answer that a thread gets which asks whether to make another result."""
    answers: list[bool] = []
    has_room = Prefetcher._has_room

    def noted(self: Prefetcher[int]) -> bool:
        answers.append(has_room(self))
        return answers[-1]

    monkeypatch.setattr(Prefetcher, "_has_room", noted)
    return answers


@pytest.mark.parametrize(("max_bytes", "most"), [(10, 1), (29, 2), (30, 3), (39, 3), (40, 4)])
def test_when_the_consumer_is_slow_its_bytes_are_used_to_the_last_result(
    monkeypatch: pytest.MonkeyPatch, max_bytes: int, most: int
) -> None:
    allowed, made = answers_about_room(monkeypatch), 0

    def produce(number: int) -> int:
        nonlocal made
        made += 1
        return number

    with prefetcher(produce, max_bytes=max_bytes, size_bytes=lambda _: 10) as results:
        results.depth = 100  # as if it had been waited for often
        assert next(results) == 0
        wait_until(lambda: made >= 1 + most and not allowed[-1])
        assert made == 1 + most


def test_nothing_is_begun_beside_the_first_result_before_its_size_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, sizes_known = answers_about_room(monkeypatch), []

    def produce(number: int) -> int:
        if number == 0:
            wait_until(lambda: len(allowed) >= 3)  # all three threads have asked
            sizes_known.append(allowed[:3])
        return number

    with prefetcher(produce, stop=9, num_threads=3, max_bytes=15, size_bytes=lambda _: 10) as results:
        assert list(results) == list(range(9))
    assert sizes_known == [[True, False, False]]


def test_a_single_result_larger_than_its_bytes_is_still_made() -> None:
    with prefetcher(lambda number: number, stop=5, max_bytes=1, size_bytes=lambda _: 10**9) as results:
        assert list(results) == [0, 1, 2, 3, 4]


def test_it_goes_deeper_when_the_consumer_waits_and_only_then() -> None:
    made: list[int] = []
    gate = threading.Semaphore(0)

    def produce(number: int) -> int:
        gate.acquire()
        made.append(number)
        return number

    with prefetcher(produce, max_bytes=100) as results:
        gate.release(2)
        wait_until(lambda: len(made) == 2)
        assert results.depth == 2
        assert [next(results), next(results)] == [0, 1]
        assert results.depth == 2  # both were there
        consumer = threading.Thread(target=lambda: made.append(-next(results)))
        consumer.start()
        wait_until(lambda: results.depth == 4)
        gate.release(10)
        consumer.join(DEADLINE_S)
        wait_until(lambda: len(made) == 2 + 1 + 1 + 4)  # the one waited for, its taking, and four ahead
        gate.release(1000)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_reaches_the_consumer_after_the_results_before_it(threads: int) -> None:
    def produce(number: int) -> int:
        if number == 2:
            raise KeyError("two")
        return number

    with prefetcher(produce, num_threads=threads) as results:
        assert [next(results), next(results)] == [0, 1]
        for _ in range(2):
            with pytest.raises(KeyError, match="two"):
                next(results)


def test_closing_ends_a_thread_that_waits_for_room_and_may_be_repeated() -> None:
    results = prefetcher(lambda number: number, max_bytes=1)
    assert next(results) == 0
    results.close()
    results.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())
    assert list(results) == []


def test_leaving_the_block_by_an_error_ends_the_thread() -> None:
    with pytest.raises(ZeroDivisionError), prefetcher(lambda number: number, name="left") as results:
        raise ZeroDivisionError(next(results))
    assert not any(thread.name == "left" for thread in threading.enumerate())


def test_no_wait_is_without_end() -> None:
    release = threading.Event()
    results = prefetcher(lambda _: release.wait(DEADLINE_S), wait_s=0.05, name="slow batches")
    with pytest.raises(EnvironmentProblem, match=r"slow batches: result 0 did not come within 0\.05 s"):
        next(results)
    with pytest.raises(EnvironmentProblem, match="slow batches: the thread did not end"):
        results.close()
    release.set()
    wait_until(lambda: not any(thread.name == "slow batches" for thread in threading.enumerate()))


def test_close_lets_a_waiting_consumer_go_before_the_thread_has_ended() -> None:
    release, found = threading.Event(), []
    results = prefetcher(lambda _: release.wait(DEADLINE_S), wait_s=DEADLINE_S)
    consumer = threading.Thread(target=lambda: found.append(list(results)))
    closer = threading.Thread(target=results.close)
    consumer.start()
    closer.start()
    consumer.join(DEADLINE_S)
    assert found == [[]]
    assert closer.is_alive()
    release.set()
    closer.join(DEADLINE_S)
    assert not closer.is_alive()


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"max_bytes": 0}])
def test_nothing_to_work_with_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        prefetcher(lambda number: number, **options)  # type: ignore[arg-type]
