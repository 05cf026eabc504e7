"""Pipeline files that cannot be deployed are refused before a server is asked; names are shown as they are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.flows.deploy.deploying import rendered

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of one of the shipped pipelines."""
    (tmp_path / "deployments").mkdir()
    for name in ("digits", "profiles"):
        shutil.copy(REPOSITORY / "deployments" / f"{name}.yaml", tmp_path / "deployments")
    shutil.copytree(REPOSITORY / "data_contracts" / "contracts", tmp_path / "data_contracts" / "contracts")
    return tmp_path


def add(folder: Path, name: str, *, pipeline: str, more: str = "") -> None:
    text = (folder / "deployments" / "digits.yaml").read_text()
    text = text.replace("pipeline: digits\n", f"pipeline: {pipeline}\n")
    (folder / "deployments" / f"{name}.yaml").write_text(text + more)


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    add(folder, "digits.pipeline", pipeline="others")
    with pytest.raises(ConfigError, match="another file is called digits, too"):
        rendered(folder, "dev")


def test_two_files_of_one_pipeline_are_refused_by_name(folder: Path) -> None:
    add(folder, "digits-again", pipeline="digits")
    with pytest.raises(ConfigError, match=r"digits\.yaml.*is called digits, as that of digits-again\.yaml is"):
        rendered(folder, "dev")


@pytest.mark.parametrize("name", ["a#b", "50%", "x[red]y"])
def test_a_file_whose_name_no_deployment_can_have_is_refused(folder: Path, name: str) -> None:
    add(folder, name, pipeline="other")
    with pytest.raises(ConfigError, match="becomes that of a deployment"):
        rendered(folder, "dev")


def test_a_drift_trigger_that_nothing_measures_is_refused(folder: Path) -> None:
    add(folder, "drifting", pipeline="drifting", more="\ntriggers: {drift: {psi: 0.2}}\n")
    with pytest.raises(ConfigError, match="no drift rule"):
        rendered(folder, "dev")


def test_a_mesh_that_cannot_work_names_its_file_among_many(folder: Path) -> None:
    add(folder, "lonely", pipeline="lonely")
    file = folder / "deployments" / "lonely.yaml"
    file.write_text(file.read_text().replace("micro_batch_sequences: 32", "micro_batch_sequences: 64"))
    with pytest.raises(ConfigError, match=r"lonely\.yaml.*2 ranks cannot share 1 replicas"):
        rendered(folder, "dev")


def test_no_console_makes_a_picture_of_a_name() -> None:
    """A project called `key` has limits such as `headway:key:production:gpus`, and `:key:` is an emoji to Rich."""
    for path in (REPOSITORY / "flows").rglob("*.py"):
        for made in re.findall(r"(?<!import )\bConsole\(.*", path.read_text()):
            assert "emoji=False" in made, f"{path.name}: {made}"


def test_a_pipeline_whose_contract_did_not_come_along_is_refused_by_name(folder: Path) -> None:
    shutil.rmtree(folder / "data_contracts")
    with pytest.raises(ConfigError, match=r"digits\.yaml: contract: the contract's file does not exist"):
        rendered(folder, "dev")


def test_a_pipeline_whose_suite_did_not_come_along_is_refused_by_name(folder: Path) -> None:
    contract = folder / "data_contracts" / "contracts" / "digits.yaml"
    contract.write_text(contract.read_text() + "\nsuite: left-at-home.json\n")
    with pytest.raises(ConfigError, match=r"digits\.yaml: what it names is not all there.*left-at-home") as refused:
        rendered(folder, "dev")
    assert "beside the pipeline file" in refused.value.advice


def test_a_pipeline_whose_own_recipe_did_not_come_along_is_refused(folder: Path) -> None:
    file = folder / "deployments" / "digits.yaml"
    file.write_text(file.read_text().replace("name: image-classifier", "name: team_recipes.mine:Mine"))
    with pytest.raises(ConfigError, match=r"digits\.yaml: what it names is not all there.*team_recipes"):
        rendered(folder, "dev")
