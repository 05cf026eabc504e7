"""Which rank the others wait for, and in which part of the step: derived from what all ranks wrote down of their steps.

Ranks meet in every step, or after some that they take apart, so all take equally long. The slow one works longest and
waits least, by as much as the others wait for it: two clocks that must agree. Single steps are noise on a machine that
others use, so medians over windows of steps are looked at, and a rank is named that stays behind.

Ranks of a pipeline are held against those of their own stage alone. What FSDP2 and tensor-parallel layers wait for
within a pass counts as waiting where the host stands still for it; on CUDA it counts as work on all ranks, and nobody
is found there.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.training.observe.ledger import Event

WORK = ("data", "forward", "backward", "optimizer")
WAIT = "sync"
BY_SHARE = ("data", "forward", "backward")
"""What grows with the number of a rank's micro-batches."""
SHORT, LONG = 20, 100
"""Steps that are looked at together: much is seen in few, little in many."""
SHORT_SCORE, LONG_SCORE = 4.0, 5.0
"""How many times its own uncertainty an excess must be; in the short window, twice in a row."""
MIN_SHARE = 0.1
"""Of a step: what others wait less for is not worth a word."""
MIN_WAIT = 0.5
"""How much of a rank's excess the others must be seen to wait longer than it."""
MIN_SPREAD = 4.0
"""How many times the spread over the other ranks, where there are enough of them to have one."""
OTHERS_WITH_SPREAD = 3
MIN_GAIN = 1.1
"""How many times as long a step must take as it would otherwise, before anything is done about it."""
SIGMA = 1.4826
"""From a median absolute deviation to a standard deviation, of normal noise."""
MEDIAN_SIGMA = 1.2533
"""From the standard error of a mean to that of a median."""

Parts = Mapping[str, float]
"""Seconds of one rank's step, by part."""
Steps = Sequence[Mapping[int, Parts]]
"""The same steps on several ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    rank: int
    part: str
    """Of the step, in which it is behind most."""
    excess_s: float
    """What it works longer than the others in a step; so long they wait for it."""
    step_s: float
    own_s: float
    """What that part takes it."""
    others_s: float
    score: float
    """The excess in units of its own uncertainty."""
    balanced_s: float
    """What a step would take if each rank had as many micro-batches as it is fast; of ranks with the whole model."""

    @property
    def is_worth_balancing(self) -> bool:
        return self.balanced_s * MIN_GAIN < self.step_s

    @property
    def share(self) -> float:
        """Of a step, that would be won without it."""
        return self.excess_s / self.step_s

    def __str__(self) -> str:
        return (
            f"{self.part} takes it {self.own_s:.2g} s, the others {self.others_s:.2g} s; "
            f"they wait {self.excess_s:.2g} s of each step of {self.step_s:.2g} s for it"
        )


def find_straggler(steps: Steps, *, min_score: float, num_stages: int = 1) -> Straggler | None:
    """The rank that the others wait for most in these steps, if there is one.

    Args:
        num_stages: of the pipeline that the ranks make up, stage after stage.
    """
    found = [_find_among(stage, steps, min_score) for stage in _stages(steps, num_stages)]
    return max((each for each in found if each is not None), key=lambda each: each.excess_s, default=None)


def work_ratios(steps: Steps, *, num_stages: int = 1) -> dict[int, float]:
    """By rank, its work in a step over that of the others in the middle, of medians over these steps.

    1.0 is as long as the others; ranks of a pipeline are held against those of their own stage. A rank without others
    has none.
    """
    ratios: dict[int, float] = {}
    for stage in _stages(steps, num_stages):
        works_s = {rank: statistics.median(_work_s(step[rank]) for step in steps) for rank in stage}
        for rank in stage:
            others_s = statistics.median([works_s[other] for other in stage if other != rank])
            if others_s > 0:
                ratios[rank] = works_s[rank] / others_s
    return ratios


def _stages(steps: Steps, num_stages: int) -> list[list[int]]:
    """Ranks that do the same work, where they are several."""
    ranks = sorted(steps[0]) if steps else []
    per_stage = len(ranks) // num_stages
    stages = [ranks[first : first + per_stage] for first in range(0, len(ranks), max(1, per_stage))]
    return [stage for stage in stages if len(stage) > 1]


def steps_of_all(events: Mapping[int, Iterable[Event]]) -> list[dict[int, Parts]]:
    """Of what each rank wrote down, the steps that all have, oldest first."""
    by_rank = {rank: _by_meeting(own) for rank, own in events.items()}
    common = set.intersection(*map(set, by_rank.values())) if by_rank else set()
    return [{rank: own[step] for rank, own in by_rank.items()} for step in sorted(common)]


def _by_meeting(events: Iterable[Event]) -> dict[int, Parts]:
    """By step after which ranks met."""
    rounds = _Rounds()
    return {int(event["step"]): parts for event in events if (parts := rounds.take(event)) is not None}


class _Rounds:
    """One rank's steps as ranks meet: those that islands take apart are one, of mean parts.

    In none but the last of a round does anybody wait, so by themselves they would show no one who is waited for.
    """

    def __init__(self) -> None:
        self._apart: list[Parts] = []

    def take(self, event: Event) -> Parts | None:
        """None: of a step after which ranks do not meet, or of another event."""
        if (parts := _parts(event)) is None:
            return None
        self._apart.append(parts)
        if event.get("ends_round") is False:
            return None
        taken, self._apart = self._apart, []
        if len(taken) == 1:
            return parts
        return {part: statistics.fmean(each[part] for each in taken) for part in parts}


def _parts(event: Event) -> Parts | None:
    parts = {part: event.get(f"{part}_s") for part in (*WORK, WAIT)}
    if event["event"] != "step" or None in parts.values():
        return None
    found = {part: float(str(seconds)) for part, seconds in parts.items()}
    # A rank that has more to do is not slower: held against others is what an equal share would take.
    share = float(str(event.get("relative_share") or 1.0))
    return found | {part: found[part] / share for part in BY_SHARE}


def _find_among(ranks: Sequence[int], steps: Steps, min_score: float) -> Straggler | None:
    # Medians: one step that another process disturbed says nothing of the rank.
    works_s = {rank: statistics.median(_work_s(step[rank]) for step in steps) for rank in ranks}
    slow = max(ranks, key=lambda rank: works_s[rank])
    others = [rank for rank in ranks if rank != slow]
    behind_s = _ahead_of(slow, others, steps, _work_s)
    excess_s = statistics.median(behind_s)
    step_s = statistics.median(_work_s(step[slow]) + _wait_s(step[slow]) for step in steps)
    # A second, independent clock: whoever is slow by its own timing must also be the one that waits least.
    waits_less_s = -statistics.median(_ahead_of(slow, others, steps, _wait_s))
    # The standard error of a median of normal noise; the floor keeps identical times from dividing by zero.
    score = excess_s / max(MEDIAN_SIGMA * SIGMA * _deviation(behind_s) / len(steps) ** 0.5, 1e-9)
    # With few others their spread is chance, so it is asked of four ranks and more.
    spread_s = SIGMA * _deviation([works_s[rank] for rank in others]) if len(others) >= OTHERS_WITH_SPREAD else 0.0
    is_found = (
        excess_s >= MIN_SHARE * step_s
        and score >= min_score
        and waits_less_s >= MIN_WAIT * excess_s
        and excess_s >= MIN_SPREAD * spread_s
    )
    if not is_found:
        return None
    part = max(WORK, key=lambda part: statistics.median(_ahead_of(slow, others, steps, _second_of(part))))
    own_s = statistics.median(step[slow][part] for step in steps)
    others_s = statistics.median(step[rank][part] for step in steps for rank in others)
    # Of shares by speed all are done at once: work that takes w alone is done at the rate 1 / w.
    balanced_s = len(ranks) / sum(1 / max(work_s, 1e-9) for work_s in works_s.values())
    return Straggler(
        rank=slow,
        part=part,
        excess_s=excess_s,
        step_s=step_s,
        own_s=own_s,
        others_s=others_s,
        score=score,
        balanced_s=step_s - works_s[slow] + balanced_s,
    )


def _ahead_of(slow: int, others: Sequence[int], steps: Steps, of: Callable[[Parts], float]) -> list[float]:
    """By step, how much more one rank has of something than the others in the middle."""
    return [of(step[slow]) - statistics.median(of(step[rank]) for rank in others) for step in steps]


def _second_of(part: str) -> Callable[[Parts], float]:
    return lambda parts: parts[part]


def _work_s(parts: Parts) -> float:
    return sum(map(parts.__getitem__, WORK))  # for each rank and step of two windows: a supervisor's main work


def _wait_s(parts: Parts) -> float:
    return parts[WAIT]


def _deviation(values: Sequence[float]) -> float:
    """Median absolute deviation."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


class StragglerDetector:
    """Receives all ranks' steps as they come; reports once of a rank and part of one attempt that it is slow."""

    def __init__(self, world_size: int) -> None:
        self._world_size, self._num_stages = world_size, 1
        self.may_balance = False
        """Whether ranks may have unequal shares: each has the whole model."""
        self._pending: dict[int, dict[int, Parts]] = {}
        """By step, of the ranks that have written it down."""
        self._rounds = [_Rounds() for _ in range(world_size)]
        self._steps: deque[Mapping[int, Parts]] = deque(maxlen=LONG)
        self._num_steps = 0
        self._suspect: int | None = None
        self._reported: set[tuple[int, str]] = set()

    def take(self, rank: int, event: Event) -> Straggler | None:
        """Returns who is slow, when that is news."""
        if event["event"] == "model":
            self._num_stages = int(event.get("num_stages") or 1)
            self.may_balance = bool(event.get("has_whole_model", False))
        if (parts := self._rounds[rank].take(event)) is None:
            return None
        step = self._pending.setdefault(int(event["step"]), {})
        step[rank] = parts
        # A step is compared only once all ranks have written it, for their ledgers are read at different moments.
        if len(step) < self._world_size:
            if len(self._pending) > LONG:
                # Of a rank whose words cannot be read here.
                del self._pending[min(self._pending)]
            return None
        # Steps before it that a rank has not reported, it never will.
        self._pending = {number: ranks for number, ranks in self._pending.items() if number > int(event["step"])}
        self._steps.append(step)
        self._num_steps += 1
        # Not at each step: windows that overlap almost wholly are one observation, taken many times.
        found = self._look() if self._num_steps % SHORT == 0 else None
        if found is None or (found.rank, found.part) in self._reported:
            return None
        self._reported.add((found.rank, found.part))
        return found

    def _look(self) -> Straggler | None:
        steps = list(self._steps)
        found = find_straggler(steps[-SHORT:], min_score=SHORT_SCORE, num_stages=self._num_stages)
        # Twice in a row for the same rank: with so few steps chance alone would name someone now and then.
        suspect, self._suspect = self._suspect, None if found is None else found.rank
        if found is not None and found.rank == suspect:
            return found
        if len(steps) < LONG:
            return None
        return find_straggler(steps, min_score=LONG_SCORE, num_stages=self._num_stages)
