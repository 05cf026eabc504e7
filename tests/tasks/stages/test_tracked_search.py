"""MLflow shows a search as one run above those of its trials, and costs it nothing where it is away."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import Link
from headway.tasks.core.context import RunContext
from headway.tasks.registry import mlflow_store
from headway.tasks.search.budget import BudgetSpec
from headway.tasks.search.trials_spec import TrialsSpec
from headway.tasks.stages.tracked_search import GOES_ON, PARENT_TAG, SEARCH_TAG, TrackedSearch, TrialFigures
from headway.training.config.training_spec import TrainingSpec
from tests.tasks.registry.test_tracked_runs import run_of

SPEC = TrialsSpec.model_validate({"vary": {"optimizer.lr": [0.1, 0.2]}, "rungs": [10]})
MANIFEST = Link(kind="manifest", sha256="0" * 64)


@pytest.fixture
def uri(tmp_path: Path, mlflow_tables: Path) -> str:
    return f"{mlflow_store.SQLITE}{shutil.copy(mlflow_tables, tmp_path)}"


def test_a_search_is_one_run_above_its_trials_also_where_it_is_killed_and_repeated(
    context: RunContext, uri: str
) -> None:
    client = mlflow_store.connect(uri)
    pipeline = context.pipeline

    def searched(*, is_over: bool) -> str:
        """Another process would begin with nothing, too."""
        tracked = TrackedSearch(context, SPEC, TrainingSpec(max_steps=40), MANIFEST, uri)
        other = {10: 0.4}
        figures = {
            "trial 1": TrialFigures(run_of(1), {10: 0.5}, {}),
            "trial 2": TrialFigures(run_of(2), other, {"shards.encoder.vocab_size": 512}),
        }
        tracked.log("loss", figures, None, 20, is_over=False)
        other[40] = 0.3
        tracked.log("loss", figures, 0.3, 50, is_over=is_over)
        experiment = client.get_experiment_by_name(pipeline)
        assert experiment is not None
        (parent,) = [each for each in client.search_runs([experiment.experiment_id]) if SEARCH_TAG in each.data.tags]
        children = client.search_runs([experiment.experiment_id], f"tags.`{PARENT_TAG}` = '{parent.info.run_id}'")
        assert {each.data.tags[mlflow_store.RUN_TAG] for each in children} == {run_of(1).sha256, run_of(2).sha256}
        (best,) = client.get_metric_history(parent.info.run_id, "best/loss")
        assert (best.step, best.value) == (50, 0.3)
        assert parent.data.params["vary.optimizer.lr"] == "[0.1,0.2]" and "search" in str(parent.info.run_name)
        (second,) = [each for each in children if each.data.tags[mlflow_store.RUN_TAG] == run_of(2).sha256]
        assert second.data.params["shards.encoder.vocab_size"] == "512"
        history = client.get_metric_history(second.info.run_id, "ranking/loss")
        assert sorted((point.step, point.value) for point in history) == [(10, 0.4), (40, 0.3)]
        return str(parent.info.status)

    assert searched(is_over=False) == GOES_ON
    assert searched(is_over=True) == "FINISHED"

    # How many train at a time and when it ends decide no proposal.
    again = SPEC.model_copy(update={"max_parallel": 2, "budget": BudgetSpec(steps=500)})
    TrackedSearch(context, again, TrainingSpec(max_steps=40), MANIFEST, uri).log(
        "loss", {"trial 1": TrialFigures(run_of(1), {10: 0.5}, {})}, None, 20, is_over=True
    )

    # Other settings, or other data, are another search.
    other = SPEC.model_copy(update={"seed": 1})
    TrackedSearch(context, other, TrainingSpec(max_steps=40), MANIFEST, uri).log(
        "loss", {"trial 1": TrialFigures(run_of(1), {40: 0.5}, {})}, 0.5, 40, is_over=True
    )
    experiment = client.get_experiment_by_name(pipeline)
    assert experiment is not None
    parents = [each for each in client.search_runs([experiment.experiment_id]) if SEARCH_TAG in each.data.tags]
    assert len(parents) == 2


def test_a_store_that_is_away_is_told_of_once_and_ends_nothing(
    context: RunContext, caplog: pytest.LogCaptureFixture
) -> None:
    tracked = TrackedSearch(context, SPEC, TrainingSpec(max_steps=40), MANIFEST, "sqlite:////nowhere/mlflow.db")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            tracked.log("loss", {"trial 1": TrialFigures(run_of(1), {10: 0.5}, {})}, None, 10, is_over=False)
    (said,) = [each.message for each in caplog.records if "does not show the search" in each.message]
    assert "MLflow does not show the search: " in said
