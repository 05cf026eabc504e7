"""A user's own recipe, outside the repository, goes the whole way; and a second model starts from what it made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.flows.act.export import export_model
from headway.flows.act.reproduce import reproduce_model
from headway.flows.show.verify import verify_model
from headway.training.checkpoint.read import read_checkpoint

REPOSITORY = Path(__file__).resolve().parents[2]
LAYERS = """\
from torch import nn


def body(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
"""
RECIPE = '''\
"""A recipe as the documentation shows it."""
import torch
from torch import nn

from headway.data_contracts.store.documents import Frozen
from my_models.layers import body
from headway.training.config.shapes import ImageShape
from headway.training.config.optimizer import ParameterGroupSpec
from headway.training.recipes.protocol import Losses


class Spec(Frozen):
    width: int = 32
    tall: bool = False


class Net(nn.Module):
    def __init__(self, spec, classes):
        super().__init__()
        self.body = body(spec.width)
        middle = [nn.Linear(spec.width, spec.width), nn.ReLU()] if spec.tall else []
        self.head = nn.Sequential(*middle, nn.Linear(spec.width, classes))

    def forward(self, images):
        return self.head(self.body(images.float() / 255))


class Mine:
    spec_type, shape_type = Spec, ImageShape
    parameter_groups = (ParameterGroupSpec(parameters=("head.*",), lr_multiplier=2),)

    def __init__(self, spec, shape):
        self.spec, self.shape = spec, shape

    def build(self):
        return Net(self.spec, self.shape.num_classes)

    def losses(self, model, batch):
        nats = nn.functional.cross_entropy(model(batch["image"]), batch["label"][:, 0], reduction="none")[:, None]
        return Losses(nats, torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model, batch):
        right = model(batch["image"]).argmax(dim=1, keepdim=True) == batch["label"]
        return {"nats": self.losses(model, batch).nats, "correct": right.float()}

    def hidden_matrices(self, model):
        return ()

    def example_input(self):
        return torch.zeros(2, 1, 8, 8, dtype=torch.int64)
'''
ELSEWHERE = """
import json, sys
for name in ("headway", "my_models"):
    sys.modules[name] = None
import torch
from safetensors.torch import load_file
folder = sys.argv[1]
config = json.load(open(f"{folder}/config.json"))
assert config["model"]["recipe"] == "my_models.mine:Mine" and config["model"]["data"]["num_classes"] == 10
weights = load_file(f"{folder}/{config['file']['name']}")
width = config["model"]["fields"]["width"]
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
names = {"1.weight": "body.1.weight", "1.bias": "body.1.bias", "3.weight": "head.0.weight", "3.bias": "head.0.bias"}
model.load_state_dict({place: weights[name] for place, name in names.items()})
images = torch.randint(255, (5, 1, 8, 8), generator=torch.Generator().manual_seed(1))
graph = torch.export.load(f"{folder}/model.pt2").module()
torch.testing.assert_close(model(images / 255), graph(images))
print("the same")
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A user's folder: pipeline files, a package of models, and a `training/` of their own that nobody may import."""
    spec = yaml.safe_load((REPOSITORY / "deployments" / "digits.yaml").read_text())
    spec["contract"] = str(REPOSITORY / "data_contracts" / "contracts" / "digits.yaml")
    spec |= {"pipeline": "own", "registry": {"model": "own"}, "evaluation": {"bootstrap_resamples": 100}}
    spec["training"] |= {
        "recipe": {"name": "my_models.mine:Mine", "model": {"width": 48}},
        "max_steps": 60,
        "checkpoints": {"every_steps": 30},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(spec))
    spec |= {"pipeline": "tuned", "registry": {"model": "tuned"}}
    spec["training"]["recipe"]["model"]["tall"] = True
    spec["training"]["start_from"] = {"model": "models:/own@champion", "fresh": ["head.*"], "extra": "ignore"}
    spec["training"]["optimizer"]["groups"] = [{"parameters": ["body.*"], "frozen": True}]
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(spec))
    for name, text in {"mine.py": RECIPE, "layers.py": LAYERS, "__init__.py": ""}.items():
        (tmp_path / "my_models").mkdir(exist_ok=True)
        (tmp_path / "my_models" / name).write_text(text)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text("raise SystemExit('the wrong training')\n")
    yield SimpleNamespace(root=tmp_path, workspace=tmp_path / "workspace")


def plan(project: SimpleNamespace, name: str) -> Any:
    from headway.flows.config.request import RetrainRequest
    from headway.flows.show.plan import make_plan

    return make_plan(RetrainRequest(pipeline=str(project.root / f"{name}.yaml"), workspace=str(project.workspace)))


def state_of_launch(made: Any) -> str:
    return next(stage.state for stage in made.stages if stage.stage == "launch")


@pytest.mark.long
def test_it_is_trained_evaluated_registered_proved_exported_and_started_from(
    project: SimpleNamespace,
    retrain_here: Callable[[Any], tuple[Any, list[Any]]],
    forked_gangs: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(project.root)
    with pytest.raises(ConfigError, match="no model 'own'"):
        plan(project, "tuned")

    project.pipeline = project.root / "own.yaml"
    own, _ = retrain_here(project)
    assert (own.version, own.is_champion) == ("1", True) and own.other_metrics["accuracy"] > 0.8
    assert verify_model("models:/own@champion", str(project.workspace), as_json=True) == 0
    (first,) = (path.name for path in (project.workspace / "runs").iterdir())

    # Frozen into the archive: edits to it retrain, edits elsewhere don't.
    (project.root / "notes.py").write_text("x = 1\n")
    assert state_of_launch(plan(project, "own")) == "found"
    layers = project.root / "my_models" / "layers.py"
    layers.write_text(LAYERS.replace("ReLU", "GELU"))
    assert state_of_launch(plan(project, "own")) == "run"
    layers.write_text(LAYERS)
    assert state_of_launch(plan(project, "own")) == "found"

    out = project.root / "exported"
    export_model("models:/own@champion", str(project.workspace), out)
    probe = project.root / "probe.py"
    probe.write_text(ELSEWHERE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", str(probe), str(out)], env=environment, capture_output=True, text=True, cwd=out
    )
    assert done.stdout.strip() == "the same", done.stderr
    with pytest.raises(ConfigError, match="is there already"):
        export_model("models:/own@champion", str(project.workspace), out)

    start = plan(project, "tuned").start
    project.pipeline = project.root / "tuned.yaml"
    tuned, events = retrain_here(project)
    assert tuned.version == "1" and tuned.other_metrics["accuracy"] > 0.6
    (message,) = (event for event in events if event["event"] == "start_from")
    assert message["message"] == start and start.startswith("own version 1, checkpoint ")
    (run,) = (path for path in (project.workspace / "runs").iterdir() if path.name != first)
    assert weights(run, "body") == weights(project.workspace / "runs" / first, "body") != {}
    capsys.readouterr()
    assert verify_model("models:/tuned/1", str(project.workspace), as_json=True) == 0
    links = {link["what"]: link["detail"] for link in json.loads(capsys.readouterr().out)["links"]}
    assert message["checkpoint"][:12] in links["started from (models:/own@champion)"]
    assert "its checkpoint" in links and "its shards" in links

    again, _ = retrain_here(project)
    assert again.stages_run == [] and again.version == "1"

    layers.write_text("raise SystemExit('an edit after it was trained')\n")
    made = reproduce_model("models:/tuned/1", str(project.workspace), again=False, as_json=True)
    assert made.agrees and made.is_promised, "from its frozen code, and from the checkpoint that it started from"
    assert weights(Path(made.reproduction.folder), "head") == weights(run, "head") != {}

    path = max((project.workspace / "runs" / first / "checkpoints").glob("*/tensors-*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    capsys.readouterr()
    assert verify_model("models:/tuned/1", str(project.workspace), as_json=True) == 5
    assert path.name in capsys.readouterr().out
    with pytest.raises(IntegrityError, match="blake3 is"):
        reproduce_model("models:/tuned/1", str(project.workspace), again=True, as_json=True)


def weights(run: Path, prefix: str) -> dict[str, bytes]:
    """Of a run's last checkpoint."""
    checkpoint = read_checkpoint(max((run / "checkpoints").iterdir()), prefix=f"model.{prefix}")
    return {name: value.numpy().tobytes() for name, value in checkpoint.tensors.items()}
