"""What can be said of a model on its data and its mesh before a rank starts, all of it at once: no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.encoder_specs import EncoderSpec, ImageEncoderSpec, TokenSpec
from headway.training.config.recipe_specs import ImageClassifierSpec, LanguageModelSpec
from headway.training.config.training_spec import TrainingSpec, replicas_per_rank
from headway.training.data.encode.data_shape import token_shape
from headway.training.recipes.built_in import BUILT_IN, BuiltIn, model_fields


def require_trainable(spec: TrainingSpec, encoder: EncoderSpec, world_size: int, methods: set[str] | None) -> None:
    """Refuse, in one message, what ranks would refuse one by one: a world, a mesh or data that the recipe cannot take.

    Args:
        methods: what a recipe of the user's own defines; None where that cannot be read.

    Raises:
        ConfigError: with the arithmetic of every problem.
    """
    # All problems at once: each found by itself would cost another start.
    problems = [*_caught(lambda: replicas_per_rank(spec, world_size)), *_model_problems(spec, encoder, methods)]
    if len(problems) == 1:
        raise problems[0]
    if problems:
        message = " ".join(f"({number}) {problem}" for number, problem in enumerate(problems, start=1))
        raise ConfigError(f"{len(problems)} things cannot work.", where="training", advice=message)


def _model_problems(spec: TrainingSpec, encoder: EncoderSpec, methods: set[str] | None) -> Iterator[ConfigError]:
    built_in = BUILT_IN.get(spec.recipe.name)
    if built_in is None:
        if methods is not None:
            yield from _unsharded(spec, methods)
        return
    if not built_in.reads(encoder):
        others = [name for name, other in BUILT_IN.items() if other.reads(encoder)]
        yield ConfigError(
            f"the recipe {spec.recipe.name} does not read what the encoder {encoder.kind} makes.",
            where="training.recipe.name",
            advice=f"Use {' or '.join(others)}, or another shards.encoder.",
        )
        # With data that it cannot read, its other problems mean nothing.
        return
    yield from _built_in_problems(spec, encoder, built_in)


def _built_in_problems(spec: TrainingSpec, encoder: EncoderSpec, built_in: BuiltIn) -> Iterator[ConfigError]:
    fields = model_fields(built_in.spec_type, spec.recipe.model)
    if spec.grows_trees:
        yield from _tree_problems(spec)
        return
    if isinstance(fields, LanguageModelSpec) and isinstance(encoder, TokenSpec):
        yield from fields.mesh_problems(spec.parallel, token_shape(encoder))
        return
    if isinstance(fields, ImageClassifierSpec) and isinstance(encoder, ImageEncoderSpec):
        _, height, width = encoder.payload_shape
        yield from _caught(lambda: fields.require_size(height, width))
    yield from _unsharded(spec, set())


OF_NETWORKS = (
    *("optimizer", "schedule", "precision", "loss_scale", "gradient_compression", "compile", "parallel"),
    *("max_epochs", "global_batch_sequences", "micro_batch_sequences", "order", "start_from", "profile"),
)
"""Fields of training that mean nothing to trees."""


def _tree_problems(spec: TrainingSpec) -> Iterator[ConfigError]:
    """What is asked of trees that only networks do."""
    default = TrainingSpec()
    if told := [name for name in OF_NETWORKS if getattr(spec, name) != getattr(default, name)]:
        yield ConfigError(
            f"{spec.recipe.name} has no use for {', '.join(told)}: trees are grown of all rows, and no "
            "gradient moves them.",
            where=f"training.{told[0]}",
            advice="Leave that out; the fields of trees are those of `recipe.model`.",
        )


def _unsharded(spec: TrainingSpec, methods: set[str]) -> Iterator[ConfigError]:
    """Why a recipe with these methods cannot be split over tensor-parallel ranks or pipeline stages."""
    needed = {
        "tensor": (spec.parallel.tensor, ("tensor_plan",)),
        "pipeline": (spec.parallel.pipeline, ("stages", "inputs")),
    }
    for dimension, (size, names) in needed.items():
        if size > 1 and (missing := [name for name in names if name not in methods]):
            yield ConfigError(
                f"{spec.recipe.name} brings no {' and no '.join(missing)}, which {dimension} {size} needs.",
                where=f"training.parallel.{dimension}",
                advice="Use replicate and shard, which every recipe allows.",
            )


def _caught(check: Callable[[], Any]) -> Iterator[ConfigError]:
    try:
        check()
    except ConfigError as problem:
        yield problem
