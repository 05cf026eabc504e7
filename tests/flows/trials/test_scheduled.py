"""When a search by schedule is still the one that was started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.trials.scheduled import settings_of
from headway.tasks.search.trials_spec import TrialsSpec


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
