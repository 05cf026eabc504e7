"""What a search has spent, by the attempts of its trials, and what still fits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headway.tasks.search.budget import BudgetSpec, SearchBudget, Spent, TrialProgress, Worked, spent_by
from headway.tasks.search.pace import ProgressReader
from headway.tasks.search.rungs import AttemptPace
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords


def trial(step: int, *worked: tuple[str, float, float]) -> TrialProgress:
    return TrialProgress(step=step, worked=tuple(Worked(*each) for each in worked))


@pytest.mark.parametrize(
    "value", [{}, {"steps": 0}, {"hours": -1}, {"usd": 0}, {"hours": float("inf")}, {"seconds": 3}, {"hours": "many"}]
)
def test_a_budget_that_is_none_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BudgetSpec.model_validate(value)


def test_wall_time_passes_once_for_trials_side_by_side_and_not_at_all_between_two_nights() -> None:
    first = trial(60, ("one night", 0.0, 10.0), ("the next", 1000.0, 1005.0))
    second = trial(60, ("one night", 5.0, 20.0), ("the next", 1010.0, 1020.0))
    # 25 s and 15 s of attempts; 5 s between two of one night, in which scoring holds the devices.
    assert spent_by([first, second]) == Spent(steps=120, wall_s=40.0, trained_s=40.0, held_s=45.0, num_starts=4)
    assert spent_by([]) == Spent(0, 0.0, 0.0, 0.0, 0)


def budget(*known: TrialProgress, usd_per_s: float = 0.0, pace: AttemptPace | None = None, **spec: Any) -> SearchBudget:
    progress = {str(number): each for number, each in enumerate(known, 1)}
    made = SearchBudget(
        BudgetSpec(**spec), lambda run: progress.get(run, TrialProgress()), usd_per_s=usd_per_s, pace=pace
    )
    made.know(progress)
    return made


def test_what_fits_is_decided_by_what_steps_took_so_far_with_what_the_best_needs_to_its_end() -> None:
    done = trial(100, ("a", 0.0, 100.0))
    hour = 1 / 3600
    assert not budget(done, hours=200 * hour).refusal({"2": 100})
    assert not budget(done, hours=200 * hour).refusal({"2": 60}, to_the_end=40)
    why = budget(done, hours=199 * hour).refusal({"2": 60}, to_the_end=40)
    assert why.startswith("1 min 40 s so far, and what follows would take about 1 min 40 s: more than 0.0552")
    # What is at its end, or beyond that step, takes nothing, whatever was spent.
    assert not budget(done, hours=hour).refusal({"1": 100})
    finished = TrialProgress(step=90, is_finished=True, worked=(Worked("a", 0.0, 100.0),))
    assert not budget(finished, hours=hour).refusal({"1": 100})
    assert not budget(done, steps=1).refusal({"2": 100}), "steps are counted by rounds"


def test_trials_that_train_beside_it_are_paid_for_before_one_more_begins() -> None:
    found = budget(trial(100, ("a", 0.0, 100.0)), hours=300 / 3600)
    assert not found.refusal({"2": 100}) and not found.refusal({"3": 100})
    assert found.refusal({"4": 100})
    assert not found.refusal({"3": 100}), "it begins again, in its own place"
    found.know([])  # both have ended, wherever
    assert not found.refusal({"4": 100})


def test_money_is_for_the_devices_that_are_held() -> None:
    done = trial(100, ("a", 0.0, 60.0), ("a", 80.0, 100.0))
    assert not budget(done, usd=2.0, usd_per_s=0.01).refusal({"2": 100})
    why = budget(done, usd=1.99, usd_per_s=0.01).refusal({"2": 100})
    assert why == "1.00 USD so far, and what follows would take about 1.00: more than 1.99 USD in all"


def test_before_a_first_step_the_pipelines_last_run_tells_and_else_it_begins() -> None:
    pace = AttemptPace(start_s=10.0, step_s=1.0)
    assert not budget(hours=1 / 3600).refusal({"1": 100})
    assert not budget(hours=111 / 3600, pace=pace).refusal({"1": 100})
    assert budget(hours=109 / 3600, pace=pace).refusal({"1": 100})


def test_an_attempt_whose_owner_was_killed_took_until_its_last_sign_and_one_that_goes_on_until_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = AttemptRecords(tmp_path)
    paused = Failure(cause="stopped", what="", retryable=True, reason="step reached")
    records.end(
        AttemptRecord(attempt=1, scope="a", state="stopped", failure=paused, step=60, start_unix_s=10.0, end_unix_s=30)
    )
    records.begin(AttemptRecord(attempt=2, scope="a", start_unix_s=40.0))
    spool = AttemptFiles(attempt_folder(tmp_path, 2)).rank_spool(0)
    spool.parent.mkdir(parents=True)
    spool.touch()
    os.utime(spool, (55.0, 55.0))
    records.begin(AttemptRecord(attempt=3, scope="b", start_unix_s=100.0))
    monkeypatch.setattr("headway.tasks.search.pace.time.time", lambda: 107.0)
    progress_of = ProgressReader("b")
    found = progress_of(tmp_path)
    assert found == TrialProgress(
        step=60, worked=(Worked("a", 10.0, 30.0), Worked("a", 40.0, 55.0), Worked("b", 100.0, 107.0))
    )
    records.end(AttemptRecord(attempt=3, scope="b", state="done", step=540, start_unix_s=100.0, end_unix_s=110.0))
    found = progress_of(tmp_path)
    assert found.is_finished and found.step == 540 and found.worked[-1] == Worked("b", 100.0, 110.0)
    assert progress_of(tmp_path / "no run") == TrialProgress()
    # What is at rest is not read again, which of many trials most are.
    with monkeypatch.context() as patch:
        patch.setattr(AttemptRecords, "all", lambda _: pytest.fail("read again"))
        assert progress_of(tmp_path) == found
