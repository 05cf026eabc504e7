"""What is trained where two settings are compared: both alike but for what is in question."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import TrainingFailed
from headway.tasks.core.context import RunContext
from headway.tasks.core.devices import UnlimitedDevices
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.search.configuration import Configuration
from headway.tasks.stages import settings_comparison as module
from headway.tasks.stages import trial_shards
from headway.tasks.stages.trial_scores import PlannedTrial, Scoring, TrialResult
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.recipe_specs import GRADIENT_BOOSTING
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec

NUM_ROWS = 100


class Machine:
    """Describes and trains as the stages do, but for the work."""

    def __init__(self, fails: set[tuple[int, int]] | None = None, same_code: bool = True) -> None:
        self.fails, self.same_code = fails or set(), same_code
        self.described: list[PlannedTrial] = []
        self.folders: list[Path] = []
        self.trained: list[tuple[int, int]] = []
        self.compared: list[Any] = []
        self.at_once: int | None = None
        self.remembered: list[str] = []

    def describe(self, context: Any, trials: Any, manifest: Any) -> list[PlannedTrial]:
        self.folders.append(context.base)
        made = []
        for each in trials:
            code = "" if self.same_code else str(context.base)
            key = sha256_of({"training": each.training.model_dump(mode="json"), "code": code})
            made.append(PlannedTrial(each, SimpleNamespace(run=None), Link(kind="run", sha256=key)))  # type: ignore[arg-type]
        self.described += made
        return made

    def train(self, context: Any, planned: Any, spec: Any, uri: str, at_once: int, by: Any, room: Any) -> Any:
        self.at_once = at_once
        results = []
        for each in planned:
            number = (each.trial.number, each.trial.training.seed)
            self.trained.append(number)
            error = TrainingFailed("it diverged") if number in self.fails else None
            results.append(TrialResult(planned=each, error=error))
        return results

    def remember(self, context: Any, share: float, shards: Any, columns: Any) -> None:
        self.remembered.append(context.pipeline)

    def compare(self, context: Any, scoring: Any, *sides: Any) -> Any:
        self.compared = [[(each.trial.number, each.trial.training.seed) for each in side] for side in sides]
        return SimpleNamespace(is_decided=False, keeps_second=False)

    def __call__(
        self,
        this: TrainingSpec,
        other: TrainingSpec,
        num_seeds: int = 2,
        at_most: int | None = None,
        others_pipeline: str = "tiny",
    ) -> Any:
        context = RunContext.__new__(RunContext)
        for name, value in {"base": Path("here"), "pipeline": "tiny", "devices": UnlimitedDevices()}.items():
            object.__setattr__(context, name, value)
        launch: Any = SimpleNamespace(world_size=1, is_detached=True)
        shards = ShardSpec()
        nothing: Any = None
        scoring = Scoring(evaluation=EvaluationSpec(ranking_share=0.5), launch=launch, shards=shards, source=nothing)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "describe_trials", self.describe)
            patch.setattr(module, "train_trials", self.train)
            patch.setattr(module, "rank_trials", lambda context, scoring, results: results)
            patch.setattr(module, "compare_finalists", self.compare)
            patch.setattr(module, "replace", lambda context, **fields: SimpleNamespace(**fields))
            patch.setattr(module, "remember_ranking", self.remember)
            patch.setattr(module, "columns_of", lambda context, manifest: {})
            patch.setattr(trial_shards, "num_training_rows", lambda context, manifest: NUM_ROWS)
            patch.setattr(trial_shards, "require_trainable", lambda *arguments: None)
            one, two = (Configuration(training=each, shards=shards) for each in (this, other))
            return module.compare_settings(
                context, one, two, Path("there"), others_pipeline, num_seeds, scoring, nothing, "", at_most
            )


THIS = TrainingSpec(seed=7, max_steps=20)
OTHER = TrainingSpec(seed=3, max_steps=20, optimizer=OptimizerSpec(lr=0.5))


def test_both_train_with_the_seeds_of_the_one_in_question_by_pairs_each_on_its_own_code() -> None:
    machine = Machine()
    found = machine(THIS, OTHER, num_seeds=3, at_most=2)
    assert machine.folders == [Path("here"), Path("there")] and machine.at_once == 2
    assert machine.trained == [(1, 7), (2, 7), (1, 8), (2, 8), (1, 9), (2, 9)]
    assert machine.compared == [[(1, 7), (1, 8), (1, 9)], [(2, 7), (2, 8), (2, 9)]]
    assert found.settings == ({"optimizer.lr": THIS.optimizer.lr}, {"optimizer.lr": 0.5})
    assert not (found.is_same or found.is_better or found.is_worse)


def test_passes_over_rows_and_trees_train_as_long_as_a_retrain_does() -> None:
    epochs = TrainingSpec(max_epochs=2, global_batch_sequences=8)
    trees = TrainingSpec(recipe=RecipeSpec(name=GRADIENT_BOOSTING, model={"iterations": 30}))
    for training in (epochs, trees):
        machine = Machine()
        machine(training, training.model_copy(update={"optimizer": OptimizerSpec(lr=0.5)}))
        steps = {each.trial.training.max_steps for each in machine.described}
        assert steps == {training.for_rows(NUM_ROWS).max_steps} != {training.max_steps}


def test_under_the_name_of_another_pipeline_judges_nothing_either_that_chose_its_settings() -> None:
    of_its_own, of_another, same = Machine(), Machine(), Machine()
    of_its_own(THIS, OTHER)
    of_another(THIS, OTHER, others_pipeline="wide")
    same(THIS, THIS, others_pipeline="wide")
    assert (of_its_own.remembered, of_another.remembered, same.remembered) == ([], ["wide"], [])


@pytest.mark.parametrize("same_code", [True, False])
def test_nothing_is_trained_where_nothing_differs_and_code_of_ones_own_is_a_difference(same_code: bool) -> None:
    machine = Machine(same_code=same_code)
    found = machine(THIS, THIS.model_copy(update={"seed": 1}))
    assert found.is_same is same_code and bool(machine.trained) is not same_code
    assert found.settings == ({}, {})


@pytest.mark.parametrize(
    ("fails", "is_better", "is_worse", "is_compared"),
    [
        ({(1, 7), (1, 8)}, False, True, False),
        ({(2, 7), (2, 8)}, True, False, False),
        ({(1, 7), (2, 8)}, False, False, False),
        ({(1, 7)}, False, False, True),
    ],
)
def test_failures_count_for_the_other_side_and_pairs_that_are_left_are_compared(
    fails: set[tuple[int, int]], is_better: bool, is_worse: bool, is_compared: bool
) -> None:
    machine = Machine(fails)
    found = machine(THIS, OTHER)
    assert (found.is_better, found.is_worse, bool(machine.compared)) == (is_better, is_worse, is_compared)


def test_where_all_fail_so_does_the_comparison() -> None:
    with pytest.raises(TrainingFailed, match="all 4 trials failed"):
        Machine({(1, 7), (1, 8), (2, 7), (2, 8)})(THIS, OTHER)


def test_what_differs_is_said_as_json_has_it() -> None:
    of_width = (TrainingSpec(recipe=RecipeSpec(model={"width": width})) for width in (1, True))
    one, other = (Configuration(training=each, shards=ShardSpec()) for each in of_width)
    assert [dict(each) for each in module.differing(one, other)] == [
        *({"recipe.model.width": width} for width in (1, True))
    ]
    longer = one.with_settings({"shards.encoder.sequence_tokens": 64})
    sides = module.differing(one, longer)
    assert sides == ({"shards.encoder.sequence_tokens": 256}, {"shards.encoder.sequence_tokens": 64})
