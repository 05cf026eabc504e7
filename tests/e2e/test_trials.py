"""Trials over the whole pipeline: each a run of its own, ranked on what judges nothing, and the best one kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from data_contracts.documents import EvaluationReport
from data_contracts.publication import Workspace
from flows.trials.report import TrialsSummary, print_ranking
from tasks.current_run import read
from tasks.trials import TrialScore
from tests.e2e.project import Project
from training.launch.stop_request import request_stop

pytestmark = pytest.mark.slow

OWN_LR, BETTER_LR, BAD_LR = 0.02, 0.03, 1e30


def ask_for_trials(project: Project, *rates: float) -> None:
    with project.pipeline.open("a") as file:
        file.write(f"trials: {{vary: {{optimizer.lr: {list(rates)}}}}}\n")
    project.edit("tiny.yaml", "{bootstrap_resamples: 100}", "{bootstrap_resamples: 100, ranking_share: 0.5}")


def made(events: list[dict[str, Any]], stage: str) -> list[bool]:
    """Of each time that a stage was gone through, whether it was made."""
    return [
        not event["found"]
        for event in events
        if event["event"] == f"stage.{stage}" and "found" in event and "duration_s" in event
    ]


def test_the_best_trial_is_registered_and_a_bad_one_is_a_row_and_none_is_judged_by_what_ranked_it(
    project: Project, trials_here: Any
) -> None:
    before = read(Workspace(str(project.workspace)), "tiny")
    ask_for_trials(project, OWN_LR, BAD_LR, BETTER_LR)
    state, events = trials_here(project)
    summary = state.result()
    assert isinstance(summary, TrialsSummary)

    # The file's own settings were trained by the retrain before.
    assert made(events, "shard") == [False] and made(events, "launch")[0] is False
    *ranked, bad = summary.trials
    assert bad.settings == {"optimizer.lr": BAD_LR} and bad.value is None
    assert bad.cause == "training" and "finite" in bad.what
    assert sorted(row.settings["optimizer.lr"] for row in ranked) == [OWN_LR, BETTER_LR]
    values = [row.value for row in ranked]
    assert values == sorted(values) and not summary.greater_is_better
    assert summary.keep == f"training: {{optimizer: {{lr: {ranked[0].settings['optimizer.lr']}}}}}"

    # One half ranks, the other judges.
    report = next(
        found
        for path in project.files("documents/evaluation/*.json")
        if (found := EvaluationReport.from_bytes(path.read_bytes(), where="")).sha256 == summary.best.evaluation
    )
    scores = [TrialScore.from_bytes(path.read_bytes(), where="") for path in project.files("documents/trial-score/*")]
    assert len(scores) == 2 and len({score.examples_sha256 for score in scores}) == 1
    held_out = heldout_examples(project)
    assert {score.num_examples for score in scores} == {report.num_ranking_examples} == {summary.num_ranking_examples}
    assert report.num_examples + report.num_ranking_examples == len(held_out)
    assert report.examples_sha256 not in {score.examples_sha256 for score in scores}
    assert summary.best.value == pytest.approx(report.metrics[report.metric].value)

    # What became of it is what becomes of any retrain; the pipeline's own run is where it was.
    assert summary.best.version and summary.best.registration
    assert read(Workspace(str(project.workspace)), "tiny") == before
    said = json.loads(project.file("ledger/*/trials.json").read_bytes())
    assert TrialsSummary.model_validate(said) == summary

    again, events = trials_here(project, may_register=False)
    assert made(events, "launch") == [False, True, False], "what failed is tried again; a row is no result"
    assert made(events, "score") == [False, False]
    assert again.result().trials[:-1] == summary.trials[:-1]
    shown = Console(record=True, width=200, file=(project.root / "shown").open("w"))
    print_ranking(summary, shown)
    lines = [line.split() for line in shown.export_text().splitlines()]
    assert ["1", str(ranked[0].trial), str(ranked[0].settings["optimizer.lr"])] in [line[:3] for line in lines]
    assert any(line[:3] == ["-", "2", "1e+30"] for line in lines)


def heldout_examples(project: Project) -> set[str]:
    found: set[str] = set()
    for path in project.files("documents/manifest/*.json"):
        groups = json.loads(path.read_bytes())["groups"]
        found |= {document for group in groups if group["split"] == "heldout" for document in group["documents"]}
    return found


def test_trials_that_are_stopped_go_on_where_they_were(project: Project, trials_here: Any) -> None:
    ask_for_trials(project, OWN_LR, BETTER_LR, 0.04)

    def stop_the_second(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["trial"] == "trial 2" and event["step"] == 30:
            request_stop(newest_run(project), "enough")

    state, events = trials_here(project, stop_the_second)
    assert state.name == "Stopped" and "headway trials" in state.message
    assert made(events, "score") == [] and not project.files("documents/trial-score/*")

    state, events = trials_here(project)
    assert state.is_completed() and len(state.result().trials) == 3
    steps = [int(event["step"]) for event in events if event["event"] == "step"]
    second, third = steps[: steps.index(1)], steps[steps.index(1) :]
    assert second[0] > 20 and second[-1] == third[-1] == 120, "the second from its checkpoint on"


def newest_run(project: Project) -> Path:
    return max((project.workspace / "runs").iterdir(), key=lambda path: path.stat().st_ctime)


def test_where_every_trial_fails_nothing_is_chosen_and_each_cause_is_told(project: Project, trials_here: Any) -> None:
    ask_for_trials(project, BAD_LR, 2 * BAD_LR)
    state, _ = trials_here(project)
    assert state.is_failed() and "all 2 trials failed" in str(state.message)
    assert "trial 1 (optimizer.lr 1e+30)" in str(state.message) and "trial 2" in str(state.message)
