"""A retrain that is validated: its curve is told everywhere, its best checkpoint is registered, found and proved."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from mlflow import MlflowClient
from safetensors.torch import load_file

from headway.data_contracts.store.errors import ConfigError
from headway.flows.act.contract_init import draft
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.show.verify import verify_model
from headway.training.checkpoint.read import read_checkpoint

pytestmark = pytest.mark.long

NUM_ROWS = 800


def project(folder: Path) -> SimpleNamespace:
    chance = random.Random(3)
    rows = []
    for _ in range(NUM_ROWS):
        size, weight = chance.gauss(0, 1), chance.gauss(0, 1)
        is_good = (size > weight) != (chance.random() < 0.15)
        rows.append(f"{size:.4f},{weight:.4f},{'yes' if is_good else 'no'}")
    (folder / "goods.csv").write_text("\n".join(["size,weight,good", *rows]) + "\n")
    pipeline = draft("goods.csv", out="", name="goods", base=folder, label="good").pipeline
    spec = yaml.safe_load(pipeline.read_text())
    spec["shards"] |= {"heldout_fraction": 0.2, "validation_fraction": 0.2}
    del spec["training"]["max_epochs"]
    spec["training"] |= {
        "max_steps": 200,
        "optimizer": {"lr": 0.03},
        "recipe": {"name": "tabular-classifier", "model": {"width": 32, "depth": 2}},
        "validation": {"every_steps": 5, "patience": 4, "keep_best": True},
        "ema": {"decay": 0.8},
    }
    spec |= {"launch": {"nodes": 1}, "evaluation": {"bootstrap_resamples": 200}}
    pipeline.write_text(yaml.safe_dump(spec))
    return SimpleNamespace(pipeline=pipeline, workspace=folder / "workspace")


def test_the_best_checkpoint_is_registered_drawn_found_again_and_proved(tmp_path: Path, retrain_here) -> None:
    case = project(tmp_path)
    summary, events = retrain_here(case)
    assert summary.is_champion
    validations = {event["step"]: event["value"] for event in events if event["event"] == "validation"}
    best = min(validations, key=lambda step: (validations[step], step))
    assert max(validations) == best + 4 * 5 < 200
    (taken,) = (event for event in events if event["event"] == "restore.best")
    assert taken["step"] == best
    # What is registered is the average that validated best, and not the weights that it is of.
    registered = next(case.workspace.rglob("weights/model.safetensors"))
    (checkpoint,) = case.workspace.glob(f"runs/*/checkpoints/step-{best:08d}")
    kept, exported = read_checkpoint(checkpoint).tensors, load_file(registered)
    for name, value in exported.items():
        assert torch.equal(value, kept[f"model.{name}"]) and not torch.equal(value, kept[f"trained.{name}"])
    client = MlflowClient(f"sqlite:///{case.workspace / 'mlflow.db'}")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    history = client.get_metric_history(run.info.run_id, "validation/log_loss")
    assert {metric.step: metric.value for metric in history} == pytest.approx(validations)
    steps = [event for event in events if event["event"] == "step" and "gradient_noise_scale" in event]
    scales = {event["step"]: event["gradient_noise_scale"] for event in steps}
    history = client.get_metric_history(run.info.run_id, "train/gradient_noise_scale")
    assert {metric.step: metric.value for metric in history} == pytest.approx(scales) and scales
    (page,) = case.workspace.glob("reports/evaluation-*.html")
    assert "On the validation split" in page.read_text()

    again, events = retrain_here(case)
    assert again.version == summary.version and not any(event["event"] == "step" for event in events)
    assert verify_model("models:/goods@champion", str(case.workspace), as_json=True) == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"validation_fraction": 0.0}, "training.validation needs rows: give shards.validation_fraction"),
        ({"validation": None}, "training.validation does not look at them"),
        ({"every_s": 5.0}, "give every_s or every_steps"),
        ({"metric": "r2"}, "no figure 'r2' to validate by; these data have log_loss, accuracy"),
    ],
)
def test_a_file_that_validates_on_nothing_or_looks_at_nothing_is_refused(tmp_path: Path, change, problem) -> None:
    case = project(tmp_path)
    spec = yaml.safe_load(case.pipeline.read_text())
    if change.keys() & {"metric", "every_s"}:
        spec["training"]["validation"] |= change
    elif "validation" in change:
        del spec["training"]["validation"]
    else:
        spec["shards"] |= change
    case.pipeline.write_text(yaml.safe_dump(spec))
    with pytest.raises(ConfigError, match=problem):
        load_pipeline(case.pipeline)
