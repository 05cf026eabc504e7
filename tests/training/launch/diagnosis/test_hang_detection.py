from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

from headway.training.launch.base.gang import LaunchSpec, SteplessLaunchSpec
from headway.training.launch.base.protocol import AttemptFiles, RankMarker, RankVitals, write_json
from headway.training.launch.diagnosis.adaptive_timeout import AdaptiveTimeout
from headway.training.launch.diagnosis.hang_detection import (
    Liveness,
    ProgressClock,
    RankPosition,
    SteplessClock,
    describe_hang,
    hung_ranks,
    liveness_of,
)

SPEC = LaunchSpec(start_deadline_s=30, progress_deadline_s=10)
QUIET = SteplessLaunchSpec(start_deadline_s=30, progress_deadline_s=10, busy_deadline_s=100)
RUNNING = Liveness(state="running", step=None, num_bytes=0)


def position(rank: int, step: int | None, state: str = "S", doing: str = "", waits: bool = False) -> RankPosition:
    return RankPosition(rank=rank, step=step, state=state, doing=doing, waits=waits)


def test_the_first_step_has_a_deadline_of_its_own() -> None:
    clock = ProgressClock(SPEC, None, 0, AdaptiveTimeout(SPEC))
    assert clock.overdue(29) == ""
    assert clock.overdue(31) == "no first step and no sign of life within 30 s"


def test_any_ranks_word_is_progress_like_a_step_and_silence_is_not() -> None:
    clock = ProgressClock(SPEC, None, 0, AdaptiveTimeout(SPEC))
    clock.observe(None, {0: RUNNING}, now_s=25)
    assert clock.overdue(50) == ""
    clock.observe(1, {0: RUNNING}, now_s=50)
    clock.observe(1, {0: RUNNING, 1: RUNNING._replace(num_bytes=99)}, now_s=59)
    assert clock.overdue(68) == "", "rank 1 reads or writes a checkpoint"
    for now_s in (63, 68):
        clock.observe(1, {0: RUNNING, 1: RUNNING._replace(num_bytes=99)}, now_s=now_s)
    assert clock.overdue(70) == "no step after step 1 and no sign of life within 10 s"


def test_work_alone_is_no_progress_of_a_rank_that_should_make_steps() -> None:
    clock = ProgressClock(SPEC, None, 0, AdaptiveTimeout(SPEC))
    for now_s in range(31):
        clock.observe(None, {0: RUNNING._replace(cpu_s=now_s)}, now_s=now_s)
    assert clock.overdue(31)


def test_a_quiet_rank_that_neither_says_nor_does_anything_is_late_as_soon_as_a_missing_step_is() -> None:
    clock = SteplessClock(QUIET, now_s=0)
    assert clock.overdue(29) == "", "it is still coming up"
    for now_s in (29, 33, 38):
        clock.observe(None, {0: RUNNING}, now_s=now_s)
    assert clock.overdue(38) == ""
    assert clock.overdue(40) == "no sign of life within 10 s"


def test_a_quiet_rank_that_never_comes_up_is_late() -> None:
    assert SteplessClock(QUIET, now_s=0).overdue(31) == "no sign of life within 30 s"


def test_a_quiet_rank_that_says_something_now_and_then_may_take_for_ever() -> None:
    clock = SteplessClock(QUIET, now_s=0)
    for now_s in range(0, 1000, 9):
        clock.observe(None, {0: RUNNING._replace(num_bytes=now_s)}, now_s=now_s)
        assert clock.overdue(now_s + 9) == ""


def test_a_quiet_rank_may_work_on_one_long_call_but_not_for_ever() -> None:
    clock = SteplessClock(QUIET, now_s=0)
    for now_s in range(100):
        clock.observe(None, {0: RUNNING._replace(cpu_s=now_s // 5)}, now_s=now_s)
        assert clock.overdue(now_s) == ""
    assert clock.overdue(101) == "at work, but without a word within 100 s"


def test_a_machine_that_was_halted_for_a_while_makes_no_quiet_rank_late() -> None:
    idle, busy = SteplessClock(QUIET, now_s=0), SteplessClock(QUIET, now_s=0)
    for now_s in (0, 4, 1004):
        idle.observe(None, {0: RUNNING}, now_s=now_s)
        busy.observe(None, {0: RUNNING._replace(cpu_s=now_s)}, now_s=now_s)
    assert (idle.overdue(1004), busy.overdue(1004)) == ("", ""), "5 s of it count"
    assert idle.overdue(1006) == "no sign of life within 10 s"
    for now_s in range(1008, 1096, 4):
        busy.observe(None, {0: RUNNING._replace(cpu_s=now_s)}, now_s=now_s)
    assert busy.overdue(1094) == ""
    assert busy.overdue(1096) == "at work, but without a word within 100 s"


def test_work_is_what_the_kernel_of_the_ranks_own_host_counted(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path)
    running = RankMarker(rank=0, pid=os.getpid(), parent_pid=1, state="running", unix_s=0.0)
    assert liveness_of(files, {0: running})[0].cpu_s == 0, "its number means another process here"
    vitals = RankVitals(rank=0, state="S", cpu_s=7.9)
    write_json(files.vitals(1), {"unix_s": 0.0, "ranks": [asdict(vitals)]})
    assert liveness_of(files, {0: running})[0].cpu_s == 7
    assert liveness_of(files, {0: replace(running, state="done")})[0].cpu_s == 0


def test_the_step_of_an_earlier_attempt_is_no_progress() -> None:
    clock = ProgressClock(SPEC, 50, 0, AdaptiveTimeout(SPEC))
    for now_s in range(0, 31, 5):
        clock.observe(50, {}, now_s=now_s)
    assert clock.step is None
    assert clock.overdue(31)
    clock.observe(41, {}, now_s=32)
    assert clock.step == 41


def test_the_odd_rank_is_named() -> None:
    assert hung_ranks([position(0, 7), position(1, 6)]) == (1,)
    assert hung_ranks([position(0, 7), position(1, None)]) == (1,)
    assert hung_ranks([position(0, 6), position(1, 7, state="T")]) == (1,)
    assert hung_ranks([position(0, 7), position(1, 7)]) == (0, 1)


def test_those_are_late_whom_the_others_wait_for() -> None:
    waiting, asleep = position(0, 7, waits=True), position(1, 7, doing="oversleep (recipe.py:9)")
    assert hung_ranks([waiting, asleep]) == (1,)
    assert hung_ranks([waiting, position(1, 7, waits=True)]) == (0, 1)
    assert hung_ranks([waiting, position(1, 7)]) == (1,), "it has not even said where it is"
    assert hung_ranks([position(0, 6, waits=True), asleep]) == (1,), "who waits could not write down the step"
    assert hung_ranks([waiting, asleep, position(2, 6, doing="update (learner.py:9)")]) == (2,), "one waits for another"


def test_a_rank_that_has_ended_is_not_late() -> None:
    done = RankPosition(rank=0, step=9, state="X", ended="done")
    assert hung_ranks([done, position(1, 7)]) == (1,)


def test_the_message_says_who_was_late_and_what_each_was_doing() -> None:
    ranks = [position(0, 7, doing="all_reduce (distributed_c10d.py:2900)"), position(1, 6, state="T")]
    assert describe_hang("no step after step 7 within 10 s", ranks) == (
        "no step after step 7 within 10 s; late: rank 1 "
        "(rank 0 at step 7 in all_reduce (distributed_c10d.py:2900); rank 1 halted at step 6)."
    )
