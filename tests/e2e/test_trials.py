"""Trials over the whole pipeline: each a run of its own, ranked on what judges nothing, and the best one kept."""

from __future__ import annotations

import contextvars
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.documents import RunSpec, ShardManifest
from headway.data_contracts.store.errors import ConfigError, DataError, RunStopped, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.flows.act.reproduce import reproduce_model
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.run.stages import shards_of_today
from headway.flows.trials.report import as_yaml
from headway.tasks.core.brief_context import brief_context
from headway.tasks.core.run_result import furthest_step
from headway.tasks.ownership.pipeline_history import read
from headway.tasks.registry import mlflow_store
from headway.tasks.rows.heldout_parts import parts_of
from headway.tasks.stages.tracked_search import PARENT_TAG, SEARCH_TAG
from headway.training.config.shards import HELDOUT
from headway.training.launch.base.gang import leader_spools
from headway.training.launch.base.stop_request import request_stop
from headway.training.observe.ledger import read_events
from tests.e2e.project import CHECKPOINT_EVERY_STEPS, DEADLINE_S, Project

Command = Callable[..., subprocess.CompletedProcess[str]]

LR, BETTER_LR, BAD_LR = 0.002, 0.03, 1e30


def ask_for_trials(project: Project, *rates: float, max_steps: int = 40, rest: str = "") -> None:
    with project.pipeline.open("a") as file:
        file.write(f"trials: {{vary: {{optimizer.lr: {list(rates)}}}{rest}}}\n")
    project.edit("tiny.yaml", "{bootstrap_resamples: 100}", "{bootstrap_resamples: 100, ranking_share: 0.5}")
    project.edit("tiny.yaml", "max_steps: 120", f"max_steps: {max_steps}")


def made(events: list[dict[str, Any]], stage: str) -> list[bool]:
    """Of each time that a stage came to its result, whether it was made."""
    done = [event for event in events if event["event"] == f"stage.{stage}" and event.get("outcome") == "ok"]
    return [not event["found"] for event in done]


def heldout_files(project: Project) -> set[str]:
    (path,) = project.files("documents/manifest/*.json")
    return heldout_in(path)


def heldout_in(path: Path) -> set[str]:
    groups = json.loads(path.read_bytes())["groups"]
    return {document for group in groups if group["split"] == "heldout" for document in group["documents"]}


@pytest.mark.long
def test_the_best_comes_first_and_a_bad_one_is_a_row_and_none_is_judged_by_what_ranked_it(
    new_project: Project, try_here: Any
) -> None:
    ask_for_trials(new_project, LR, BAD_LR, BETTER_LR)
    found, report, events = try_here(new_project)
    ranked = [each.result for each in found.trials]

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
    assert [each.result.score for each in again.trials] == [each.score for each in ranked]
    assert made(events, "launch") == [False, False] and made(events, "score") == [False, False]

    # Whoever asks for less later gets none of it back.
    new_project.edit("tiny.yaml", "ranking_share: 0.5", "ranking_share: 0.25")
    fewer, later, _ = try_here(new_project)
    assert fewer.score.num_examples < good[0].score.num_examples
    assert later.examples_sha256 == report.examples_sha256

    # What is on record counts: less than the two took in all leaves nothing to a third.
    new_project.edit(
        "tiny.yaml", f"[{LR}, {BAD_LR}, {BETTER_LR}]}}", f"[{LR}, 0.01, {BETTER_LR}]}}, budget: {{hours: 0.0001}}"
    )
    bounded, _, events = try_here(new_project)
    assert [each.result.trial.settings["optimizer.lr"] for each in bounded.trials] == [BETTER_LR, LR]
    assert bounded.ended.startswith("trial 2 to step 40: ") and bounded.ended.endswith("more than 0.0001 hours in all")
    assert made(events, "launch") == [False, False]

    # Another salt holds out others, and some of those that ranked: they judge nothing under it either.
    ranked_ever, before = heldout_documents(new_project)
    assert len(ranked_ever) == report.num_ranking_examples and len(before) == report.num_examples
    new_project.edit("tiny.yaml", "  num_groups: 2\n", "  num_groups: 2\n  split_salt: anew\n")
    apart, judge = heldout_documents(new_project)
    assert ranked_ever & apart and judge and not ranked_ever & judge


def heldout_documents(project: Project) -> tuple[set[str], set[str]]:
    """Those of today's held-out documents that judge nothing, and those that do."""
    pipeline, workspace = load_pipeline(project.pipeline), Workspace(str(project.workspace))
    with brief_context("tiny", workspace, project.pipeline.parent) as context:
        shards = workspace.load(shards_of_today(context, pipeline).manifest, ShardManifest)
        parts = parts_of(context, pipeline.evaluation.ranking_share, pipeline.source, shards)
    names = [name for group in shards.groups if group.split == HELDOUT for name in group.documents]
    judge = {names[number] for number in parts.evaluation}
    return {*names} - judge, judge


@pytest.mark.long
def test_encoders_are_trials_over_the_same_documents_and_the_best_is_the_run_of_a_retrain_with_its_settings(
    new_project: Project, try_here: Any, train_here: Any
) -> None:
    # A branch that the file lacks, and a setting below it.
    vary = "{shards.encoder.vocab_size: [300, 330], ema: [null, {}], ema.decay: [0.5]}"
    with new_project.pipeline.open("a") as file:
        file.write(f"trials: {{vary: {vary}, rungs: [8], min_starts: 0}}\n")
    new_project.edit("tiny.yaml", "{bootstrap_resamples: 100}", "{bootstrap_resamples: 100, ranking_share: 0.5}")
    new_project.edit("tiny.yaml", "max_steps: 120", "max_steps: 16")
    found, report, events = try_here(new_project)
    assert made(events, "fit") == [True, True] and made(events, "shard") == [True, True], "once for two trials each"
    scores = [each.result.score for each in found.trials]
    assert {(each.metric, each.examples_sha256) for each in scores} == {("bits_per_byte", scores[0].examples_sha256)}
    held_out = {frozenset(heldout_in(path)) for path in new_project.files("documents/manifest/*.json")}
    assert [len(each) for each in held_out] == [report.num_examples + scores[0].num_examples]
    best = found.best.trial
    ema = [each.result.trial.settings.get("ema.decay") for each in found.trials]
    assert sorted(ema, key=str) == [0.5, 0.5, None, None]
    configured = [
        Workspace(str(new_project.workspace)).load(each.result.run, RunSpec).config.get("ema") for each in found.trials
    ]
    assert configured == [None if decay is None else {"decay": decay} for decay in ema], "what was trained"
    new_project.edit("tiny.yaml", "vocab_size: 300", f"vocab_size: {best.settings['shards.encoder.vocab_size']}")
    kept = yaml.safe_load(as_yaml(best.settings, best.configuration))["training"]
    new_project.edit("tiny.yaml", "max_steps: 16", f"max_steps: 16\n  ema: {json.dumps(kept['ema'])}")
    again = train_here(new_project)
    assert made(again, "shard") == made(again, "launch") == [False]

    # Shares of a mixture are trials on the shards that there are; its encoder is what it is.
    own = Workspace(str(new_project.workspace)).load(found.best.run, RunSpec).manifest
    new_project.edit("tiny.yaml", "max_steps: 16", f"max_steps: 4\n  order: {{mix: [{{manifest: {own.sha256}}}]}}")
    with pytest.raises(ConfigError, match="mixes in is encoded already"):
        try_here(new_project)
    new_project.edit("tiny.yaml", vary, "{order.mix.0.weight: [1, 2]}")
    new_project.edit("tiny.yaml", ", rungs: [8], min_starts: 0", "")
    mixed, _, events = try_here(new_project)
    weights = sorted(each.result.trial.training.order.weights for each in mixed.trials)
    assert weights == [[1, 1], [1, 2]] and made(events, "launch") == [True, True]
    assert made(events, "shard") == [False] and True not in made(events, "fit")


@pytest.mark.long
def test_trials_that_are_stopped_go_on_where_they_were(new_project: Project, try_here: Any) -> None:
    ask_for_trials(new_project, LR, BETTER_LR, max_steps=400)

    def stop_the_second(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["trial"] == "trial 2" and event["step"] == 1:
            request_stop(newest_runs(new_project)[0], "enough")

    with pytest.raises(RunStopped, match=r"headway trials .*continues it"):
        try_here(new_project, stop_the_second)
    assert not new_project.files("documents/trial-score/*")

    _, _, events = try_here(new_project)
    assert made(events, "launch") == [False, True]
    steps = [int(event["step"]) for event in events if event["event"] == "step"]
    assert steps[0] > 1 and steps[-1] == 400, "the second, from its checkpoint on"


def at(name: str, **fields: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event["event"] == name and all(event.get(field) == fields[field] for field in fields)


def event_number(last: int) -> Callable[[dict[str, Any]], bool]:
    numbers = itertools.count(1)
    return lambda event: next(numbers) == last


BOUNDARIES = [
    at("step", trial="trial 4", step=1),
    at("stage.rung", outcome="ok", shown="trial 4, step 10"),
    at("stage.score", outcome="ok", shown="trial 1, step 10"),
    at("rung", step=10),
    at("step", trial="trial 3", step=15),
    at("stage.launch", outcome="ok", shown="trial 3"),
    at("stage.score", outcome="ok", shown="trial 3"),
]


def ended_at(
    boundary: Callable[[dict[str, Any]], bool], project: Project, try_here: Any, *, is_asked: bool = False
) -> int | None:
    """The exit code of a process that searches, and is killed at a boundary, or asked to stop there."""

    def end(event: dict[str, Any]) -> None:
        if boundary(event):
            if is_asked:
                for run in newest_runs(project)[:1]:
                    request_stop(run, "enough")
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=try_here, args=(project, end))
    process.start()
    process.join(DEADLINE_S)
    return process.exitcode


def require_best_two_went_on(found: Any) -> None:
    assert [each.result.trial.settings["optimizer.lr"] for each in found.trials] == [BETTER_LR, 0.01, 0.004, LR]
    assert [each.steps for each in found.trials] == [40, 20, 10, 10]
    assert [sorted(each.figures) for each in found.trials] == [[10, 20, 40], [10, 20], [10], [10]]
    assert (found.steps_spent, found.steps_of_all, found.verdict) == (80, 160, None)


@pytest.mark.long
@pytest.mark.parametrize(
    "boundaries", [BOUNDARIES[::3], pytest.param(BOUNDARIES, marks=pytest.mark.soak)], ids=["some", "all"]
)
def test_a_search_by_rungs_that_is_killed_at_boundaries_trains_no_step_twice_and_its_winner_is_the_run(
    new_project: Project,
    try_here: Any,
    train_here: Any,
    tmp_path: Path,
    prefect_home: Path,
    boundaries: list[Callable[[dict[str, Any]], bool]],
) -> None:
    ask_for_trials(new_project, LR, 0.004, BETTER_LR, 0.01, rest=", rungs: [10, 20], min_starts: 0")
    for boundary in boundaries:
        assert ended_at(boundary, new_project, try_here) == -signal.SIGKILL
    found, _, events = try_here(new_project)
    require_best_two_went_on(found)
    numbered = {each.result.trial.number: each.result.run.sha256[:16] for each in found.trials}
    lost = {numbered[4]: set(range(1, 11)), numbered[3]: set(range(11, 21))}
    for run, furthest in {each.result.run.sha256[:16]: each.steps for each in found.trials}.items():
        trained = [event["step"] for event in steps_of(new_project, run)]
        assert set(trained) == set(range(1, furthest + 1))
        # Only what a kill took before its checkpoint is trained again.
        again = {step for step in trained if trained.count(step) > 1}
        assert again <= lost.get(run, set())
        kept = sorted(path.name for path in (new_project.workspace / "runs" / run / "checkpoints").glob("step-*"))
        assert kept[-1] == f"step-{furthest:08}" and (furthest == 40 or len(kept) == 1), "a paused trial keeps one"
    assert made(events, "score").count(True) == 0, "the last kill came after all was scored"

    # Once this machine knows what a start takes, rungs that do not pay are refused; a search that has begun goes on.
    new_project.edit("tiny.yaml", "min_starts: 0", "min_starts: 20")
    again, _, events = try_here(new_project)
    assert again.trials == found.trials and True not in [*made(events, "rung"), *made(events, "launch")]
    assert next(event for event in events if event["event"] == "rung")["message"].startswith("not worth its starts")
    new_project.edit("tiny.yaml", "rungs: [10, 20]", "rungs: [11, 20]")
    with pytest.raises(ConfigError, match=r"(?s)trains 9 steps x .* ms = .* less than 20 starts, .*Lay them further"):
        try_here(new_project)

    # The winner is the run of a plain retrain with its settings, which trains nothing.
    new_project.edit("tiny.yaml", "optimizer: {lr: 0.02}", f"optimizer: {{lr: {BETTER_LR}}}")
    assert made(train_here(new_project), "launch") == [False]
    other = Project.create(tmp_path / "undisturbed", prefect_home)
    other.edit("tiny.yaml", "optimizer: {lr: 0.02}", f"optimizer: {{lr: {BETTER_LR}}}")
    other.edit("tiny.yaml", "max_steps: 120", "max_steps: 40")
    train_here(other)
    folder = new_project.workspace / "runs" / found.best.run.sha256[:16]
    result = json.loads((folder / "result.json").read_bytes())
    assert result["tensors_sha256"] == other.result()["tensors_sha256"]


@pytest.fixture
def two_places(monkeypatch: pytest.MonkeyPatch) -> Callable[[Project], None]:
    """Room for two gangs of a rank each on this machine."""
    monkeypatch.setattr("headway.training.launch.supervise.room.usable_processors", lambda: 2.0)
    return lambda project: project.edit("tiny.yaml", "ranks_per_node: 2", "ranks_per_node: 1")


@pytest.mark.long
def test_trials_side_by_side_come_to_the_bits_of_runs_that_were_alone(
    new_project: Project, try_here: Any, train_here: Any, two_places: Any, tmp_path: Path, prefect_home: Path
) -> None:
    ask_for_trials(new_project, LR, 0.004, BETTER_LR, 0.01, rest=", rungs: [10, 20], min_starts: 0")
    two_places(new_project)
    found, _, events = try_here(new_project)
    require_best_two_went_on(found)
    attempts = [event for event in events if event["event"] in ("attempt.begin", "attempt")]
    going = list(itertools.accumulate(1 if event["event"] == "attempt.begin" else -1 for event in attempts))
    assert max(going) == 2 and going[-1] == 0
    runs = {each.result.run.sha256[:16] for each in found.trials}
    assert runs <= {event.get("run") for event in attempts}, "each attempt says whose it is"
    order = [event["event"] for event in events if event["event"] in ("run.named", "attempt.begin")]
    assert order[:3] == ["run.named", "attempt.begin", "run.named"], "what it costs is known as soon as it begins"

    other = Project.create(tmp_path / "alone", prefect_home)
    other.edit("tiny.yaml", "optimizer: {lr: 0.02}", f"optimizer: {{lr: {BETTER_LR}}}")
    other.edit("tiny.yaml", "max_steps: 120", "max_steps: 40")
    train_here(other)
    folder = new_project.workspace / "runs" / found.best.run.sha256[:16]
    assert json.loads((folder / "result.json").read_bytes())["tensors_sha256"] == other.result()["tensors_sha256"]


@pytest.mark.soak
def test_a_search_by_rungs_that_is_killed_20_times_at_random_moments_comes_to_the_undisturbed_one(
    new_project: Project, try_here: Any, two_places: Any, tmp_path: Path, prefect_home: Path
) -> None:
    rest = ", rungs: [10, 20], min_starts: 0"
    ask_for_trials(new_project, LR, 0.004, BETTER_LR, 0.01, rest=rest)
    new_project.edit("tiny.yaml", f"every_steps: {CHECKPOINT_EVERY_STEPS}", "every_steps: 5")
    two_places(new_project)
    draw = random.Random(20)
    ends = list[int | None]()
    while ends.count(-signal.SIGKILL) < 20:
        ends.append(ended_at(event_number(draw.randint(1, 60)), new_project, try_here, is_asked=draw.random() < 0.2))
        assert len(ends) < 60, ends
    assert set(ends) - {-signal.SIGKILL}, "some were asked to stop"
    found, _, _ = try_here(new_project)
    require_best_two_went_on(found)

    other = Project.create(tmp_path / "undisturbed", prefect_home)
    ask_for_trials(other, LR, 0.004, BETTER_LR, 0.01, rest=rest)
    undisturbed, _, _ = try_here(other)
    assert [each.figures for each in found.trials] == [each.figures for each in undisturbed.trials]
    digests = [
        json.loads((project.workspace / "runs" / each.best.run.sha256[:16] / "result.json").read_bytes())
        for project, each in ((new_project, found), (other, undisturbed))
    ]
    assert digests[0]["tensors_sha256"] == digests[1]["tensors_sha256"]
    workspace, num_trained = Workspace(str(new_project.workspace)), 0
    for each in found.trials:
        trained = [event["step"] for event in steps_of(new_project, each.result.run.sha256[:16])]
        assert set(trained) == set(range(1, each.steps + 1))
        assert furthest_step(workspace, each.result.run) == each.steps
        num_trained += len(trained)
    # Of two gangs at a time a kill takes what came since their last saves, and a stop nothing.
    assert num_trained <= found.steps_spent + 20 * 2 * 5, (num_trained, ends)


@pytest.mark.soak
def test_another_machine_goes_on_with_a_search_whose_workspace_is_a_bucket(
    new_project: Project, try_here: Any, new_bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_for_trials(new_project, LR, 0.004, BETTER_LR, 0.01, rest=", rungs: [10, 20], min_starts: 0")
    new_project.edit("tiny.yaml", "launch: {", "launch: {owner_lease_s: 4, ")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    case: Any = SimpleNamespace(pipeline=new_project.pipeline, workspace=f"s3://{new_bucket()}/team")
    for number, boundary in enumerate((BOUNDARIES[2], BOUNDARIES[4], BOUNDARIES[6])):
        monkeypatch.setenv("HEADWAY_LOCAL", str(tmp_path / f"machine {number}"))
        assert ended_at(boundary, case, try_here) == -signal.SIGKILL
    found, _, events = try_here(case)
    require_best_two_went_on(found)
    workspace = Workspace(case.workspace)
    for each in found.trials:
        kept = sorted(workspace.names(f"runs/{each.result.run.sha256[:16]}/checkpoints"))
        assert kept[-1] == f"step-{each.steps:08}"
        assert each.steps == 40 or len(kept) == 1, "a paused trial keeps one there too"
    assert True not in [*made(events, "rung"), *made(events, "launch"), *made(events, "score")]


def steps_of(project: Project, run: str) -> list[dict[str, Any]]:
    """That rank 0 trained in all attempts of a run."""
    spools = leader_spools(project.workspace / "runs" / run)
    return [event for spool in spools for event in read_events(spool) if event["event"] == "step"]


def newest_runs(project: Project) -> list[Path]:
    attempts = project.workspace.glob("runs/*/attempts")
    return [path.parent for path in sorted(attempts, key=lambda path: path.stat().st_ctime, reverse=True)]


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


@pytest.mark.long
def test_the_best_of_trials_goes_through_the_gate_into_the_registry_and_a_repeat_finds_everything(
    new_project: Project, trials_command: Command
) -> None:
    ask_for_trials(new_project, LR, BETTER_LR, rest=", finalist_seeds: 2")
    first = trials_command("--json")
    assert first.returncode == 0, first.stderr
    events = [json.loads(line) for line in first.stdout.splitlines()]
    summary = events[-1]
    assert summary["event"] == "trials" and [row["trial"] for row in summary["trials"]] == [2, 1]
    assert summary["trials"][0]["settings"] == {"optimizer.lr": BETTER_LR}
    assert (summary["levels"], summary["steps_spent"], summary["steps_saved"]) == ([40], 160, 0)
    assert [row["steps"] for row in summary["trials"]] == [80, 80] and summary["is_decided"]
    assert re.match(r"decided: trial 2 less 1, paired over 2 seeds: -\d.*bits_per_byte$", summary["verdict"])
    assert summary["num_starts"] == 4 and summary["device_hours"] > 0 and summary["usd"] is None
    with_other_seed = [row["other_seeds"]["1"] for row in summary["trials"]]
    assert with_other_seed[0] < with_other_seed[1] and with_other_seed[0] != summary["trials"][0]["value"]
    assert summary["keep"] == f"training: {{optimizer: {{lr: {BETTER_LR}}}}}"
    client = mlflow_store.connect(f"{mlflow_store.SQLITE}{new_project.workspace / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    (parent,) = [run for run in runs if SEARCH_TAG in run.data.tags]
    children = [run for run in runs if run.data.tags.get(PARENT_TAG) == parent.info.run_id]
    assert parent.info.status == "FINISHED" and len(children) == len(runs) - 1 == 4
    assert parent.data.metrics["best/bits_per_byte"] == summary["trials"][0]["value"]
    assert {run.data.params["optimizer.lr"] for run in children} == {str(LR), str(BETTER_LR)}
    best = summary["best"]
    assert best["version"] == "1" and best["is_champion"] and best["promoted"]
    assert made(events, "register") == [True] and made(events, "launch") == [True] * 4

    again = trials_command()
    assert again.returncode == 0, again.stderr
    stages = [line.split()[:2] for line in again.stdout.splitlines() if line.split()[1:2] in (["made"], ["found"])]
    assert {name for name, _ in stages} >= {"shard", "launch", "score", "verify", "evaluate", "register"}
    assert [each for each in stages if each[1] == "made"] == []
    assert "2 trials by bits_per_byte, lower is better" in again.stdout
    assert "tiny version 1: champion since" in again.stdout

    reproduced = reproduce_model("models:/tiny@champion", str(new_project.workspace), again=False, as_json=True)
    (figure,) = reproduced.reproduction.figures
    assert reproduced.agrees, f"on the examples that evaluate alone: {figure}"


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
