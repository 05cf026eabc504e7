"""Who is slow is named among the noise of a machine that others use, and nobody where nobody is.

The noise is real: all ranks' steps of a small language model on two busy cores, two replicas, four, and four that hold
slices of one (FSDP2). Trials draw blocks of them, and whose were whose.
"""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from headway.training.launch.diagnosis.stragglers import (
    LONG,
    SHORT,
    SHORT_SCORE,
    WORK,
    Straggler,
    StragglerDetector,
    find_straggler,
    steps_of_all,
    work_ratios,
)

TRACES = Path(__file__).parent / "traces"
PARTS = ("data", "forward", "backward", "sync", "optimizer")
TICK_S = 1e-5
"""What the recorded figures count."""
BLOCK = 40
NUM_TRIALS = 100

Step = dict[int, dict[str, float]]
Event = dict[str, Any]


def recorded(name: str) -> list[Step]:
    rows = {int(rank): steps for rank, steps in json.loads((TRACES / f"{name}.json").read_text()).items()}
    return [
        {
            rank: {part: ticks * TICK_S for part, ticks in zip(PARTS, steps[at], strict=True)}
            for rank, steps in rows.items()
        }
        for at in range(min(map(len, rows.values())))
    ]


def drawn(trace: list[Step], num_steps: int, chance: random.Random) -> list[Step]:
    """Steps of a healthy gang with the noise of the trace."""
    found: list[Step] = []
    ranks = sorted(trace[0])
    while len(found) < num_steps:
        first, places = chance.randrange(len(trace) - BLOCK), chance.sample(ranks, len(ranks))
        for step in trace[first : first + BLOCK]:
            found.append({rank: dict(step[place]) for rank, place in zip(ranks, places, strict=True)})
    return found[:num_steps]


def slow_down(steps: list[Step], slow: int, part: str, by_s: float) -> None:
    """One works longer; it waits less as far as it can, and the others wait for the rest."""
    for step in steps:
        hidden_s = min(step[slow]["sync"], by_s)
        step[slow][part] += by_s
        step[slow]["sync"] -= hidden_s
        for rank in step.keys() - {slow}:
            step[rank]["sync"] += by_s - hidden_s


def first_found(steps: list[Step], watch: StragglerDetector | None = None) -> tuple[int, Straggler] | None:
    """After how many steps who is named."""
    watch = watch or StragglerDetector(len(steps[0]))
    for number, step in enumerate(steps, 1):
        for rank, parts in step.items():
            event = {"event": "step", "step": number} | {f"{part}_s": seconds for part, seconds in parts.items()}
            if (found := watch.take(rank, event)) is not None:
                return number, found
    return None


def typical_step_s(trace: list[Step]) -> float:
    return statistics.median(sum(step[0].values()) for step in trace)


@pytest.mark.process  # for what it takes of the processor
@pytest.mark.parametrize("name", ["two_ranks", "four_ranks", "four_shards"])
def test_at_most_one_healthy_run_of_a_hundred_has_a_rank_called_slow(name: str) -> None:
    trace, chance = recorded(name), random.Random(1)
    assert first_found(trace) is None
    alarms = [first_found(drawn(trace, 2 * LONG, chance)) for _ in range(NUM_TRIALS)]
    assert len([alarm for alarm in alarms if alarm is not None]) <= NUM_TRIALS / 100


@pytest.mark.parametrize(
    ("name", "share", "within"),
    [  # each trace and each share with its bound; the other pairs are for `make soak`
        pytest.param(name, share, within, marks=() if number == other else pytest.mark.soak)
        for number, name in enumerate(["two_ranks", "four_ranks", "four_shards"])
        for other, (share, within) in enumerate([(0.15, 2 * LONG), (0.4, LONG), (1.0, 2 * SHORT)])
    ],
)
def test_a_slow_rank_and_the_part_it_is_slow_in_are_named_in_99_of_100_runs(
    name: str, share: float, within: int
) -> None:
    trace, chance = recorded(name), random.Random(2)
    num_right = 0
    for _ in range(NUM_TRIALS):
        steps = drawn(trace, within, chance)
        rank, part = chance.choice(sorted(trace[0])), chance.choice(WORK)
        slow_down(steps, rank, part, share * typical_step_s(trace))
        found = first_found(steps)
        num_right += found is not None and (found[1].rank, found[1].part) == (rank, part)
    assert num_right >= 0.99 * NUM_TRIALS


def test_what_is_told_of_a_slow_rank_is_what_it_costs() -> None:
    trace = recorded("four_ranks")
    steps = drawn(trace, 2 * SHORT, random.Random(3))
    slow_down(steps, 2, "forward", 0.2)
    found = first_found(steps)
    assert found is not None
    _, straggler = found
    assert straggler.excess_s == pytest.approx(0.2, rel=0.2)
    assert straggler.own_s - straggler.others_s == pytest.approx(0.2, rel=0.2)
    assert 0.5 < straggler.share < 1.0
    assert str(straggler).startswith("forward takes it 0.2") and "they wait 0." in str(straggler)


def even(num_ranks: int) -> Step:
    return {rank: dict(zip(PARTS, (0.1, 1.0, 2.0, 0.5, 0.1), strict=True)) for rank in range(num_ranks)}


def with_shares(steps: list[Step], shares: list[float], speeds: list[float]) -> list[tuple[Event, ...]]:
    """What ranks write down of steps of 0.1 s for an equal share, that they are so fast in."""
    events = []
    for number, step in enumerate(steps, 1):
        works_s = [0.1 * share / speed + 1e-3 * step[rank]["backward"] for rank, (share, speed)
                   in enumerate(zip(shares, speeds, strict=True))]  # fmt: skip
        parts = [{f"{part}_s": 0.0 for part in PARTS} | {"backward_s": work_s, "sync_s": max(works_s) - work_s}
                 for work_s in works_s]  # fmt: skip
        events.append(tuple({"event": "step", "step": number, "relative_share": share} | each
                            for share, each in zip(shares, parts, strict=True)))  # fmt: skip
    return events


@pytest.mark.parametrize(
    ("shares", "speeds", "slow"),
    [
        ([0.75, 1.125, 1.125], [1, 1, 1], None),  # 4, 6 and 6 of 16
        ([1.2, 1.2, 0.6], [1, 1, 0.5], None),
        ([1, 1, 1], [1, 1, 0.5], 2),
        ([1, 1, 0.9375], [1, 1, 0.5], 2),
    ],
)
def test_a_rank_with_more_to_do_is_not_slow_nor_is_a_slow_one_with_as_much_less(
    shares: list[float], speeds: list[float], slow: int | None
) -> None:
    trace = [{rank: parts for rank, parts in step.items() if rank < 3} for step in recorded("four_ranks")]
    detector, found = StragglerDetector(3), []
    for events in with_shares(drawn(trace, LONG, random.Random(5)), shares, speeds):
        found += [detector.take(rank, event) for rank, event in enumerate(events)]
    assert {each.rank for each in found if each is not None} == (set() if slow is None else {slow})


def test_what_unequal_shares_would_win_is_told() -> None:
    detector, found = StragglerDetector(2), []
    for events in with_shares(drawn(recorded("two_ranks"), 2 * SHORT, random.Random(3)), [1, 1], [1, 0.5]):
        found += [detector.take(rank, event) for rank, event in enumerate(events)]
    (slow,) = (each for each in found if each is not None)
    # Work of 0.1 s and 0.2 s at once: two thirds of the longer one.
    assert slow.is_worth_balancing and slow.balanced_s == pytest.approx(2 / 3 * slow.step_s, rel=0.02)


def test_a_rank_that_works_longer_while_nobody_waits_for_it_is_not_slow() -> None:
    steps = [even(2) for _ in range(SHORT)]
    for step in steps:
        step[1]["forward"] += 1.0
    assert find_straggler(steps, min_score=SHORT_SCORE) is None, "its clock differs"
    for step in steps:
        step[0]["sync"] += 1.0
    found = find_straggler(steps, min_score=SHORT_SCORE)
    assert found is not None and found.rank == 1


def test_a_stage_that_has_more_to_do_than_another_is_not_slow_but_a_rank_among_those_of_its_stage_is() -> None:
    steps = [even(4) for _ in range(SHORT)]
    for step in steps:
        for rank in (0, 1):
            step[rank]["sync"] += 2.0
        for rank in (2, 3):
            step[rank]["forward"] += 2.0
    assert find_straggler(steps, min_score=SHORT_SCORE, num_stages=2) is None
    for step in steps:
        step[3]["backward"] += 1.0
        for rank in (0, 1, 2):
            step[rank]["sync"] += 1.0
    found = find_straggler(steps, min_score=SHORT_SCORE, num_stages=2)
    assert found is not None and (found.rank, found.part) == (3, "backward")
    assert find_straggler(steps[:1], min_score=SHORT_SCORE, num_stages=4) is None, "each stands alone"
    ratios = work_ratios(steps, num_stages=2)
    assert ratios[0] == ratios[1] == 1.0 and ratios[3] > 1.0 > ratios[2]
    assert work_ratios(steps, num_stages=4) == {}


def test_a_rank_s_work_is_told_as_a_multiple_of_the_others_over_the_steps_that_all_have() -> None:
    parts = {"data_s": 0.1, "forward_s": 0.4, "backward_s": 0.4, "optimizer_s": 0.1, "sync_s": 1.0}
    slow = parts | {"backward_s": 1.4, "sync_s": 0.0}
    events = {
        rank: [{"event": "step", "step": step, **(slow if rank == 2 else parts)} for step in range(first, 30)]
        for rank, first in ((0, 10), (1, 12), (2, 15))
    }
    events[1].append({"event": "step", "step": 30, **slow})
    events[1].append({"event": "step", "step": 31})
    steps = steps_of_all(events)
    assert len(steps) == 15, "one that has written less is waited for"
    assert work_ratios(steps) == pytest.approx({0: 2 / 3, 1: 2 / 3, 2: 2.0})
    # One bad step is no slow rank.
    steps[3][0] = dict.fromkeys(steps[3][0], 100.0)
    assert work_ratios(steps) == pytest.approx({0: 2 / 3, 1: 2 / 3, 2: 2.0})
    assert work_ratios(steps_of_all({0: events[0]})) == {} == work_ratios(steps_of_all({0: events[0], 1: []}))


def test_ranks_that_differ_by_nature_have_none_among_them_that_is_slow() -> None:
    steps = [even(8) for _ in range(SHORT)]
    for step in steps:
        for rank, parts in step.items():
            parts["forward"] += 0.2 * rank
            parts["sync"] += 0.2 * (7 - rank)
    assert find_straggler(steps, min_score=SHORT_SCORE) is None


def test_one_bad_moment_is_not_a_slow_rank_and_nobody_is_named_twice() -> None:
    steps = [even(2) for _ in range(10 * SHORT)]
    slow_down(steps[:SHORT], 0, "data", 5.0)
    watch = StragglerDetector(2)
    assert first_found(steps, watch) is None
    slow = [even(2) for _ in range(10 * SHORT)]
    slow_down(slow, 0, "data", 5.0)
    assert first_found(slow, watch) is not None
    assert first_found(slow, watch) is None


def test_of_ranks_that_meet_every_few_steps_the_one_that_others_wait_for_is_found() -> None:
    """In the last step of each round alone does anybody wait."""
    events: dict[int, list[Event]] = {0: [], 1: []}
    for number in range(1, 8 * 2 * SHORT + 1):
        ends_round = number % 8 == 0
        for rank, work_s in ((0, 0.1), (1, 0.2)):
            parts = dict.fromkeys((f"{part}_s" for part in PARTS), 0.0) | {"forward_s": work_s}
            parts["sync_s"] = 0.8 if ends_round and rank == 0 else 0.0
            events[rank].append(
                {"event": "step", "step": number, **parts, **({} if ends_round else {"ends_round": False})}
            )
    watch = StragglerDetector(2)
    found = [watch.take(rank, event) for step in zip(*events.values(), strict=True) for rank, event in enumerate(step)]
    (named,) = filter(None, found)
    assert (named.rank, named.part) == (1, "forward")
    assert (named.excess_s, named.step_s) == (pytest.approx(0.1), pytest.approx(0.2))
    steps = steps_of_all(events)
    assert len(steps) == 2 * SHORT
    assert work_ratios(steps)[1] == pytest.approx(2.0)


def test_what_toys_and_older_workers_write_down_is_passed_over() -> None:
    watch = StragglerDetector(2)
    assert all(watch.take(rank, {"event": "step", "step": step}) is None for step in range(99) for rank in (0, 1))
