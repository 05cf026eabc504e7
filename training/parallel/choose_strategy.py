"""Which arrangement a run trains in: replicas, islands, exact shards, a mesh or a pipeline."""

from __future__ import annotations

from typing import cast

from headway.training.config.parallel import mesh_shape
from headway.training.config.training_spec import TrainingSpec
from headway.training.optimizers.groups import Freezing
from headway.training.parallel.strategy import ParallelStrategy
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Recipe


def choose_strategy(recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> ParallelStrategy:
    """The arrangement that the configuration asks for, with fresh weights.

    Raises:
        ConfigError: the recipe or the world does not allow it.
    """
    recipe = cast(Recipe, Freezing(recipe, spec.optimizer))
    if spec.parallel.mode == "exact":
        if mesh_shape(spec.parallel, process_group.world_size).shard > 1:
            from headway.training.parallel.exact_shards import ExactShards

            return ExactShards(recipe, spec, process_group)
        if spec.sync is not None:
            from headway.training.parallel.exact_islands import ExactIslands

            return ExactIslands(recipe, spec, process_group)
        from headway.training.parallel.exact_replicas import ExactReplicas

        return ExactReplicas(recipe, spec, process_group)
    if spec.parallel.pipeline > 1:
        from headway.training.parallel.pipeline_strategy import PipelineStrategy

        return PipelineStrategy(recipe, spec, process_group)
    from headway.training.parallel.mesh_strategy import MeshStrategy

    return MeshStrategy(recipe, spec, process_group)
