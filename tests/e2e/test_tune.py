"""What moves no bit is measured on a project's own shards, and a retrain that takes it comes to the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import load_pipeline
from headway.tasks.tuning import record
from headway.tasks.tuning.advice import Advice
from headway.tasks.tuning.choice import Settings

TAKEN: dict[str, Settings] = {
    "ranks": {"launch.nodes": 1, "launch.ranks_per_node": 1},
    "bucket size": {"training.bucket_bytes": 4096},
    "loader threads": {"launch.loader.prefetch_threads": 2},
    "loader cache": {},
    "loader depth": {"launch.loader.prefetch_bytes": 64 << 20},
    "save interval": {"training.checkpoints.every_steps": None, "training.checkpoints.every_s": 600.0},
}


@pytest.mark.long
def test_a_retrain_that_takes_what_was_measured_comes_to_the_same_bits_and_run(
    project, finished, here, retrain_here
) -> None:
    text = (project.root / "tiny.yaml").read_text()
    text = text.replace("launch: {nodes: 1, ranks_per_node: 2}\n", "").replace(
        "  checkpoints:\n    every_steps: 20\n", ""
    )
    (project.root / "tiny.yaml").write_text(text)
    shards = project.files("shards/**/*")
    asked = ("--rounds", "3", "--advise", "--json", "--workspace", str(project.workspace))
    done = here("tune", str(project.pipeline), *asked)
    assert done.returncode == 0, done.stderr
    lines = {each.pop("event"): each for each in map(json.loads, done.stdout.splitlines())}
    last, advised = lines["tuning"], lines["tuning.advice"]
    made = record.Tuning.model_validate(last)
    assert project.files("shards/**/*") == shards, "what a retrain would train on is found"
    assert {each.name for each in made.settings} == set(TAKEN)
    (ranks,) = [each for each in made.settings if each.name == "ranks"]
    assert all(len(each.rounds_s) == 3 and each.median_s > 0 for each in ranks.measured)
    assert not [each for each in made.settings if each.moved_bits]
    assert len(made.stall_s) >= 5 and made.durable_s
    workspace = Workspace(str(project.workspace))
    assert record.read(workspace, "tiny") == made
    left = {path.name for path in (project.workspace / "tuning").iterdir()}
    assert left == {"tiny.json", "work-tiny.lock", "tiny.advice.json", "tiny.advice.html"}, "trials leave nothing"
    assert Path(advised.pop("page")).read_text().count("<svg") >= 1
    advice = Advice.model_validate(advised)
    losses = advice.learning_rates.losses
    assert advice.learning_rates.wanted is not None and min(losses) < losses[0] < max(losses)
    assert advice.micro_batches[0].sequences == load_pipeline(project.pipeline).training.micro_batch_sequences
    assert all(each.step_s and each.peak_bytes for each in advice.micro_batches)
    assert not advice.compiled.is_better and advice.compiled.why.startswith("it moves bits: "), "its kernels are fused"
    assert len(set(advice.compiled.tensors_sha256)) == 2 and "training.compile" not in made.taken

    # Whatever this machine found: all of it taken at once.
    settings = tuple(each.model_copy(update={"taken": TAKEN[each.name]}) for each in made.settings)
    record.keep(workspace, made.model_copy(update={"settings": settings}))
    planned = here("plan", str(project.pipeline), "--json", "--workspace", str(project.workspace))
    assert "launch.ranks_per_node 1, training.bucket_bytes 4096" in json.loads(planned.stdout)["tuned"]
    project.forget_the_model()
    _, events = retrain_here(project)
    told = {str(event["event"]): event for event in events}
    assert "training.checkpoints.every_s 600, " in told["tuned"]["message"]
    assert "x 1 ranks" in told["batch"]["message"]
    assert [path.parent.name for path in project.files("runs/*/checkpoints/*/manifest.json")] == ["step-00000120"]
    before = next(finished.pristine.glob("workspace/runs/*/result.json"))
    assert project.run_dir().name == before.parent.name, "the same run"
    assert project.result()["tensors_sha256"] == json.loads(before.read_bytes())["tensors_sha256"]
