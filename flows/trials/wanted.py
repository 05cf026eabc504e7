"""Which trials a pipeline file asks for, and what they cost in steps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.report_text import count
from headway.flows.config.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from headway.flows.console.environment import project_folder
from headway.tasks.search.configuration import require_same_examples
from headway.tasks.search.earlier_trials import read_earlier
from headway.tasks.search.rungs import AttemptPace, num_at_each, planned_steps
from headway.tasks.search.trials_spec import Trial, TrialsSpec
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.config.shards import ShardSpec
from headway.training.frozen.mesh_check import require_trainable
from headway.training.frozen.recipe_check import own_methods

OF_THE_DATA = "Compare settings of `training` and of the encoder; `headway ci --full` judges a change of the data."
EXAMPLE = "trials: {vary: {optimizer.lr: {log_uniform: [0.001, 0.1]}}, draws: 8}"


def wanted_trials(pipeline: PipelineSpec) -> TrialsSpec:
    """Raises `ConfigError`: the file asks for none."""
    if pipeline.trials is None:
        raise ConfigError(
            "the pipeline file has no trials.", where=pipeline.pipeline, advice=f"Say what varies: `{EXAMPLE}`."
        )
    return pipeline.trials


def comparable_pipeline(pipeline: PipelineSpec, against: str) -> tuple[Path, PipelineSpec]:
    """The file that a pipeline's settings are held against, and what it says.

    Args:
        against: a path, or the name of one in the folder deployments.

    Raises:
        ConfigError: it cannot be read; no examples are reserved for ranking; or both would not be trained on the same
            rows, by the same ranks, from the same start.
    """
    path = find_pipeline_file(against, project_folder())
    other = load_pipeline(path)
    require_comparable(pipeline, other, path)
    return path, other


def require_comparable(pipeline: PipelineSpec, other: PipelineSpec, path: Path) -> None:
    """As `comparable_pipeline`, of a file that was read."""
    if not pipeline.evaluation.ranking_share:
        raise ConfigError(
            "settings are compared on held-out examples that judge nothing else, and none are reserved.",
            where=f"{pipeline.pipeline}: evaluation.ranking_share",
            advice="Say which share, such as `evaluation: {ranking_share: 0.5}`.",
        )
    if pipeline.source != other.source:
        raise ConfigError(
            "its `source` differs, so both would not be trained and scored on the same rows.",
            where=str(path),
            advice=OF_THE_DATA,
        )
    if pipeline.shards.identity != other.shards.identity:
        _require_comparable_shards(pipeline.shards, other.shards, path)
    if pipeline.training.start_from is not None or other.training.start_from is not None:
        raise ConfigError(
            "training starts from a registered model, which may be another one by the next run.",
            where=f"{pipeline.pipeline}: training.start_from",
            advice="Compare settings from no start, or judge the change by `headway ci --full`.",
        )
    try:
        methods = own_methods(other.training.recipe.name, (str(path.parent),))
        require_trainable(other.training, other.shards.encoder, pipeline.launch.world_size, methods)
    except ConfigError as error:
        ranks = count(pipeline.launch.world_size, "rank")
        raise ConfigError(
            f"its training is none for {ranks}, which both would be trained by: {error.what}",
            where=str(path),
            advice=error.advice,
        ) from error


def _require_comparable_shards(ours: ShardSpec, theirs: ShardSpec, path: Path) -> None:
    if isinstance(theirs.encoder, CustomEncoderSpec):
        raise ConfigError(
            "its `shards` differs, and has an encoder whose code may lie elsewhere than the pipeline's.",
            where=f"{path}: shards.encoder",
            advice=OF_THE_DATA,
        )
    try:
        require_same_examples(ours, theirs)
    except ConfigError as error:
        raise ConfigError(
            f"its `shards` differs so that both would not be scored on the same examples: {error.what}",
            where=f"{path}: {error.where}",
            advice=OF_THE_DATA,
        ) from error


class SearchPlan(NamedTuple):
    """What a search would do, before anything is scored."""

    drawn: tuple[Trial, ...]
    """Those that no score decides."""
    num_trials: int
    """In all rounds, at most."""
    rounds: int
    levels: tuple[int, ...]
    """Steps at which trials are compared; empty: passes over rows are counted once the shards are there."""
    num_at_each: tuple[int, ...]
    """Trials of a round that come to each of them."""
    num_steps: int | None
    """To be trained, where none fails and none was trained before; None: not known yet."""
    num_steps_of_all: int | None
    """Were each of them trained to its end."""
    num_other_seeds: int = 0
    """With which the best two are trained besides."""
    warm_start: str = ""
    """Which earlier trials propose the first round; empty: none, and draws are it."""
    num_shards: int = 0
    """Settings of shards, other than the file's, that those of `drawn` have: what sharding and fitting is done for."""
    budget: str = ""
    """What it may spend; empty: nothing bounds it."""
    expected_s: float | None = None
    """What training takes where trials take turns, other seeds of finalists included; None: nobody knows."""


def plan_of(pipeline: PipelineSpec, folder: Path, pace: AttemptPace | None = None) -> SearchPlan:
    """
    Args:
        folder: of the pipeline file.
        pace: what starts and steps took in the pipeline's last run.

    Raises:
        ConfigError: as `TrialsSpec.drawn` and `read_earlier`, and where the file asks for no trials.
    """
    spec = wanted_trials(pipeline)
    plan = _drawn_plan(pipeline, spec)
    others = {trial.shards.model_dump_json() for trial in plan.drawn if trial.shards != pipeline.shards}
    plan = plan._replace(num_shards=len(others), budget="" if spec.budget is None else str(spec.budget))
    if pace is not None and plan.num_steps is not None:
        more = 2 * plan.num_other_seeds
        num_starts = plan.rounds * sum(plan.num_at_each) + more
        num_steps = plan.num_steps + more * plan.levels[-1]
        plan = plan._replace(expected_s=num_starts * pace.start_s + num_steps * pace.step_s)
    if spec.warm_start is None:
        return plan
    earlier = read_earlier(folder / spec.warm_start, spec.space, pipeline.training.max_steps)
    # Today's data are not taken yet.
    return plan._replace(drawn=(), warm_start=earlier.on(pipeline.pipeline), num_shards=0)


def _drawn_plan(pipeline: PipelineSpec, spec: TrialsSpec) -> SearchPlan:
    drawn = spec.drawn(pipeline.configuration)
    per_round = spec.draws or len(drawn)
    num_trials = max(len(drawn), per_round * spec.rounds) if spec.is_learning else len(drawn)
    others = spec.finalist_seeds - 1
    if pipeline.training.max_epochs is not None or pipeline.training.grows_trees:
        return SearchPlan(drawn, num_trials, spec.rounds, (), (), None, None, others)
    levels = spec.levels_of(pipeline.training)
    of_rounds = [min(per_round, num_trials - first) for first in range(0, num_trials, per_round)]
    if len(levels) == 1:
        each = pipeline.training.max_steps
        steps = sum(trial.training.max_steps for trial in drawn) + (num_trials - len(drawn)) * each
        return SearchPlan(drawn, num_trials, len(of_rounds), levels, (per_round,), steps, steps, others)
    costs = list(itertools.accumulate(planned_steps(num, levels) for num in of_rounds))
    # Rounds that a budget leaves out: the first has been looked at.
    most = None if spec.budget is None else spec.budget.steps
    num_rounds = max(1, sum(most is None or cost <= most for cost in costs))
    of_rounds, spent = of_rounds[:num_rounds], costs[num_rounds - 1]
    num_trials = sum(of_rounds)
    at_each = tuple(num_at_each(per_round, levels))
    of_all = num_trials * levels[-1]
    return SearchPlan(drawn[:num_trials], num_trials, num_rounds, levels, at_each, spent, of_all, others)
