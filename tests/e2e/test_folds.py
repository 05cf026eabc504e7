"""Cross-validation through the whole retrain: all rows judge, each by a model that never saw it."""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store.documents import EvaluationReport, Link, Registration, ShardManifest
from headway.data_contracts.store.errors import RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.flows.show.verify import verify_model
from headway.tasks.ownership.pipeline_history import read
from headway.tasks.registry import model_refs
from headway.tasks.rows.fold_scores import CrossValidation, fold_scores
from headway.tasks.stages import evaluate
from headway.training.observe.ledger import Event
from tests.e2e.project import Project

pytestmark = pytest.mark.long

NUM_ROWS = 120
PIPELINE = """\
pipeline: tiny
source: {format: csv, uri: data, include: ["*.csv"]}
contract: contract.yaml
shards:
  encoder: {kind: tabular, numeric: [x, y], label: side}
  num_groups: 1
  split_by: row
  heldout_fraction: 0.2
training:
  recipe: {name: tabular-classifier, model: {width: 16, depth: 1}}
  optimizer: {lr: 0.02}
  schedule: {warmup_steps: 2}
  max_steps: 30
  global_batch_sequences: 16
  micro_batch_sequences: 8
  checkpoints: {every_steps: 10}
launch: {nodes: 1}
evaluation: {bootstrap_resamples: 200, folds: 3}
registry: {model: tiny}
"""
CONTRACT = """\
name: points
version: 1.0.0
rows: {min: 10}
columns: {x: {type: double}, y: {type: double}, side: {type: string}}
"""


def write(folder: Path, num_rows: int = NUM_ROWS) -> SimpleNamespace:
    draw, rows = random.Random(0), ["x,y,side"]
    for _ in range(num_rows):
        x, y = draw.gauss(0, 1), draw.gauss(0, 1)
        rows.append(f"{x:.4f},{y:.4f},{'over' if x + 0.3 * y + draw.gauss(0, 0.4) > 0 else 'under'}")
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "points.csv").write_text("\n".join(rows) + "\n")
    (folder / "tiny.yaml").write_text(PIPELINE)
    (folder / "contract.yaml").write_text(CONTRACT)
    return SimpleNamespace(pipeline=folder / "tiny.yaml", workspace=folder / "workspace")


def edit(project: SimpleNamespace, old: str, new: str) -> None:
    text = project.pipeline.read_text()
    assert old in text
    project.pipeline.write_text(text.replace(old, new))


def report_of(project: SimpleNamespace, summary: Any) -> EvaluationReport:
    link = Link(kind="evaluation", sha256=summary.evaluation)
    return Workspace(str(project.workspace)).load(link, EvaluationReport)


def scores_of(project: SimpleNamespace, report: EvaluationReport) -> list[dict[str, Any]]:
    workspace = Workspace(str(project.workspace))
    assert report.cross_validation is not None
    found = fold_scores(workspace, workspace.load(report.cross_validation, CrossValidation))
    return [{**each.sums, "baselines": each.baselines} for each in found]


def trained(events: list[Event]) -> list[str]:
    """What was trained, and not found; empty: the run's own model."""
    ended = (event for event in events if event["event"] == "stage.launch" and event.get("found") is False)
    return [str(event["shown"]) for event in ended if "duration_s" in event]


def test_all_rows_judge_and_every_place_says_whose_figures_they_are(tmp_path: Path, retrain_here) -> None:
    project = write(tmp_path)
    summary, events = retrain_here(project)
    assert summary.is_champion and trained(events) == ["", "fold 1 of 3", "fold 2 of 3", "fold 3 of 3"]
    report = report_of(project, summary)
    assert (report.num_examples, report.num_folds, report.split) == (NUM_ROWS, 3, "out-of-fold")
    assert sum(len(each["nats"]) for each in scores_of(project, report)) == NUM_ROWS
    assert {"class prior", "linear model", "boosted trees"} <= report.baselines.keys()
    assert report.class_figures is not None and report.importances and sum(report.slice_sizes.values()) == NUM_ROWS
    said = "The figures are of 3 fold models, each scored on the rows of its fold, which it never saw"
    card = Path(summary.reports["card"].removeprefix("file://")).read_text()
    page = Path(summary.reports["evaluation"].removeprefix("file://")).read_text()
    assert said in card and "This version is none of them" in card
    assert said in page and "out-of-fold examples" in page
    assert "grows on 120 out-of-fold rows" in page and "Rows count from 0 in their fold" in page
    assert verify_model("models:/tiny@champion", str(project.workspace), as_json=True) == 0

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project.workspace / 'mlflow.db'}")
    tags = client.get_model_version("tiny", "1").tags
    assert tags["headway.folds"] == "3" and tags["headway.cross_validation"] == report.cross_validation.sha256
    names = sorted(
        run.info.run_name for run in client.search_runs([each.experiment_id for each in client.search_experiments()])
    )
    assert [name for name in names if "fold" in name] == [name for name in names if name.startswith("tiny fold")] != []

    again, events = retrain_here(project)
    assert again.version == summary.version and not trained(events) and "folds" in again.stages_found

    elsewhere = write(tmp_path / "elsewhere")
    other, _ = retrain_here(elsewhere)
    assert scores_of(elsewhere, report_of(elsewhere, other)) == scores_of(project, report), "the same bits"


@pytest.mark.parametrize("by", ["folds", "heldout"])
def test_rows_of_a_few_keys_make_no_champion_of_a_model_that_learnt_nothing(
    tmp_path: Path, retrain_here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    """Each patient has one label: what the others' rows say of it is worse than a guess. The source has other patients
    by the time that the model is evaluated, and a flipped bit in what the shards keep of them is found."""
    project = write(tmp_path)
    evaluated = evaluate._evaluate

    def evaluated_later(*arguments: Any) -> Any:
        path = tmp_path / "data" / "points.csv"
        path.write_text(re.sub(r"p\d$", "p0", path.read_text(), flags=re.MULTILINE))
        return evaluated(*arguments)

    monkeypatch.setattr(evaluate, "_evaluate", evaluated_later)
    draw, rows = random.Random(1), ["x,y,side,patient"]
    for number in range(300):
        patient = number % 9
        rows.append(f"{draw.gauss(0, 1):.4f},{draw.gauss(0, 1):.4f},{('over', 'under')[patient % 2]},p{patient}")
    (tmp_path / "data" / "points.csv").write_text("\n".join(rows) + "\n")
    columns = "side: {type: string}"
    (tmp_path / "contract.yaml").write_text(CONTRACT.replace(columns, f"{columns}, patient: {{type: string}}"))
    edit(project, "split_by: row", "split_by: key\n  split_key: patient")
    edit(project, "max_steps: 30", "max_steps: 6")
    if by == "heldout":
        edit(project, ", folds: 3", "")
    summary, _ = retrain_here(project)
    report = report_of(project, summary)
    assert not summary.is_champion and 1 < report.num_keys <= 9
    assert by == "heldout" or report.num_keys == 9
    assert f"too few keys to judge ({report.num_keys} of {report.num_examples} examples" in summary.reason

    workspace = Workspace(str(project.workspace))
    link = report.manifest
    if report.cross_validation is not None:
        link = fold_scores(workspace, workspace.load(report.cross_validation, CrossValidation))[1].manifest
    (keys,) = (group.keys for group in workspace.load(link, ShardManifest).groups if group.keys is not None)
    assert verify_model("models:/tiny/1", str(project.workspace), as_json=True) == 0
    path = workspace.local_path(keys.path)
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    capsys.readouterr()
    assert verify_model("models:/tiny/1", str(project.workspace), as_json=True) != 0
    assert keys.path in capsys.readouterr().out


def test_a_challenger_is_paired_with_the_champion_over_all_rows_by_models_that_never_saw_them(
    tmp_path: Path, retrain_here
) -> None:
    project = write(tmp_path)
    retrain_here(project)
    write(tmp_path, NUM_ROWS + 30)
    second, events = retrain_here(project)
    report = report_of(project, second)
    assert report.comparison is not None and report.comparison.heldout is None
    assert report.num_examples == NUM_ROWS + 30 and set(report.comparison.slices) == set(report.slices)
    assert second.champion_value == report.comparison.champion_value
    assert not [event for event in events if event["event"] == "evaluate.on_heldout"]

    # Whoever is champion by now has three folds.
    edit(project, "folds: 3", "folds: 2")
    edit(project, "max_steps: 30", "max_steps: 20")
    third, _ = retrain_here(project)
    report = report_of(project, third)
    heldout = report.comparison.heldout if report.comparison is not None else None
    assert heldout is not None and heldout.reason == "the champion's 3 folds are of other rows than these 2"
    assert 0 < heldout.num_examples < 60 and third.champion_value is None
    assert f"on {heldout.num_examples} held-out rows alone, since" in third.reason


def test_rows_that_changed_folds_since_the_champions_fold_models_saw_them_do_not_compare(
    tmp_path: Path, retrain_here
) -> None:
    project = write(tmp_path)
    retrain_here(project)
    csv = tmp_path / "data" / "points.csv"
    head, _, *rest = csv.read_text().splitlines()
    csv.write_text("\n".join([head, *rest]) + "\n")  # so that each row has the number of the one before it
    edit(project, "max_steps: 30", "max_steps: 40")
    second, events = retrain_here(project)
    report = report_of(project, second)
    heldout = report.comparison.heldout if report.comparison is not None else None
    assert heldout is not None and report.num_examples == NUM_ROWS - 1
    num_seen = NUM_ROWS - 1 - heldout.num_examples
    # About as many as are in another of three folds than before.
    assert NUM_ROWS / 2 < num_seen < NUM_ROWS * 0.85 and sum(heldout.slice_sizes.values()) == heldout.num_examples
    moved = f"{num_seen} of 119 rows changed places, and the champion's fold models were trained on them"
    assert heldout.reason == moved and f"on {heldout.num_examples} held-out rows alone, since {moved}" in second.reason
    assert len([event for event in events if event["event"] == "evaluate.on_heldout"]) == 1


def test_a_champion_without_folds_is_compared_on_held_out_rows_and_the_reason_says_so(
    tmp_path: Path, retrain_here
) -> None:
    project = write(tmp_path)
    edit(project, ", folds: 3", "")
    edit(project, "max_steps: 30", "max_steps: 10")
    first, _ = retrain_here(project)
    assert first.is_champion and report_of(project, first).cross_validation is None
    edit(project, "bootstrap_resamples: 200", "bootstrap_resamples: 200, folds: 3")
    edit(project, "max_steps: 10", "max_steps: 20")
    second, events = retrain_here(project)
    report = report_of(project, second)
    assert report.num_examples == NUM_ROWS and report.comparison is not None
    heldout = report.comparison.heldout
    assert heldout is not None and heldout.reason == "the champion has no fold models"
    assert heldout.num_examples < NUM_ROWS / 2
    assert f"on {heldout.num_examples} held-out rows alone, since the champion has no fold models" in second.reason
    assert len([event for event in events if event["event"] == "evaluate.on_heldout"]) == 1


def test_folds_that_were_trained_later_for_a_champion_compare_it_with_the_next_challenger(
    tmp_path: Path, retrain_here
) -> None:
    project = write(tmp_path)
    edit(project, ", folds: 3", "")
    first, _ = retrain_here(project)
    edit(project, "bootstrap_resamples: 200", "bootstrap_resamples: 200, folds: 3")
    again, events = retrain_here(project)
    assert again.version == first.version and trained(events) == [f"fold {number} of 3" for number in (1, 2, 3)]
    edit(project, "max_steps: 30", "max_steps: 20")
    second, _ = retrain_here(project)
    comparison = report_of(project, second).comparison
    assert comparison is not None and comparison.heldout is None and second.champion_value is not None


def test_where_a_fold_model_of_the_champion_is_damaged_held_out_rows_compare(tmp_path: Path, retrain_here) -> None:
    project = write(tmp_path)
    first, _ = retrain_here(project)
    workspace = Workspace(str(project.workspace))
    found = workspace.load(report_of(project, first).cross_validation, CrossValidation)
    score = fold_scores(workspace, found)[1]
    tensors = next(project.workspace.glob(f"runs/{score.run.sha256[:16]}/checkpoints/*30/*.safetensors"))
    tensors.write_bytes(b"\0" * tensors.stat().st_size)
    assert verify_model("models:/tiny@champion", str(project.workspace), as_json=True) != 0
    write(tmp_path, NUM_ROWS + 30)
    second, _ = retrain_here(project)
    comparison = report_of(project, second).comparison
    assert comparison is not None and comparison.heldout is not None
    assert comparison.heldout.reason.startswith("a fold model of the champion is gone")


def damage_scores(project: SimpleNamespace) -> None:
    path = next(project.workspace.glob("documents/fold-score/*.json"))
    path.write_bytes(path.read_bytes().replace(b'"fold"', b'"FOLD"', 1))


def test_damaged_scores_of_a_champions_fold_leave_held_out_rows_to_compare(tmp_path: Path, retrain_here) -> None:
    project = write(tmp_path)
    retrain_here(project)
    damage_scores(project)
    write(tmp_path, NUM_ROWS + 30)
    second, _ = retrain_here(project)
    comparison = report_of(project, second).comparison
    assert comparison is not None and comparison.heldout is not None
    assert comparison.heldout.reason.startswith("the scores of the champion's fold models cannot be read (documents/")


def test_damaged_scores_of_a_fold_are_made_again_by_the_next_retrain(tmp_path: Path, retrain_here) -> None:
    project = write(tmp_path)

    def stop(event: Event) -> None:
        if event["event"] == "stage.folds" and "duration_s" in event:
            raise RunStopped("somebody asked.", reason="asked to stop")

    with pytest.raises(RunStopped):
        retrain_here(project, watching=stop)
    damage_scores(project)
    summary, events = retrain_here(project)
    assert report_of(project, summary).num_examples == NUM_ROWS and not trained(events)


def test_a_window_that_closes_in_a_fold_cuts_the_run_and_the_next_one_resumes_that_fold(
    tmp_path: Path, retrain_here
) -> None:
    project = write(tmp_path)

    def close(event: Event) -> None:
        if event["event"] == "step" and event.get("trial") == "fold 2 of 3" and event["step"] >= 12:
            raise RunStopped("the window closed.", reason="window closed")

    with pytest.raises(RunStopped):
        retrain_here(project, watching=close)
    workspace = Workspace(str(project.workspace))
    history = read(workspace, "tiny")
    assert history.state == "cut" and history.run
    summary, events = retrain_here(project)
    assert trained(events) == ["fold 2 of 3", "fold 3 of 3"], "what was done is found"
    now = model_refs.champion(workspace, "tiny")
    assert now is not None and workspace.load(now[0].target, Registration).run.sha256[:16] == history.run
    assert report_of(project, summary).num_examples == NUM_ROWS


def test_a_retrain_that_was_killed_in_a_fold_resumes_there_to_the_same_scores(
    tmp_path: Path, prefect_home: Path, retrain_here, wait_until: Callable[..., Any]
) -> None:
    folder = tmp_path / "killed"
    killed = write(folder)
    edit(killed, "max_steps: 30", "max_steps: 400")
    project = Project(folder, prefect_home)
    process = project.start("retrain", "tiny.yaml", "--workspace", str(killed.workspace))

    def is_in_second_fold() -> bool:
        for spool in killed.workspace.glob("ledger/*/flow.jsonl"):
            for line in spool.read_text().splitlines():
                event = json.loads(line) if line.endswith("}") else {}
                if event.get("event") == "run.folder" and event.get("trial") == "fold 2 of 3":
                    return bool([*Path(event["path"]).glob("checkpoints/step-*/manifest.json")])
        return False

    try:
        wait_until(is_in_second_fold, what="a checkpoint of the second fold", every_s=0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        project.clean_up()
    summary, events = retrain_here(killed)
    assert trained(events) == ["fold 2 of 3", "fold 3 of 3"]
    resumed = [event for event in events if event["event"] == "restore" and event.get("step")]
    assert resumed, "from its checkpoint, and not from the beginning"

    whole = write(tmp_path / "whole")
    edit(whole, "max_steps: 30", "max_steps: 400")
    undisturbed, _ = retrain_here(whole)
    assert scores_of(whole, report_of(whole, undisturbed)) == scores_of(killed, report_of(killed, summary))


def test_in_a_flow_run_of_prefects_each_fold_is_trained_and_scored_by_tasks_of_its_own(
    tmp_path: Path, retrain_in_prefect
) -> None:
    project = write(tmp_path)
    edit(project, "folds: 3", "folds: 2")
    edit(project, "max_steps: 30", "max_steps: 10")
    _, events = retrain_in_prefect(project)
    tasks = [event["task"] for event in events if event["event"] == "task"]
    of_fold = ["launch", "verify", "score fold"]
    assert tasks == [*("snapshot", "validate", "shard", "launch", "verify"), *of_fold * 2, "evaluate", "register"]
