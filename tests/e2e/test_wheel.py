"""Nothing but the wheel, in a folder whose own packages are called like Headway's folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests import wheels
from tests.prefect_tables import new_prefect_home
from tests.warm_programs import run_program

OF_THE_PROJECT = ("training", "tasks", "flows", "tests", "data_contracts", "deployments")
ASK = """
import headway, torch, training
model = headway.load_table_model("models:/demo@champion")
encoded = model.encode([dict.fromkeys(model.fitted_types, 1.0)])
print(len(model.graph(torch.from_numpy(encoded["numeric"]))))
"""
CALL = Path(__file__).with_name("shipped_call.py")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    new_prefect_home(folder / "prefect")
    return wheels.install(folder / "installed")


def test_site_packages_get_headway_and_its_metadata_and_nothing_else(installed: Path) -> None:
    found = {path.name for path in installed.iterdir()}
    assert {name for name in found if not name.endswith(".dist-info")} == {"bin", "headway"} and len(found) == 3


def with_folders_of_its_own(folder: Path) -> Path:
    for name in OF_THE_PROJECT:
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    return folder


def test_a_new_project_retrains_on_a_recipe_of_its_own_and_its_model_answers(installed: Path, tmp_path: Path) -> None:
    written = wheels.run(installed, "-m", "headway", "init", "demo", cwd=with_folders_of_its_own(tmp_path))
    assert written.returncode == 0, written.stderr
    project = tmp_path / "demo"
    pipeline = project / "deployments" / "demo.pipeline.yaml"
    own = re.sub(r"recipe: \{.*\}", "recipe: {name: recipes.network:Network}", pipeline.read_text())
    pipeline.write_text(own)
    done = wheels.run(installed, "-m", "headway", "retrain", "demo", "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["event"] == "summary" and summary["is_champion"], summary["reason"]
    (tmp_path / "ask.py").write_text(ASK)
    asked = wheels.run(installed, "../ask.py", cwd=project)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip() == "1"


@pytest.mark.parametrize("is_wheel", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["checkout", "wheel"])
def test_a_shipped_pipeline_retrains_by_a_call_and_calls_share_a_server(
    request: pytest.FixtureRequest, tmp_path: Path, is_wheel: bool
) -> None:
    """Of the wheel the test above asks all that a checkout may hide; there all of it is imported afresh."""
    call = shutil.copy(CALL, with_folders_of_its_own(tmp_path))
    if is_wheel:
        called = wheels.run(request.getfixturevalue("installed"), call, cwd=tmp_path)
    else:
        home = new_prefect_home(tmp_path / "prefect")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HEADWAY_"))}
        environment = {**ours, "PREFECT_HOME": str(home), "PYTHONPATH": str(tmp_path)}
        called = run_program([sys.executable, CALL], cwd=tmp_path, env=environment)
    assert called.returncode == 0, called.stderr
