"""The trials of hangs measure what they say; `make soak` makes them by the hundred, and docs/faults.md shows them."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.soak import hangs
from tests.soak.forks import PythonCommand
from tests.soak.hang_table import HangEvidence, HangTrial, section, summarise, table, totals
from tests.soak.hang_trials import GANGS, hang_plans, local_trials, slow_plans
from tests.soak.hanging import PHASES, Plan
from tests.training.conftest import make_project

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.long
@pytest.mark.process
def test_a_rank_that_sleeps_and_one_that_is_halted_are_named_by_the_real_supervisor_of_real_ranks(
    tmp_path: Path,
) -> None:
    plans = [
        Plan(rank=0, how="sleep", phase="before a collective", after_steps=2),
        Plan(rank=1, how="SIGSTOP", phase="in a collective", after_steps=2),
    ]
    trials = list(
        local_trials(tmp_path / "run", make_project(tmp_path / "project"), "2 replicas", plans, random.Random(0))
    )
    # How soon is for a quiet machine to say.
    assert [(trial.named, trial.problem, trial.connected) for trial in trials] == [((0,), "", True), ((1,), "", None)]
    assert all(trial.seen_s is not None and trial.seen_s > trial.deadline_s for trial in trials)


def trial(**fields: object) -> HangTrial:
    return HangTrial.model_validate({"gang": "2 replicas", "how": "sleep", "culprit": 1, "deadline_s": 5.0, **fields})


@pytest.mark.parametrize(
    ("made", "is_right", "held"),
    [
        (trial(named=(1,), seen_s=9.9), True, True),
        (trial(named=(1,), seen_s=10.1), True, False),
        (trial(named=(1,)), True, False),
        (trial(named=(0,), seen_s=6.0), False, False),
        (trial(named=(0, 1), seen_s=6.0), False, False),
        (trial(named=(1,), seen_s=6.0, problem="ended too soon"), False, False),
        (trial(named=(1,), seen_s=6.0, called_slow=(1,)), True, False),
        (trial(how="slow", called_slow=(1,)), True, True),
        (trial(how="slow", called_slow=(0,)), False, False),
        (trial(how="slow"), False, False),
        (trial(how="nothing", culprit=None), True, True),
        (trial(how="nothing", culprit=None, called_slow=(0,)), False, False),
    ],
)
def test_a_trial_holds_when_the_one_rank_was_named_in_time_and_nobody_was_wronged(
    made: HangTrial, is_right: bool, held: bool
) -> None:
    assert (made.is_right, made.held) == (is_right, held)


def test_a_row_sums_up_one_way_and_place() -> None:
    hangs = [trial(phase="forward", named=(1,), seen_s=5 + second / 10, connected=True) for second in range(1, 11)]
    wrong = trial(phase="forward", named=(0,), seen_s=60.0, connected=False)
    healthy = trial(how="nothing", culprit=None, called_slow=(0,))
    row, other = summarise([healthy, *hangs, wrong])
    assert (row["trials"], row["right"], row["in_time"], row["seen_p50_s"], row["seen_p95_s"]) == (11, 10, 10, 5.6, 60)
    assert "| sleep | forward | 11 | 5 s | 5.6 s | 60 s | 10 of 11 | 10 of 11 | 0 |" in table([row]).splitlines()
    assert (other["in_time"], other["called_slow"]) == (None, 1)
    message = totals([healthy, *hangs, wrong])
    assert "right rank was named in 10 of 11 hangs, 10 in time" in message and "called slow in 1 of 12" in message
    assert "ranks met 10 of 11 times" in message


def test_a_trial_that_was_not_made_counts_for_nothing_but_is_told() -> None:
    unmade = trial(was_made=False, problem="the attempt ended before anything was planted.")
    assert not unmade.held and summarise([unmade]) == []
    assert "1 of 2 trials ended before what was planned" in totals([trial(named=(1,), seen_s=6.0), unmade])


def test_plans_are_of_every_kind_and_for_every_rank() -> None:
    plans = hang_plans(random.Random(0), 4, 500)
    assert {plan.rank for plan in plans} == set(range(4))
    assert {(plan.how, plan.phase) for plan in plans} >= {("sleep", phase) for phase in PHASES}
    healthy = [plan for plan in slow_plans(random.Random(0), 2, 500) if plan.how == "nothing"]
    assert 200 < len(healthy) < 300
    assert {gang.world_size for gang in GANGS.values()} == {2, 4}


def test_what_runs_guards_agents_and_ranks_is_forked_and_nothing_else_is() -> None:
    guard = ("env", "PYTHONPATH=/code", "A=b=c", sys.executable, "-m", "headway.training.launch.node.node_guard")
    assert PythonCommand.of(guard) == (
        "headway.training.launch.node.node_guard",
        (),
        {"PYTHONPATH": "/code", "A": "b=c"},
    )
    rank = (sys.executable, "-u", "-m", "headway.training.programs.worker", "--run-dir", "x")
    assert PythonCommand.of(rank) == ("headway.training.programs.worker", ("--run-dir", "x"), {})
    for other in (
        ("sh", "-c", "true"),
        (sys.executable, "-m", "headway.training.launch.node.reaper", "1"),
        ("env", "A=b", "true"),
    ):
        assert PythonCommand.of(other) is None


def test_a_run_that_goes_wrong_is_told_and_the_others_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(_folder: Path, _project: object, gang: str, plans: list[Plan], _chance: object):
        yield trial(gang=gang, named=(1,), seen_s=6.0)
        if gang == "4 replicas":
            raise RuntimeError("no more processes")
        yield from (trial(gang=gang, named=(1,), seen_s=6.0) for _ in plans[1:])

    monkeypatch.setattr(hangs, "local_trials", made)
    monkeypatch.setattr(hangs, "make_project", lambda _folder: None)
    kept: list[HangEvidence] = []
    nothing = HangEvidence(command="", machine="", started="", seed=0)
    evidence = hangs.Soak(tmp_path, nothing, kept.append).run(["hangs"], times=12, parallel=2)
    assert [each.problem for each in evidence.trials if each.problem] == ["RuntimeError: no more processes"]
    assert len([each for each in evidence.trials if each.held]) == 11 and len(kept) == len(evidence.trials) == 12


def test_the_evidence_of_hangs_is_what_its_trials_came_to() -> None:
    evidence = HangEvidence.model_validate_json((DOCS / "hangs.json").read_bytes())
    assert evidence.summary == summarise(evidence.trials)
    assert (DOCS / "faults.md").read_text().endswith(section(evidence))
