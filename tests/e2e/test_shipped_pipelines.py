"""Pictures and tables go the whole way as text does: the shipped pipelines end in the registry, proved."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.verify import verify_model

pytestmark = pytest.mark.slow

DEPLOYMENTS = Path(__file__).resolve().parents[2] / "deployments"


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_a_shipped_pipeline_ends_with_a_proved_champion_and_is_found_again(name, tmp_path, retrain_here, capsys):
    case = SimpleNamespace(pipeline=DEPLOYMENTS / f"{name}.yaml", workspace=tmp_path / "workspace")
    summary, _ = retrain_here(case)
    assert (summary.model, summary.version, summary.is_champion) == (name, "1", True)
    assert summary.value < summary.baselines["class prior"]
    assert summary.other_metrics["accuracy"] > 0.9
    assert verify_model(f"models:/{name}@champion", str(case.workspace), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)
    again, _ = retrain_here(case)
    assert again.stages_made == [] and again.version == "1"


def test_one_rank_and_two_train_the_same_picture_classifier(tmp_path, train_here):
    text = (DEPLOYMENTS / "digits.yaml").read_text()
    contract = str(DEPLOYMENTS.parent / "data_contracts" / "contracts" / "digits.yaml")
    text = text.replace("../data_contracts/contracts/digits.yaml", contract).replace("max_steps: 400", "max_steps: 30")
    found = []
    for nodes in (1, 2):
        folder = tmp_path / str(nodes)
        folder.mkdir()
        (folder / "digits.yaml").write_text(text.replace("nodes: 2", f"nodes: {nodes}"))
        case = SimpleNamespace(pipeline=folder / "digits.yaml", workspace=folder / "workspace")
        train_here(case)
        (run,) = (case.workspace / "runs").iterdir()
        found.append(tensors_in(max((run / "checkpoints").iterdir())))
    assert found[0] == found[1] != {}


def tensors_in(checkpoint: Path) -> dict[str, bytes]:
    """Every tensor's bytes by name, however many files they lie in."""
    from safetensors.torch import load_file

    tensors = {}
    for path in sorted(checkpoint.glob("tensors-*.safetensors")):
        for name, value in load_file(path).items():
            tensors[name] = value.contiguous().numpy().tobytes()
    return tensors
