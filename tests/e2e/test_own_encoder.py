"""A user's own encoder and recipe, outside the repository, go the whole way; a champion keeps its own encoder."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.flows.act.export import export_model
from headway.flows.config.request import RetrainRequest
from headway.flows.show.plan import Plan, make_plan
from headway.flows.show.shards import read_shards
from headway.flows.show.verify import verify_model
from headway.tasks.stages.scoring import CHAMPION_SHARDS

PIPELINE = """\
pipeline: words
source: {format: csv, uri: data, include: ["*.csv"]}
contract: contract.yaml
shards:
  encoder: {kind: own, name: "my_words.letters:Letters", options: {column: word}}
  num_groups: 1
  split_by: row
  heldout_fraction: 0.3
  group_tasks: true
training:
  recipe: {name: "my_words.nets:Linear"}
  optimizer: {kind: adamw, lr: 0.05}
  schedule: {warmup_steps: 5}
  max_steps: 40
  global_batch_sequences: 32
  micro_batch_sequences: 16
  checkpoints: {every_steps: 20}
launch: {nodes: 1}
evaluation: {bootstrap_resamples: 100}
registry: {model: words}
"""
CONTRACT = """\
name: words
version: 1.0.0
description: Made-up words of two languages.
rows: {min: 10}
columns:
  word: {type: string}
  language: {type: string}
"""
ENCODER = '''\
"""An encoder as the documentation shows it."""
import numpy as np

from headway.data_contracts.store.documents import Frozen, PayloadColumn
from headway.training.data.encode.custom_encoder import EncoderState
from headway.training.config.shapes import CustomShape

from .counting import counts_of


class Options(Frozen):
    column: str = "text"


class Letters:
    spec_type = Options

    @classmethod
    def fit(cls, spec, batches):
        letters, languages = set(), set()
        for batch in batches:
            letters.update(*batch.column(spec.column).to_pylist())
            languages.update(batch.column("language").to_pylist())
        return EncoderState({"letters": sorted(letters), "languages": sorted(languages)})

    def __init__(self, spec, learnt):
        self.spec, self.letters, self.languages = spec, learnt.state["letters"], learnt.state["languages"]
        counts = PayloadColumn(name="counts", dtype="float32", shape=(len(self.letters),))
        self.shape = CustomShape(columns=(counts,), num_classes=len(self.languages), facts={"letters": self.letters})

    def encode(self, batch):
        label = [self.languages.index(language) for language in batch.column("language").to_pylist()]
        return {
            "counts": counts_of(batch.column(self.spec.column).to_pylist(), self.letters),
            "label": np.array(label, dtype=np.int32)[:, None],
        }
'''
COUNTING = """\
import numpy as np


def counts_of(words, letters):
    return np.array([[word.count(letter) for letter in letters] for word in words], dtype=np.float32)
"""
RECIPE = """\
import torch
from torch import nn

from headway.data_contracts.store.documents import Frozen
from headway.training.config.shapes import CustomShape
from headway.training.recipes.protocol import Losses


class Linear:
    spec_type, shape_type = Frozen, CustomShape

    def __init__(self, spec, shape):
        self.shape = shape

    def build(self):
        return nn.Linear(len(self.shape.facts["letters"]), self.shape.num_classes)

    def losses(self, model, batch):
        nats = nn.functional.cross_entropy(model(batch["counts"]), batch["label"][:, 0], reduction="none")[:, None]
        return Losses(nats, torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model, batch):
        right = model(batch["counts"]).argmax(dim=1, keepdim=True) == batch["label"]
        return {"nats": self.losses(model, batch).nats, "correct": right.float()}

    def hidden_matrices(self, model):
        return ()

    def example_input(self):
        return torch.zeros(2, len(self.shape.facts["letters"]))
"""


@pytest.fixture
def project(tmp_path: Path) -> SimpleNamespace:
    draw, lines = random.Random(0), ["word,language"]
    for _ in range(400):
        language = draw.choice(["north", "south"])
        lines.append("".join(draw.choices("akstr" if language == "north" else "aeilo", k=6)) + f",{language}")
    files = {
        "data/words.csv": "\n".join(lines) + "\n",
        "words.yaml": PIPELINE,
        "contract.yaml": CONTRACT,
        "my_words/__init__.py": "",
        "my_words/letters.py": ENCODER,
        "my_words/counting.py": COUNTING,
        "my_words/nets.py": RECIPE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return SimpleNamespace(root=tmp_path, pipeline=tmp_path / "words.yaml", workspace=tmp_path / "workspace")


def plan(project: SimpleNamespace) -> Plan:
    return make_plan(RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace)))


def states(made: Plan) -> dict[str, str]:
    return {stage.stage: stage.state for stage in made.stages}


@pytest.mark.long
def test_it_is_encoded_trained_registered_proved_exported_and_judged_beside_another_encoders_model(
    project: SimpleNamespace, retrain_here: Callable[[Any], tuple[Any, list[Any]]]
) -> None:
    letters, nets = project.root / "my_words" / "letters.py", project.root / "my_words" / "nets.py"
    project.pipeline.write_text(PIPELINE.replace("column: word", "colum: word"))
    with pytest.raises(ConfigError, match=r"shards\.encoder\.options\.colum: no such field\. Did you mean column\?"):
        plan(project)
    project.pipeline.write_text(PIPELINE)

    first, _ = retrain_here(project)
    assert (first.version, first.is_champion) == ("1", True) and first.other_metrics["accuracy"] > 0.8
    assert verify_model("models:/words@champion", str(project.workspace), as_json=True) == 0
    shown = read_shards(str(project.pipeline), str(project.workspace))
    assert shown.encoder == "my_words.letters:Letters" and shown.columns["counts"].startswith("float32")
    export_model("models:/words@champion", str(project.workspace), project.root / "exported")
    assert (project.root / "exported" / "encoder.zip").is_file()

    nets.write_text(RECIPE + "\n# the recipe alone\n")
    assert (states(plan(project))["shard"], states(plan(project))["launch"]) == ("found", "run")
    nets.write_text(RECIPE)
    assert set(states(plan(project)).values()) == {"found"}

    # Another column, learnt by other code: the champion goes on to read what it was trained on.
    letters.write_text(ENCODER.replace('name="counts"', 'name="tallies"').replace('"counts":', '"tallies":'))
    nets.write_text(RECIPE.replace('batch["counts"]', 'batch["tallies"]'))
    (outlook,) = (stage.detail for stage in plan(project).stages if stage.stage == "shard")
    assert "fits again (the encoder's code changed)" in outlook
    second, events = retrain_here(project)
    assert second.version == "2" and {"fit", "shard", "launch", "register"} <= set(second.stages_run)
    assert not {"snapshot", "validate"} & set(second.stages_run)
    assert CHAMPION_SHARDS in [event["event"] for event in events]
    assert second.champion_value == pytest.approx(first.value)
    assert set(states(plan(project)).values()) == {"found"}
