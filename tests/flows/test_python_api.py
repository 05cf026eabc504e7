"""`headway.retrain`, called from Python: what is refused before anything starts."""

from __future__ import annotations

from datetime import datetime

import pytest

import headway


def test_a_time_without_its_zone_is_refused_and_the_argument_that_holds_it_is_named() -> None:
    with pytest.raises(headway.ConfigError, match="timezone") as refused:
        headway.retrain("breast-cancer", stop_at=datetime(2030, 1, 1, 6))
    assert refused.value.where == "retrain(stop_at=...)"


def test_a_workspace_may_be_a_path_as_a_pipeline_may(tmp_path) -> None:
    for load in (headway.load_table_model, headway.load_text_model):
        with pytest.raises(headway.EnvironmentProblem, match="no workspace here"):
            load("models:/churn@champion", tmp_path / "nowhere")
    with pytest.raises(headway.ConfigError, match="no such pipeline"):
        headway.retrain("churn", tmp_path / "workspace")


def test_a_pipeline_that_is_no_file_is_refused_as_by_the_command(tmp_path) -> None:
    with pytest.raises(headway.ConfigError, match="no such pipeline"):
        headway.retrain(tmp_path / "churn.yaml", str(tmp_path / "workspace"))
    assert list(tmp_path.iterdir()) == []
