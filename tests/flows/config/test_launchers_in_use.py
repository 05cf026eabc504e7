"""Probes and drills are made on every launcher that pipelines take, with two ranks, whatever else a launch says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.launchers_in_use import launch_of_drills, launchers_in_use
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.profiles import DeploymentProfile
from headway.training.launch.base.gang import LaunchSpec
from tests.e2e.project import CONTRACT, PIPELINE

SSH = {"launcher": "ssh", "nodes": 3, "min_nodes": 2, "ranks_per_node": 8, "ssh": {"hosts": ["a", "b", "c"]}}
SLURM = {"launcher": "slurm", "nodes": 1, "ranks_per_node": 8, "slurm": {"partition": "short"}, "stop_grace_s": 60}


def with_launch(launch: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(PIPELINE)
    return spec | {"contract": "../contract.yaml", "launch": launch}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deployments").mkdir()
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    two = {"nodes": 2, "ranks_per_node": 1}
    for name, launch in {
        "a": SSH | two,
        "b": SLURM | two,
        "c": SSH | two | {"ssh": {"hosts": ["x", "y", "z"]}},
    }.items():
        (tmp_path / "deployments" / f"{name}.yaml").write_text(yaml.safe_dump(with_launch(launch)))
    return tmp_path


def test_each_launcher_is_there_once_as_its_first_pipeline_has_it_and_with_two_ranks() -> None:
    launches = {"c": SSH, "b": SLURM, "a": {"launcher": "slurm", "nodes": 4}, "local": {"nodes": 1}}
    used = launchers_in_use({name: PipelineSpec.model_validate(with_launch(each)) for name, each in launches.items()})
    assert list(used) == ["local", "slurm", "ssh"]
    assert [(each.nodes, each.ranks_per_node) for each in used.values()] == [(1, 1), (2, 1), (2, 1)]
    assert used["ssh"].min_nodes is None and used["ssh"].ssh is not None and len(used["ssh"].ssh.hosts) == 3
    (only,) = launchers_in_use({"b": PipelineSpec.model_validate(with_launch(SLURM))}).values()
    assert (only.nodes, only.ranks_per_node, only.slurm.partition, only.stop_grace_s) == (1, 2, "short", 60)


def test_a_drill_takes_the_launch_of_the_game_day_else_that_of_a_pipeline(folder: Path) -> None:
    def profile(game_day: dict[str, Any] | None = None) -> DeploymentProfile:
        return DeploymentProfile.model_validate({"pool": {"name": "p"}, "game_day": game_day})

    assert launch_of_drills(folder, None, "") == launch_of_drills(folder, profile(), "local") == LaunchSpec()
    ssh = launch_of_drills(folder, None, "ssh").ssh
    assert ssh is not None and [host.host for host in ssh.hosts] == ["a", "b", "c"]
    own = profile({"launch": {"launcher": "slurm", "slurm": {"partition": "drills"}}})
    for launcher in ("", "slurm"):
        assert launch_of_drills(folder, own, launcher).slurm.partition == "drills"
    assert launch_of_drills(folder, own, "ssh").launcher == "ssh"
    with pytest.raises(ConfigError, match="names no launch, and launchers in use are: slurm, ssh"):
        launch_of_drills(folder, profile({}), "")
    with pytest.raises(ConfigError, match="no pipeline of the project takes launcher kubernetes"):
        launch_of_drills(folder, None, "kubernetes")
