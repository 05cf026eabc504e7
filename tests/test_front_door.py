"""One installed name: what a project writes against, and a project whose folders are called like Headway's own."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway.public import PLACES

PUBLIC = [
    *("ConfigError", "ContractViolation", "CustomEncoderFacts", "CustomShape", "DataError", "Encoder"),
    *("EncoderMetadata", "EncoderState", "EncodingRefused", "EnvironmentProblem", "FlopCounter", "Frozen"),
    *("HeadwayError", "ImageShape", "IntegrityError", "Losses", "NotReproduced", "OutsideWindow", "Parallelizable"),
    *("PayloadColumn", "PipelineHeld", "PromotionRefused", "Recipe", "RegistryError", "RunBusy", "RunStopped"),
    *("TabularNumberShape", "TabularShape", "TokenShape", "TrainingFailed", "load_table_model", "load_text_model"),
    "retrain",
]
FOLDERS = ("training", "tasks", "flows", "tests", "data_contracts", "deployments")


def with_folders_of_its_own(project: Path) -> Path:
    for name in FOLDERS:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"raise RuntimeError('the wrong {name}')\n")
    return project


def test_the_public_names_are_these() -> None:
    assert sorted(headway.__all__) == PUBLIC


def test_each_public_name_is_documented_and_is_what_type_checkers_are_told() -> None:
    tree = ast.parse(inspect.getsource(headway))
    (shown,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in shown.body if isinstance(node, ast.ImportFrom)]
    told = {alias.asname: (node.module, alias.name) for node in imports for alias in node.names}
    assert told == PLACES
    assert all(getattr(headway, name).__doc__ for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(headway))


def test_the_version_is_that_of_the_installed_distribution() -> None:
    assert headway.__version__ == importlib.metadata.version("headway")


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Loses'"):
        headway.Loses  # noqa: B018


@pytest.mark.process
def test_to_import_headway_imports_nothing_else() -> None:
    code = (
        "import sys, importlib, typing; before = set(sys.modules); import headway;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['headway', 'headway.public']"


@pytest.mark.process
def test_a_recipe_or_encoder_imports_neither_prefect_nor_mlflow() -> None:
    code = (
        "import sys; from headway import Encoder, Frozen, ImageShape, Losses, CustomShape, Recipe;"
        "print(sorted({'prefect', 'mlflow', 'great_expectations', 'duckdb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.process
@pytest.mark.parametrize("on_path", [False, True])
def test_a_project_may_have_folders_of_any_name(tmp_path: Path, on_path: bool) -> None:
    project = with_folders_of_its_own(tmp_path / "project")
    environment = dict(os.environ) | ({"PYTHONPATH": str(project)} if on_path else {})
    command = [str(Path(sys.executable).with_name("headway")), "retrain", "no-such-pipeline"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "no such pipeline file" in done.stderr and "wrong" not in done.stderr


@pytest.mark.process
def test_a_script_beside_folders_of_such_names_asks_a_model(tmp_path: Path) -> None:
    project = with_folders_of_its_own(tmp_path / "project")
    script = project / "ask.py"
    script.write_text("import headway\nheadway.load_table_model('models:/any@champion')\n")
    done = subprocess.run([sys.executable, str(script)], cwd=project, capture_output=True, text=True)
    assert "EnvironmentProblem" in done.stderr and "there is no workspace" in done.stderr
