"""When a search by schedule is still the one that was started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.trials.scheduled import end_search, settings_of, settings_to_keep
from headway.tasks.search.trials_spec import TrialsSpec
from tests.flows.trials.test_search_page import row, searched


@pytest.fixture
def pipeline(project: Path) -> PipelineSpec:
    trials = TrialsSpec.model_validate({"vary": {"optimizer.lr": [0.01, 0.02]}})
    return load_pipeline(project / "tiny.yaml").model_copy(update={"trials": trials})


@pytest.mark.parametrize(("changed", "is_same"), [({"memory_mb": 64}, True), ({"num_groups": 3}, False)])
def test_a_search_is_the_same_with_other_settings_of_shards_that_decide_no_bit(
    pipeline: PipelineSpec, changed: dict[str, Any], is_same: bool
) -> None:
    shards = pipeline.shards.model_copy(update=changed)
    assert (settings_of(pipeline.model_copy(update={"shards": shards})) == settings_of(pipeline)) is is_same


def test_what_a_search_kept_is_said_until_the_file_says_it(pipeline: PipelineSpec, tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    run: Any = SimpleNamespace(workspace=workspace, pipeline=pipeline.pipeline)
    assert settings_to_keep(workspace, pipeline) == ""
    end_search(run, pipeline, searched([row(1, {"optimizer.lr": 0.01}, 0.1, 3)]), 1.0)
    said = settings_to_keep(workspace, pipeline)
    assert said.endswith("kept other settings than this file's: training: {optimizer: {lr: 0.01}}")
    optimizer = pipeline.training.optimizer.model_copy(update={"lr": 0.01})
    written = pipeline.model_copy(update={"training": pipeline.training.model_copy(update={"optimizer": optimizer})})
    assert settings_to_keep(workspace, written) == ""
    end_search(run, written, searched([row(1, {"optimizer.lr": 0.01}, 0.1, 3)]), 2.0)
    assert settings_to_keep(workspace, written) == "", "the winner's settings are the file's"
