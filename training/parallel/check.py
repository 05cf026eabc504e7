"""What can be said of a mesh before a rank starts: no torch."""

from __future__ import annotations

from data_contracts.errors import ConfigError
from training.config import TrainingSpec, replicas_per_rank
from training.recipes.built_in import BUILT_IN, model_fields


def require_mesh(spec: TrainingSpec, world_size: int) -> None:
    """Refuse a world that cannot share the batch, make up the mesh, or hold a built-in recipe's model on it.

    A recipe of the user's own is asked by the ranks, before their first step.

    Raises:
        ConfigError: with the arithmetic.
    """
    replicas_per_rank(spec, world_size)
    built_in, parallel = BUILT_IN.get(spec.recipe.name), spec.parallel
    if built_in is None or parallel.tensor == parallel.pipeline == 1:
        return
    fields = model_fields(built_in.spec_type, spec.recipe.model)
    if not hasattr(fields, "require_mesh"):
        raise ConfigError(
            f"{spec.recipe.name} brings no tensor plan and no stages (tensor {parallel.tensor}, "
            f"pipeline {parallel.pipeline}).",
            where="training.parallel",
            advice="Use replicate and shard, which every recipe allows.",
        )
    fields.require_mesh(parallel)
