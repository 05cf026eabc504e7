"""The trials of kills measure what they say; `make soak` makes them by the dozen, and docs/faults.md shows them."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from pathlib import Path

import pytest

from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.base.protocol import TOKEN
from tests.known_processes import with_beginnings
from tests.soak import orphans
from tests.soak.hang_table import HangEvidence
from tests.soak.orphan_table import Evidence, Trial, page, summarise, table
from tests.soak.orphan_trials import fault, kill_one_of_the_gang, kill_the_supervisor, measure_end, owned

DOCS = Path(__file__).parents[2] / "docs"
QUICK = {"max_attempts": 1000, "max_cycles_without_progress": 1000, "backoff_s": 0.0, "peer_grace_s": 1.0}


@pytest.mark.long
@pytest.mark.process
def test_a_rank_an_agent_a_guard_and_the_supervisor_that_are_killed_leave_nobody(tmp_path: Path) -> None:
    with owned(tmp_path / "run", LaunchSpec(**QUICK)) as run:  # type: ignore[arg-type]
        run.begin("--steps", "999999", "--children")
        trials = [kill_one_of_the_gang(run, victim) for victim in ("rank", "agent", "guard")]
        trials.append(kill_the_supervisor(run, "local"))
        assert processes_with(TOKEN, run.token) == []
    # How soon is for a quiet machine to say.
    assert all(trial.gone_s is not None and not trial.problem for trial in trials), trials
    assert all(trial.connected for trial in trials[:3]), trials


@pytest.mark.long
@pytest.mark.process
def test_an_attempt_that_nothing_happens_to_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("PATIENCE_S", "STEP_PATIENCE_S"):
        monkeypatch.setattr(f"tests.soak.orphan_trials.{patience}", 0.5)
    with owned(tmp_path / "run", LaunchSpec(**QUICK)) as run:  # type: ignore[arg-type]
        run.begin("--steps", "999999")
        run.until_it_steps(1)
        trial = Trial(where="local", victim="nobody", how="not at all", bound_s=0.1)
        with pytest.raises(AssertionError, match="a step after attempt 1"):
            fault(trial, run.folder, lambda: None)
    assert trial.gone_s is None and trial.num_left >= 4 and not trial.held


def test_whoever_is_alive_past_the_bound_counts_though_he_goes_later() -> None:
    looks = itertools.chain([[1, 2], [1], [1]], itertools.repeat([]))
    trial = Trial(where="local", victim="rank", how="SIGKILL", bound_s=0.0)
    measure_end(trial, lambda: next(looks), time.monotonic())
    assert (trial.num_left, trial.held) == (2, False) and trial.gone_s is not None
    assert [words.partition(" ")[0] for words in trial.left] == ["1", "2"], "whoever it was is told"


@pytest.mark.process
def test_whoever_ends_while_he_is_looked_at_is_not_left() -> None:
    """Between the look for him and the one at his beginning; as "" he would never be gone."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert list(with_beginnings([os.getpid(), ended.pid])) == [os.getpid()]


def trial(**fields: object) -> Trial:
    return Trial.model_validate({"where": "local", "victim": "rank", "how": "SIGKILL", **fields})


def test_a_row_sums_up_one_way_of_ending_and_a_problem_is_no_success() -> None:
    trials = [trial(gone_s=second, next_step_s=2 * second, target_s=10, connected=True) for second in range(1, 21)]
    trials += [trial(problem="no step"), trial(victim="flow", how="Ctrl-C", gone_s=3.0, num_left=1)]
    rank, flow = summarise(trials)
    assert (rank["trials"], rank["gone_p50_s"], rank["gone_p95_s"], rank["next_step_p95_s"]) == (21, 10, 19, 38)
    assert (rank["connected"], rank["equal_bits"], rank["problems"]) == ("20 of 20", None, ["no step"])
    assert (flow["left"], flow["connected"]) == (1, None)
    assert "| local | flow | Ctrl-C | 1 | 3 s | 3 s | 10 s | 1 |  |  |  |  |  |  |" in table([rank, flow]).splitlines()
    failed = Evidence(command="", machine="", started="", wall_s=0, trials=trials).failures
    assert [each.victim for each in failed] == ["rank", "flow"]


def test_a_kind_of_trial_that_goes_wrong_is_told_and_the_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_folder: Path):
        yield [trial(victim="supervisor", gone_s=1.0)]
        raise RuntimeError("no more processes")

    monkeypatch.setattr(orphans, "supervisor_trials", broken)
    kept: list[Evidence] = []
    evidence = orphans.Soak(tmp_path, keep=kept.append).run(["supervisor"], times=3)
    assert [each.problem for each in evidence.trials] == ["", "RuntimeError: no more processes", ""]
    assert [len(each.trials) for each in kept] == [1, 2, 3]


def test_the_page_of_faults_is_what_its_evidence_says() -> None:
    evidence = Evidence.model_validate_json((DOCS / "faults.json").read_bytes())
    assert evidence.summary == summarise(evidence.trials)
    hangs = HangEvidence.model_validate_json((DOCS / "hangs.json").read_bytes())
    assert (DOCS / "faults.md").read_text() == page(evidence, hangs)
