"""Trials over the whole pipeline: each a run of its own, ranked on what judges nothing, and the best one kept."""

from __future__ import annotations

import contextvars
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import DataError, RunStopped, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.tasks.ownership.pipeline_history import read
from headway.training.launch.base.stop_request import request_stop
from tests.e2e.project import Project

Command = Callable[..., subprocess.CompletedProcess[str]]

LR, BETTER_LR, BAD_LR = 0.002, 0.03, 1e30


def ask_for_trials(project: Project, *rates: float, max_steps: int = 40) -> None:
    with project.pipeline.open("a") as file:
        file.write(f"trials: {{vary: {{optimizer.lr: {list(rates)}}}}}\n")
    project.edit("tiny.yaml", "{bootstrap_resamples: 100}", "{bootstrap_resamples: 100, ranking_share: 0.5}")
    project.edit("tiny.yaml", "max_steps: 120", f"max_steps: {max_steps}")


def made(events: list[dict[str, Any]], stage: str) -> list[bool]:
    """Of each time that a stage came to its result, whether it was made."""
    done = [event for event in events if event["event"] == f"stage.{stage}" and event.get("outcome") == "ok"]
    return [not event["found"] for event in done]


def heldout_files(project: Project) -> set[str]:
    (path,) = project.files("documents/manifest/*.json")
    groups = json.loads(path.read_bytes())["groups"]
    return {document for group in groups if group["split"] == "heldout" for document in group["documents"]}


def test_the_best_comes_first_and_a_bad_one_is_a_row_and_none_is_judged_by_what_ranked_it(
    new_project: Project, try_here: Any
) -> None:
    ask_for_trials(new_project, LR, BAD_LR, BETTER_LR)
    ranked, report, events = try_here(new_project)

    *good, bad = ranked
    assert [each.trial.settings["optimizer.lr"] for each in good] == [BETTER_LR, LR]
    assert good[0].score.figure.value < good[1].score.figure.value and not good[0].score.greater_is_better
    assert bad.trial.settings == {"optimizer.lr": BAD_LR} and bad.score is None
    assert bad.error.cause == "training" and "finite" in bad.error.what
    assert made(events, "shard") == [True] and made(events, "launch") == [True, True]

    # One half ranks, the other judges.
    assert len({each.score.examples_sha256 for each in good}) == 1
    assert {each.score.num_examples for each in good} == {report.num_ranking_examples}
    assert report.num_examples + report.num_ranking_examples == len(heldout_files(new_project))
    assert report.examples_sha256 != good[0].score.examples_sha256
    assert report.metrics[report.metric].value != good[0].score.figure.value

    # A pipeline's own run, which windows carry on, is none of theirs.
    assert read(Workspace(str(new_project.workspace)), "tiny").event == "new"

    again, _, events = try_here(new_project)
    assert [each.score for each in again] == [each.score for each in ranked]
    assert made(events, "launch") == [False, False] and made(events, "score") == [False, False]

    # Whoever asks for less later gets none of it back.
    new_project.edit("tiny.yaml", "ranking_share: 0.5", "ranking_share: 0.25")
    fewer, later, _ = try_here(new_project)
    assert fewer[0].score.num_examples < good[0].score.num_examples
    assert later.examples_sha256 == report.examples_sha256


def test_trials_that_are_stopped_go_on_where_they_were(new_project: Project, try_here: Any) -> None:
    ask_for_trials(new_project, LR, BETTER_LR, max_steps=400)

    def stop_the_second(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["trial"] == "trial 2" and event["step"] == 1:
            request_stop(newest_run(new_project), "enough")

    with pytest.raises(RunStopped, match=r"headway trials .*continues it"):
        try_here(new_project, stop_the_second)
    assert not new_project.files("documents/trial-score/*")

    _, _, events = try_here(new_project)
    assert made(events, "launch") == [False, True]
    steps = [int(event["step"]) for event in events if event["event"] == "step"]
    assert steps[0] > 1 and steps[-1] == 400, "the second, from its checkpoint on"


def newest_run(project: Project) -> Path:
    return max(project.workspace.glob("runs/*/attempts"), key=lambda path: path.stat().st_ctime).parent


def test_where_every_trial_fails_nothing_is_chosen_and_each_cause_is_told(new_project: Project, try_here: Any) -> None:
    ask_for_trials(new_project, BAD_LR, 2 * BAD_LR)
    with pytest.raises(TrainingFailed, match=r"(?s)all 2 trials failed.*trial 1 \(optimizer\.lr 1e\+30\).*trial 2"):
        try_here(new_project)


@pytest.fixture
def trials_command(new_project: Project, here: Command, prefect_here: None, forked_gangs: None) -> Command:
    """`headway trials` in this process, against a Prefect server that is started once."""

    def call(*options: str) -> subprocess.CompletedProcess[str]:
        arguments = ("trials", str(new_project.pipeline), "--workspace", str(new_project.workspace), *options)
        # What the command sets for its flow is no business of the tests after it.
        return contextvars.copy_context().run(here, *arguments)

    return call


def test_the_best_of_trials_goes_through_the_gate_into_the_registry_and_a_repeat_finds_everything(
    new_project: Project, trials_command: Command
) -> None:
    ask_for_trials(new_project, LR, BETTER_LR)
    first = trials_command("--json")
    assert first.returncode == 0, first.stderr
    events = [json.loads(line) for line in first.stdout.splitlines()]
    summary = events[-1]
    assert summary["event"] == "trials" and [row["trial"] for row in summary["trials"]] == [2, 1]
    assert summary["trials"][0]["settings"] == {"optimizer.lr": BETTER_LR}
    assert summary["keep"] == f"training: {{optimizer: {{lr: {BETTER_LR}}}}}"
    best = summary["best"]
    assert best["version"] == "1" and best["is_champion"] and best["promoted"]
    assert made(events, "register") == [True] and made(events, "launch") == [True, True]

    again = trials_command()
    assert again.returncode == 0, again.stderr
    stages = [line.split()[:2] for line in again.stdout.splitlines() if line.split()[1:2] in (["made"], ["found"])]
    assert {name for name, _ in stages} >= {"shard", "launch", "score", "verify", "evaluate", "register"}
    assert [each for each in stages if each[1] == "made"] == []
    assert "2 trials by bits_per_byte, lower is better" in again.stdout
    assert "tiny version 1: champion since" in again.stdout


def test_held_out_examples_too_few_to_rank_and_to_judge_are_refused_before_a_model_is_trained(
    new_project: Project, trials_command: Command, retrain_here: Any
) -> None:
    ask_for_trials(new_project, LR, BETTER_LR)
    new_project.edit("tiny.yaml", "ranking_share: 0.5", "ranking_share: 0.001")
    refused = trials_command()
    assert refused.returncode == 3 and "0 rank trials and" in refused.stderr
    with pytest.raises(DataError, match="0 rank trials and"):
        retrain_here(new_project)
    assert new_project.files("documents/manifest/*.json") and not new_project.files("runs/*")
