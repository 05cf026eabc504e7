"""What no shipped pipeline does goes the whole way, too: a number to predict, and tokens that the source gives."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import headway
from headway.flows.show.verify import verify_model

COMMON = """
launch: {nodes: 1}
evaluation: {bootstrap_resamples: 200}
"""
NUMBER = """\
pipeline: diabetes
source: {format: csv, uri: data, include: ["*.csv"]}
contract: contract.yaml
shards:
  encoder: {kind: tabular, numeric: [NAMES], label: progression, label_kind: number}
  num_groups: 1
  split_by: row
  heldout_fraction: 0.3
training:
  recipe: {name: tabular-regressor, model: {width: 32, depth: 1}}
  schedule: {warmup_steps: 5}
  max_steps: 60
  global_batch_sequences: 32
  micro_batch_sequences: 16
  checkpoints:
    every_steps: 30
registry: {model: diabetes}
"""
IDS = """\
pipeline: ids
source: {format: json-lines, uri: data, include: ["*.jsonl"]}
contract: contract.yaml
shards:
  encoder: {kind: token-ids, vocab_size: 16, sequence_tokens: 12}
  num_groups: 1
  split_by: row
  heldout_fraction: 0.3
training:
  recipe: {name: language-model, model: {width: 32, depth: 1, heads: 2, hidden: 32}}
  optimizer: {lr: 0.02}
  schedule: {warmup_steps: 5}
  max_steps: 60
  checkpoints:
    every_steps: 30
registry: {model: ids}
"""
CONTRACT = """\
name: anything
version: 1.0.0
description: Made up.
rows: {min: 10}
columns:
"""


@pytest.fixture
def project(tmp_path: Path):
    def made(pipeline: str, columns: str, name: str, data: str) -> SimpleNamespace:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / name).write_text(data)
        (tmp_path / "contract.yaml").write_text(CONTRACT + columns)
        (tmp_path / "pipeline.yaml").write_text(pipeline + COMMON)
        return SimpleNamespace(pipeline=tmp_path / "pipeline.yaml", workspace=tmp_path / "workspace")

    return made


@pytest.mark.long
def test_a_number_is_learnt_from_measurements(project, retrain_here, capsys) -> None:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    names = [*data.feature_names, "progression"]
    rows = [",".join(f"{value:.6f}" for value in (*row, y)) for row, y in zip(data.data, data.target, strict=True)]
    columns = "".join(f"  {name}: {{type: double}}\n" for name in names)
    pipeline = NUMBER.replace("NAMES", ", ".join(data.feature_names))
    case = project(pipeline, columns, "diabetes.csv", "\n".join([",".join(names), *rows]) + "\n")
    summary, _ = retrain_here(case)
    assert (summary.model, summary.version, summary.is_champion) == ("diabetes", "1", True)
    assert summary.value < summary.baselines["training mean"]
    assert summary.other_metrics["r2"] > 0.25 and 40 < summary.other_metrics["rmse"] < 70
    model = headway.load_table_model("models:/diabetes@champion", str(case.workspace))
    made = model.predict({name: data.data[:, place].tolist() for place, name in enumerate(data.feature_names)})
    assert made.column_names == ["prediction"]
    assert np.sqrt(np.square(np.array(made["prediction"]) - data.target).mean()) < 70, "in the label's own unit"
    assert verify_model("models:/diabetes@champion", str(case.workspace), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_tokens_given_by_the_source_are_learnt(project, retrain_here) -> None:
    draw, lines = random.Random(0), []
    for _ in range(200):
        tokens = [draw.randrange(16), draw.randrange(16)]
        while len(tokens) < 24:
            tokens.append((tokens[-2] + 3) % 16)
        lines.append(json.dumps({"tokens": tokens}))
    case = project(IDS, "  tokens: {type: list<int64>}\n", "ids.jsonl", "\n".join(lines) + "\n")
    summary, _ = retrain_here(case)
    assert (summary.version, summary.is_champion) == ("1", True)
    assert 0 < summary.value < summary.baselines["bigram"]
    assert set(summary.baselines) == {"bigram"}
