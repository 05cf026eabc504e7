"""What is learnt of a run's steps ends what hangs soon, and what is merely slow never."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.training.launch.base.gang import LaunchSpec, attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.diagnosis.adaptive_timeout import (
    MIN_STEPS,
    MIN_STEPS_OF_ATTEMPT,
    TIMES,
    AdaptiveTimeout,
    TimeoutReporter,
)
from headway.training.launch.diagnosis.hang_detection import Liveness, ProgressClock
from headway.training.launch.diagnosis.rank_event_stream import RankEventStream
from headway.training.observe.ledger import Ledger, read_events

SPEC = LaunchSpec()
FLOOR_S, CAP_S = SPEC.min_progress_deadline_s, SPEC.progress_deadline_s
POLL_S = 4.0
NUM_STEPS = 400
SEEDS = range(5)
Trace = Iterator[tuple[str, float]]
"""What rank 0 writes down next, and after how many seconds of silence."""


def steps(durations_s: Iterator[float]) -> Trace:
    return (("step", duration_s) for duration_s in itertools.islice(durations_s, NUM_STEPS))


def bimodal(chance: random.Random) -> Trace:
    return steps(chance.choices((0.5, 8.0), (95, 5))[0] for _ in itertools.count())


def rarely_slow(chance: random.Random) -> Trace:
    """Less often than p99 can see."""
    return steps(chance.choices((0.2, 25.0), (299, 1))[0] for _ in itertools.count())


def heavy_tail(chance: random.Random) -> Trace:
    return steps(0.5 * chance.lognormvariate(0, 1) for _ in itertools.count())


def pareto(chance: random.Random) -> Trace:
    return steps(0.2 * chance.paretovariate(2.0) for _ in itertools.count())


def growing(chance: random.Random) -> Trace:
    return steps(0.05 * 1.015**number * chance.uniform(0.8, 1.2) for number in itertools.count())


def long_steps(chance: random.Random) -> Trace:
    return steps(chance.uniform(60.0, 110.0) for _ in itertools.count())


def slow_checkpoints(chance: random.Random) -> Trace:
    """Each fiftieth step, silently for nearly as long as is configured."""
    for number, (word, duration_s) in enumerate(steps(chance.uniform(0.1, 0.3) for _ in itertools.count()), 1):
        yield word, duration_s
        if number % 50 == 0:
            yield "checkpoint.begin", 0.0
            yield "checkpoint", chance.uniform(1.0, 110.0)


def slow_everything_else(chance: random.Random) -> Trace:
    """Steps between a trace, a restore and the wait at the end."""
    for part in range(6):
        compiling_s = (40.0, 30.0) if part else (110.0, 90.0)
        yield "restore", 0.0
        yield from (("step", compile_s) for compile_s in compiling_s)
        yield from (("step", chance.uniform(0.1, 0.2)) for _ in range(100))
        yield from (("profile.begin", 0.0), ("profile", 80.0), ("step", 0.3))
        yield from (("wind_down.begin", 0.1), ("wind_down", 100.0), ("restore.begin", 0.0), ("heartbeat", 90.0))


HEALTHY = [bimodal, rarely_slow, heavy_tail, pareto, growing, long_steps, slow_checkpoints, slow_everything_else]


class Simulation:
    """A clock that is looked at every second of a trace."""

    def __init__(self, timeout: AdaptiveTimeout) -> None:
        self.timeout, self.now_s, self.step = timeout, 0.0, 0
        self.clock = ProgressClock(SPEC, None, 0.0, timeout)
        self.alarms: list[str] = []
        self._num_words = 0

    def run(self, trace: Trace) -> None:
        for word, silence_s in trace:
            self.silence(silence_s)
            self._num_words += 1
            self.step += word == "step"
            self.timeout.take(0, {"event": word, "unix_s": self.now_s})
            self._look()

    def silence(self, silence_s: float) -> None:
        end_s = self.now_s + silence_s
        while self.now_s < end_s:
            self.now_s = min(self.now_s + POLL_S, end_s)
            self._look()

    def _look(self) -> None:
        self.clock.observe(self.step or None, {0: Liveness("running", None, self._num_words)}, self.now_s)
        if alarm := self.clock.overdue(self.now_s):
            self.alarms.append(alarm)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("trace", HEALTHY)
def test_a_healthy_run_is_never_ended_however_its_steps_vary(
    trace: Callable[[random.Random], Trace], seed: int
) -> None:
    simulation = Simulation(AdaptiveTimeout(SPEC))
    simulation.run(trace(random.Random(seed)))
    assert simulation.alarms == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("trace", HEALTHY)
def test_a_step_that_hangs_is_missed_when_the_learnt_deadline_is_over_and_never_after_the_configured_one(
    trace: Callable[[random.Random], Trace], seed: int
) -> None:
    simulation = Simulation(AdaptiveTimeout(SPEC))
    simulation.run(trace(random.Random(seed)))
    simulation.run(iter([("step", 0.1)]))
    deadline_s = simulation.timeout.limit_s()
    assert FLOOR_S < deadline_s <= min(CAP_S, FLOOR_S + TIMES * simulation.timeout.p99_s)
    simulation.silence(deadline_s - 0.01)
    assert simulation.alarms == []
    simulation.silence(POLL_S)
    assert simulation.alarms


def test_whoever_is_ended_is_told_what_steps_took() -> None:
    simulation = Simulation(AdaptiveTimeout(SPEC))
    simulation.run(("step", 0.8 if number % 50 else 1.3) for number in range(200))
    simulation.silence(60)
    assert simulation.alarms[0] == (
        "no step after step 200 and no sign of life within 43 s; steps took 0.8 s (p99 1.3 s)"
    )


def test_little_is_learnt_from_few_steps() -> None:
    simulation = Simulation(AdaptiveTimeout(SPEC))
    simulation.run(("step", 0.1) for _ in range(MIN_STEPS))  # the first has nothing before it to be timed by
    assert simulation.timeout.limit_s() == CAP_S
    simulation.run(iter([("step", 0.1)]))
    assert simulation.timeout.limit_s() == pytest.approx(FLOOR_S + TIMES * 0.1)


def test_what_is_configured_goes_before_what_is_learnt_and_before_the_floor() -> None:
    simulation = Simulation(AdaptiveTimeout(LaunchSpec(progress_deadline_s=5)))
    simulation.run(("step", 0.1) for _ in range(2 * MIN_STEPS))
    assert simulation.timeout.limit_s() == 5


def test_a_rank_that_does_something_else_has_the_configured_time_and_one_that_has_ended_none() -> None:
    simulation = Simulation(AdaptiveTimeout(SPEC))
    simulation.run(("step", 0.1) for _ in range(2 * MIN_STEPS))
    simulation.timeout.take(1, {"event": "checkpoint.begin", "unix_s": 0.0})
    assert simulation.timeout.limit_s() == CAP_S
    simulation.timeout.take(1, {"event": "checkpoint", "unix_s": 0.0})
    assert simulation.timeout.limit_s() < CAP_S
    simulation.timeout.take(1, {"event": "rank.done", "unix_s": 0.0})
    assert simulation.timeout.limit_s() < CAP_S


def write_attempt(run_dir: Path, number: int, *, ranks: int, step_s: float) -> None:
    for rank in range(ranks):
        ledger = Ledger(AttemptFiles(attempt_folder(run_dir, number)).rank_spool(rank))
        for step in range(3 * MIN_STEPS):
            ledger.event("step", step=step, duration_s=step_s)
        ledger.close()


def test_an_attempt_knows_earlier_ones_with_as_many_ranks_once_it_has_made_some_steps_itself(tmp_path: Path) -> None:
    write_attempt(tmp_path, 1, ranks=2, step_s=0.5)
    write_attempt(tmp_path, 2, ranks=1, step_s=9.0)
    simulation = Simulation(AdaptiveTimeout.after(SPEC, tmp_path, attempt=3, world_size=2))
    assert str(simulation.timeout) == "0.5 s (p99 0.5 s)"
    simulation.run(("step", 0.5) for _ in range(MIN_STEPS_OF_ATTEMPT))
    assert simulation.timeout.limit_s() == CAP_S, "the next may compile"
    simulation.run(iter([("step", 0.5)]))
    assert simulation.timeout.limit_s() == FLOOR_S + TIMES * 0.5


def test_a_step_that_always_takes_long_ends_one_attempt_and_no_run(tmp_path: Path) -> None:
    write_attempt(tmp_path, 1, ranks=2, step_s=0.5)
    AttemptFiles(attempt_folder(tmp_path, 1)).missed_step.touch()
    write_attempt(tmp_path, 2, ranks=2, step_s=0.5)
    simulation = Simulation(AdaptiveTimeout.after(SPEC, tmp_path, attempt=3, world_size=2))
    simulation.run(("step", 0.5) for _ in range(2 * MIN_STEPS))
    assert simulation.timeout.limit_s() == CAP_S and not simulation.timeout.ends_sooner


def test_a_spool_that_cannot_be_read_now_ends_nothing(tmp_path: Path) -> None:
    write_attempt(tmp_path, 1, ranks=2, step_s=0.5)
    files = AttemptFiles(attempt_folder(tmp_path, 1))
    files.rank_spool(0).unlink()
    files.rank_spool(0).mkdir()
    words = RankEventStream(files)
    assert {rank for rank, _ in words.poll()} == {1}
    assert not AdaptiveTimeout.after(SPEC, tmp_path, attempt=2, world_size=2).is_known


def test_who_was_halted_together_with_whoever_watches_is_not_late() -> None:
    simulation = Simulation(AdaptiveTimeout(SPEC))
    simulation.run(("step", 0.1) for _ in range(2 * MIN_STEPS))
    simulation.now_s += 10 * CAP_S
    simulation.silence(FLOOR_S / 2)
    assert simulation.alarms == []
    simulation.silence(FLOOR_S)
    assert simulation.alarms


def test_what_was_learnt_is_written_down_once_and_when_it_moves_and_a_tight_deadline_is_told(tmp_path: Path) -> None:
    spec = LaunchSpec(progress_deadline_s=60)
    timeout = AdaptiveTimeout(spec)
    teller = TimeoutReporter(timeout, Ledger(tmp_path / "ledger"), attempt=4)
    for duration_s in [0.1] * 100 + [25.0] * 100:
        timeout.take(0, {"event": "step", "unix_s": 0.0, "duration_s": duration_s})
        teller.report()
    first, *later, tight = read_events(tmp_path / "ledger")
    assert first["attempt"] == 4 and first["what"] == "a step is missed after 31 s: steps take 0.1 s (p99 0.1 s)."
    assert [event["event"] for event in later] == ["attempt.deadline"]
    assert later[-1]["deadline_s"] == 60
    assert tight["event"] == "attempt.tight_deadline" and "raise it" in tight["what"]
