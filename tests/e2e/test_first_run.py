"""The first `headway retrain` in an empty workspace: what is there when it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.data_contracts.store.stages import StageRecord, stage_key

STAGES = ("snapshot", "validate", "fit", "shard", "launch", "verify", "evaluate", "register")
DOCUMENTS = {
    "snapshot": "snapshot",
    "validate": "receipt",
    "fit": "fitted",
    "shard": "manifest",
    "launch": "run",
    "verify": "checkpoint",
    "evaluate": "evaluation",
    "register": "registration",
}
LOAD_WITH_PLAIN_MLFLOW = """
import sys, mlflow, numpy
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_registry_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/tiny@champion")
logits = model.predict(numpy.arange(24).reshape(3, 8))
assert logits.shape[:2] == (3, 8) and numpy.isfinite(logits).all(), logits.shape
assert "headway" not in sys.modules
print("vocabulary", logits.shape[2])
"""


@pytest.fixture
def client(project):
    from headway.tasks.registry.mlflow_store import connect

    return connect(f"sqlite:///{project.workspace / 'mlflow.db'}")


def test_it_ends_with_a_champion_that_beats_the_baseline(finished) -> None:
    assert finished.first.returncode == 0, finished.first.stderr
    assert "tiny version 1: champion" in finished.first.stdout
    (summary,) = finished.pristine.glob("workspace/ledger/*/summary.json")
    message = json.loads(summary.read_bytes())
    assert message["is_champion"] and message["promoted"]
    assert message["high"] < message["baselines"]["bigram"]
    assert message["stages_run"] == list(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_leaves_a_record_under_the_key_of_its_inputs_and_the_document_it_names(project, stage: str) -> None:
    path = project.file(f"stages/{stage}/*.json")
    record = StageRecord.from_bytes(path.read_bytes())
    assert record.document.kind == DOCUMENTS[stage]
    assert path.stem == record.key == stage_key(stage, record.inputs)
    workspace = Workspace(str(project.workspace))
    assert workspace.exists(document_path(record.document))
    for file in record.files:
        workspace.verify(file)


def test_refs_and_aliases_agree_on_challenger_and_champion(project, client) -> None:
    workspace = Workspace(str(project.workspace))
    registration = Link(kind="registration", sha256=project.file("documents/registration/*.json").stem)
    for ref in ("models/tiny/versions", "models/tiny/challenger", "models/tiny/champion"):
        (entry,) = refs.history(workspace, ref)
        assert entry.target == registration
    assert refs.current(workspace, "fitted/tiny") is not None
    assert client.get_model_version("tiny", "1").aliases == ["champion"], "and not challenger beside it"


def test_the_version_carries_a_tag_for_every_digest_it_stands_on(project, client) -> None:
    tags = client.get_model_version_by_alias("tiny", "champion").tags
    for tag, kind in (
        ("registration", "registration"),
        ("run", "run"),
        ("checkpoint", "checkpoint"),
        ("evaluation", "evaluation"),
        ("manifest", "manifest"),
        ("fitted", "fitted"),
        ("receipt", "receipt"),
        ("snapshot", "snapshot"),
    ):
        assert (project.workspace / "documents" / kind / f"{tags[f'headway.{tag}']}.json").is_file(), tag
    assert (project.workspace / "code" / f"{tags['headway.code']}.zip").is_file()
    assert (project.workspace / "environments" / f"{tags['headway.environment']}.json").is_file()
    name, _, digest = tags["headway.contract"].partition(" ")
    assert name == "tiny-texts@1.0.0"
    assert (project.workspace / "contracts" / f"{digest}.yaml").is_file()


def test_mlflow_has_every_step_of_the_loss_and_no_series_of_one_point_but_the_evaluation(project, client) -> None:
    version = client.get_model_version_by_alias("tiny", "champion")
    steps = [point.step for point in client.get_metric_history(version.run_id, "train/loss")]
    assert steps == list(range(1, project.result()["step"] + 1))
    run = client.get_run(version.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name.startswith("tiny 20") and run.info.run_name.endswith(f" v{version.version}")
    series = {name for name in run.data.metrics if not name.startswith("eval/")}
    assert {name.partition("/")[0] for name in series} <= {"train", "time", "system"}
    assert {"train/tokens_per_s", "train/lr", "time/step_s", "time/sync_s", "train/sent_bytes"} <= series
    assert [name for name in series if len(client.get_metric_history(version.run_id, name)) < 2] == []
    bars = {name for name in run.data.metrics if name.startswith("eval/")}
    points = {point.step for name in bars for point in client.get_metric_history(version.run_id, name)}
    assert len(bars) >= 2 and points == {0}, "which MLflow draws as bars"
    page = run.data.tags["mlflow.note.content"]
    parts = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "step")
    assert all(f"| {part}, s |" in page for part in parts) and "tokens/s" in page and "gather" in page
    assert page.count("### Evaluation") == 1
    assert {"headway.recipe", "headway.manifest", "mlflow.user"} <= run.data.tags.keys()
    assert run.data.params["recipe.name"] == run.data.tags["headway.recipe"]


@pytest.mark.long
def test_the_model_serves_in_a_fresh_process_with_plain_mlflow_and_unpickling_switched_off(
    project, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD_WITH_PLAIN_MLFLOW, f"sqlite:///{project.workspace / 'mlflow.db'}"],
        cwd=tmp_path,
        env={**os.environ, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "vocabulary 300" in done.stdout


def test_reports_are_pages_that_stand_alone(project) -> None:
    pages = project.files("reports/*.html")
    assert {page.name.partition("-")[0] for page in pages} == {"contract", "evaluation"}
    for page in pages:
        text = page.read_text()
        assert len(text) > 100
        assert not re.search(r"""(src|href)=["']https?://""", text), page


def test_without_a_terminal_it_prints_plain_lines(finished) -> None:
    lines = finished.first.stdout.splitlines()
    assert finished.first.stderr == ""
    assert not re.search(r"[\x1b\r]", finished.first.stdout)
    for stage in STAGES:
        assert any(re.match(rf"{stage}\s+made\s+[\d.]+ s", line) for line in lines), stage
    assert any(re.match(r"step\s+120/120\s+loss [\d.]+", line) for line in lines)


def test_the_parts_of_its_time_sum_to_the_wall_and_hardly_any_is_unattributed(project) -> None:
    summary = json.loads(project.file("ledger/*/summary.json").read_bytes())
    assert sum(summary["time_s"].values()) == pytest.approx(summary["wall_s"], abs=0.05)
    assert summary["unattributed_ratio"] <= 0.01, summary["time_s"]
    assert {"train.forward", "train.backward", "train.sync", "rank.imports", "start"} <= summary["time_s"].keys()
