"""What trials cost each other is told by those that trained both ways, and is not made up where none did."""

from __future__ import annotations

from headway.training.launch.supervise.step_pace import MOST_SEEN, StepPace, StepPaces


def seen(*looks: tuple[str, int, float]) -> StepPaces:
    """Each three times."""
    paces = StepPaces()
    for _ in range(3):
        for run, num_going, step_s in looks:
            paces.add(run, num_going, step_s)
    return paces


def test_only_runs_that_were_seen_both_ways_are_compared() -> None:
    # The large one was never alone: a step of it takes four times as long by itself.
    pace = seen(("small", 2, 0.015), ("large", 2, 0.060), ("small", 1, 0.010)).pace()
    assert pace == StepPace(2, 0.015, 0.010)
    assert str(pace) == "2 trained at a time, a step in 15 ms; alone in 10 ms: 1.50 times as long"


def test_where_none_was_alone_that_is_said_and_where_none_was_beside_another_nothing_is() -> None:
    assert str(seen(("a", 3, 0.02), ("b", 3, 0.04), ("c", 1, 0.01)).pace()) == (
        "3 trained at a time, a step in 30 ms; alone: not measured"
    )
    assert seen(("a", 1, 0.01)).pace() is None
    once = StepPaces()
    once.add("a", 2, 0.01)
    assert once.pace() is None, "one look is none"


def test_a_long_search_keeps_the_newest_looks_alone() -> None:
    paces = StepPaces()
    for number in range(3 * MOST_SEEN):
        paces.add("a", 2, 1.0 if number < 2 * MOST_SEEN else 0.5)
    assert paces.pace() == StepPace(2, 0.5, None)
