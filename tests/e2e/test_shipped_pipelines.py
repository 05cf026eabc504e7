"""Pictures and tables go the whole way as text does: the shipped pipelines end in the registry, proved."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.flows.show.verify import verify_model

pytestmark = pytest.mark.long

DEPLOYMENTS = Path(__file__).resolve().parents[2] / "deployments"


# The other retrains and is found again from a wheel, in test_wheel.py.
@pytest.mark.parametrize("name", ["digits", pytest.param("breast-cancer", marks=pytest.mark.soak)])
def test_a_shipped_pipeline_ends_with_a_proved_champion_and_is_found_again(name, tmp_path, retrain_here, capsys):
    case = SimpleNamespace(pipeline=DEPLOYMENTS / f"{name}.yaml", workspace=tmp_path / "workspace")
    summary, _ = retrain_here(case)
    assert (summary.model, summary.version, summary.is_champion) == (name, "1", True)
    assert summary.value < summary.baselines["class prior"]
    assert summary.other_metrics["accuracy"] > 0.9
    assert verify_model(f"models:/{name}@champion", str(case.workspace), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)
    again, _ = retrain_here(case)
    assert again.stages_run == [] and again.version == "1"
