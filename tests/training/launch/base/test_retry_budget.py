from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base import retry_budget
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.retry_budget import RECORDS_NAME, AttemptRecord, AttemptRecords, GiveUp, Retry, decide

SPEC = LaunchSpec(max_attempts=5, max_cycles_without_progress=3, backoff_s=1, max_backoff_s=3)


def attempts(
    *steps: int | None, cause: str = "infrastructure", retryable: bool = True, **last: object
) -> list[AttemptRecord]:
    records = [AttemptRecord(attempt=number, scope="one", step=step) for number, step in enumerate(steps, 1)]
    return [*records[:-1], replace(records[-1], failure=Failure(cause=cause, retryable=retryable), **last)]


def test_a_lost_rank_after_progress_is_retried_at_once() -> None:
    assert decide(attempts(10), SPEC) == Retry(0.0)
    assert decide(attempts(10, 20), SPEC) == Retry(0.0)


@pytest.mark.parametrize("cause", ["data", "contract", "config", "integrity", "oom", "environment"])
def test_what_would_fail_again_is_never_retried(cause: str) -> None:
    decision = decide(attempts(10, cause=cause, retryable=False), SPEC)
    assert isinstance(decision, GiveUp)
    assert cause in decision.reason


def test_an_attempt_that_noted_a_smaller_micro_batch_is_followed_by_another_free_of_charge() -> None:
    oom = Failure(cause="oom", retryable=True)
    halving = [AttemptRecord(attempt=n, scope="one", failure=oom) for n in range(1, 8)]
    assert decide(halving, SPEC) == Retry(0.0)
    assert isinstance(decide([*halving, *attempts(None, cause="oom", retryable=False)], SPEC), GiveUp)


def test_waits_double_without_progress_and_are_capped() -> None:
    spec = SPEC.model_copy(update={"max_cycles_without_progress": 9, "max_attempts": 9})
    waits = [decide(attempts(10, *[10] * cycles), spec) for cycles in range(1, 5)]
    assert waits == [Retry(1), Retry(2), Retry(3), Retry(3)]


def test_a_crash_at_the_same_step_ends_the_run() -> None:
    assert isinstance(decide(attempts(50, 50, 50, cause="training"), SPEC), Retry)
    decision = decide(attempts(50, 50, 50, 50, cause="training"), SPEC)
    assert isinstance(decision, GiveUp)
    assert "3 times in a row it came no further than step 50" in decision.reason


def test_a_run_that_never_makes_a_step_ends() -> None:
    decision = decide(attempts(None, None, None), SPEC)
    assert isinstance(decision, GiveUp)
    assert "not even to a first step" in decision.reason


def test_progress_resets_the_cycles_but_not_the_attempts() -> None:
    assert isinstance(decide(attempts(10, 10, 10, 30), SPEC), Retry)
    assert decide(attempts(1, 2, 3, 4, 5), SPEC) == GiveUp("all 5 attempts are spent.")


def test_coming_back_to_where_it_was_before_is_no_progress() -> None:
    assert isinstance(decide(attempts(30, 10, 20), SPEC), Retry)
    decision = decide(attempts(30, 10, 20, 29), SPEC)
    assert decision == GiveUp("3 times in a row it came no further than step 30.")


def test_an_attempt_that_did_its_work_is_no_failure_of_those_that_follow() -> None:
    done = attempts(1, state="done", cause="", retryable=False)
    assert decide(done, SPEC) == Retry(0.0)
    assert decide([*done, *attempts(2)], SPEC) == Retry(0.0)


def test_stopped_attempts_are_free() -> None:
    stopped = [AttemptRecord(attempt=number, scope="one", state="stopped") for number in range(9)]
    assert decide(stopped, SPEC) == Retry(0.0)


@given(st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=1, max_size=20))
def test_every_run_of_failures_ends(steps: list[int | None]) -> None:
    assert isinstance(decide(attempts(*steps, *[None] * SPEC.max_attempts), SPEC), GiveUp)


def test_a_later_owner_draws_on_the_same_budget_and_one_that_died_is_counted(tmp_path: Path) -> None:
    first = AttemptRecords(tmp_path)
    first.begin(AttemptRecord(attempt=1, scope="one"))
    first.end(AttemptRecord(attempt=1, scope="one", step=7))
    first.begin(AttemptRecord(attempt=2, scope="one"))  # and its owner is killed
    first.begin(AttemptRecord(attempt=3, scope="another"))

    later = AttemptRecords(tmp_path)

    assert [(record.attempt, record.step, record.failure.what) for record in later.in_scope("one")] == [
        (1, 7, "its owner was lost."),
        (2, None, "its owner was lost."),
    ]
    assert later.next_attempt() == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_no_attempt_begins_that_the_budget_cannot_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_budget, "RECORDS_NAME", "/dev/full")
    records = AttemptRecords(tmp_path)
    for write in (records.begin, records.end):
        with pytest.raises(EnvironmentProblem, match="No space left"):
            write(AttemptRecord(attempt=1, scope="one"))


def test_no_attempt_is_counted_through_a_link_that_another_user_put_there(tmp_path: Path) -> None:
    (tmp_path / RECORDS_NAME).symlink_to("elsewhere")
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        AttemptRecords(tmp_path).begin(AttemptRecord(attempt=1, scope="one"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_number_is_not_given_twice_even_when_records_are_gone(tmp_path: Path) -> None:
    (tmp_path / "attempts" / "006").mkdir(parents=True)
    assert AttemptRecords(tmp_path).next_attempt() == 7
