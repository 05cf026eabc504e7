"""Work that waits, in turns of one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.data_contracts.store.errors import HeadwayError, TrainingFailed
from headway.training.launch.base.steps import Steps, Turns, run_to_completion


def test_what_interrupts_a_wait_is_raised_where_the_work_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def work() -> Steps[int]:
        try:
            yield 0.0
        except KeyboardInterrupt:
            heard.append("interrupted")
            raise
        return 1

    assert run_to_completion(work()) == 1

    def interrupted(wait_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.training.launch.base.steps.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_to_completion(work())
    assert heard == ["interrupted"]


class Works:
    """Each counts to its number of turns."""

    def __init__(self, *num_turns: int, room: int = 2) -> None:
        self.num_turns, self.room = num_turns, room
        self.seen: list[int] = []
        self.closed: list[int] = []
        self.ended: list[tuple[int, HeadwayError | None]] = []
        self.fails: set[int] = set()
        self.turns = Turns(
            len(num_turns),
            begin=self.begin,
            has_room=lambda num_going: num_going < self.room,
            tolerable=lambda error: isinstance(error, TrainingFailed),
            ended=lambda number, error: self.ended.append((number, error)),
            pause_s=0.0,
        )

    def begin(self, number: int) -> Steps[None]:
        def work() -> Iterator[float]:
            try:
                for _ in range(self.num_turns[number]):
                    self.seen.append(number)
                    yield 0.0
                if number in self.fails:
                    raise TrainingFailed("it diverged.")
            except GeneratorExit:
                self.closed.append(number)
                raise KeyboardInterrupt from None

        return work()  # type: ignore[return-value]


def test_each_has_its_first_turn_as_soon_as_it_begins_and_one_more_begins_as_soon_as_there_is_room() -> None:
    works = Works(2, 4, 1)
    works.turns.run()
    assert works.seen == [0, 1, 0, 1, 1, 2, 1] and [number for number, _ in works.ended] == [0, 2, 1]


def test_one_that_fails_ends_no_other() -> None:
    works = Works(1, 2)
    works.fails.add(0)
    works.turns.run()
    (first, error), second = works.ended
    assert first == 0 and isinstance(error, TrainingFailed) and second == (1, None)


def test_all_are_closed_whatever_interrupts_the_closing_of_one() -> None:
    works = Works(9, 9, 9, room=3)
    for number in range(3):
        works.turns.going[number] = works.begin(number)
        next(works.turns.going[number])
    with pytest.raises(KeyboardInterrupt):
        works.turns.close()
    assert sorted(works.closed) == [0, 1, 2] and not works.turns.going
