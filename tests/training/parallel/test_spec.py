"""Meshes: impossible ones are refused with the arithmetic in the message, before anything is spent."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.pipeline_spec import load_pipeline
from headway.training.config.encoder_specs import BytePairSpec, EncoderSpec, ImageEncoderSpec
from headway.training.config.parallel import MeshShape, ParallelSpec, mesh_shape
from headway.training.config.training_spec import RecipeSpec, TrainingSpec, batch_line, replicas_per_rank
from headway.training.frozen.mesh_check import require_trainable
from headway.training.parallel.pipeline_strategy import Pass, passes

ODD = BytePairSpec(vocab_size=301, sequence_tokens=31)


def fast(**dimensions) -> ParallelSpec:
    return ParallelSpec(mode="fast", **dimensions)


def require(spec: TrainingSpec, encoder: EncoderSpec = ODD, methods: set[str] | None = None) -> None:
    require_trainable(spec, encoder, 4, methods)


@pytest.mark.parametrize(
    ("dimensions", "world_size", "shape"),
    [
        ({}, 1, (1, 1, 1, 1)),
        ({}, 4, (1, 4, 1, 1)),
        ({"shard": 2}, 8, (1, 4, 2, 1)),
        ({"shard": -1, "replicate": 1}, 6, (1, 1, 6, 1)),
        ({"pipeline": 2, "tensor": 2}, 8, (2, 2, 1, 2)),
        ({"pipeline": 2, "replicate": 1, "shard": 2, "tensor": 2}, 8, (2, 1, 2, 2)),
    ],
)
def test_what_is_left_of_the_world_is_filled(dimensions, world_size, shape):
    assert mesh_shape(fast(**dimensions), world_size) == MeshShape(*shape)


@pytest.mark.parametrize(
    ("dimensions", "world_size", "problem"),
    [
        ({"shard": 3}, 4, r"pipeline 1 x shard 3 x tensor 1 = 3 ranks, and the world has 4.*a multiple of 3"),
        ({"replicate": 2, "shard": 2}, 8, r"replicate 2 x shard 2 x tensor 1 = 4 ranks, and the world has 8.*Start 4 "),
        ({"tensor": 4}, 2, r"tensor 4 = 4 ranks, and the world has 2"),
    ],
)
def test_a_mesh_that_is_not_the_world_is_refused_with_the_product(dimensions, world_size, problem):
    with pytest.raises(ConfigError, match=problem):
        mesh_shape(fast(**dimensions), world_size)


def test_exact_mode_replicates_or_shards_and_names_other_dimensions_that_it_was_given():
    assert ParallelSpec(mode="exact", tensor=1) == ParallelSpec()
    with pytest.raises(ValidationError, match="recompute, tensor: only in mode `fast`"):
        ParallelSpec(tensor=2, shard=2, recompute=True)
    assert mesh_shape(ParallelSpec(replicate=1, shard=-1), 4) == MeshShape(1, 1, 4, 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"optimizer": {"implementation": "fused"}}, "fused rounds a tensor's last elements .* takes foreach there"),
        (
            {"optimizer": {"implementation": "foreach"}, "compile": True},
            "compile: in mode `exact` only without `shard`",
        ),
    ],
)
def test_exact_mode_refuses_to_shard_with_what_the_number_of_ranks_would_decide(changes, problem):
    for parallel in (ParallelSpec(replicate=1, shard=-1), ParallelSpec(shard=2)):
        with pytest.raises(ValidationError, match=problem):
            TrainingSpec.model_validate({"parallel": parallel, **changes})
        TrainingSpec.model_validate({"parallel": parallel.model_copy(update={"mode": "fast"}), **changes})


@pytest.mark.parametrize(
    ("dimensions", "problem"),
    [
        ({"shard": -1}, "replicate and shard cannot both take what is left"),
        ({"replicate": 0}, "replicate 0 is no number of ranks"),
        ({"tensor": 0}, "greater than 0"),
    ],
)
def test_a_dimension_that_is_no_number_of_ranks_is_refused(dimensions, problem):
    with pytest.raises(ValidationError, match=problem):
        fast(**dimensions)


def spec(batch: int = 24, micro: int = 2, **dimensions) -> TrainingSpec:
    return TrainingSpec(global_batch_sequences=batch, micro_batch_sequences=micro, parallel=fast(**dimensions))


def test_ranks_that_split_a_model_share_their_rows():
    assert replicas_per_rank(spec(), 3) == 4
    assert replicas_per_rank(spec(tensor=2), 6) == 4
    assert replicas_per_rank(spec(pipeline=2, shard=2), 4) == 6


def test_fewer_micro_batches_than_stages_are_refused_with_the_arithmetic():
    with pytest.raises(ConfigError, match=r"4 pipeline stages .* a step has 3 \(global batch 24 / micro batch 4 / 2 "):
        replicas_per_rank(spec(micro=4, pipeline=4), 8)


def test_exact_mode_shares_its_replicas_among_slices_too():
    exact = spec(batch=16).model_copy(update={"parallel": ParallelSpec(shard=2)})
    assert replicas_per_rank(exact, 4) == 2
    line = batch_line(exact, world_size=4, context_tokens=10)
    assert line.endswith("x 4 ranks x 2 accumulation = 160   (replicate 2 x shard 2)")
    with pytest.raises(ConfigError, match=r"6 ranks cannot share 8 replicas .* Start 1 or 2 or 4 or 8 ranks"):
        replicas_per_rank(exact, 6)


def test_shares_that_do_not_divide_the_batch_are_refused_with_worlds_that_would_work():
    with pytest.raises(ConfigError, match=r"10 ranks cannot share 12 replicas .* Start 2 or 4 or 6 or 8 or 12 or 24 "):
        replicas_per_rank(spec(tensor=2), 10)


def test_the_batch_line_adds_up_on_every_mesh():
    assert batch_line(spec(), world_size=3, context_tokens=10).startswith(
        "tokens/step  2 micro x 10 seq x 3 ranks x 4 accumulation = 240   (replicate 3)"
    )
    line = batch_line(spec(pipeline=2, shard=2, tensor=2), world_size=8, context_tokens=10)
    assert line == (
        "tokens/step  2 micro x 10 seq x 2 groups of 4 x 6 accumulation = 240   (pipeline 2 x shard 2 x tensor 2)"
    )


@pytest.mark.parametrize(
    ("model", "dimensions", "problem"),
    [
        ({"heads": 6, "width": 24}, {"tensor": 4}, "6 heads do not divide by tensor 4"),
        ({"heads": 4, "width": 16, "hidden": 50}, {"tensor": 4}, "hidden 50 .* makes 2 groups, which do not divide"),
        (
            {},
            {"tensor": 2},
            r"301 tokens of vocabulary do not divide by tensor 2: 301 % 2 = 1\. Lower .*vocab_size by 1",
        ),
        ({}, {"tensor": 2}, "31 tokens of context do not divide by tensor 2: 31 % 2 = 1"),
        ({"depth": 3}, {"pipeline": 4}, "3 blocks are fewer than 4 pipeline stages"),
        ({"depth": 4, "tied_embeddings": True}, {"pipeline": 2}, "tied embedding would lie in the first and the last"),
    ],
)
def test_a_language_model_that_cannot_be_laid_over_the_mesh_is_refused_with_the_numbers(model, dimensions, problem):
    recipe = RecipeSpec(name="language-model", model=model)
    with pytest.raises(ConfigError, match=problem):
        require(spec().model_copy(update={"recipe": recipe, "parallel": fast(**dimensions)}))


def test_all_that_cannot_work_is_told_at_once():
    recipe = RecipeSpec(name="language-model", model={"heads": 1, "tied_embeddings": True})
    with pytest.raises(ConfigError) as refused:
        require(spec().model_copy(update={"recipe": recipe, "parallel": fast(tensor=2, pipeline=4)}))
    message = str(refused.value)
    parts = ("the world has 4", "1 heads", "301 tokens", "31 tokens", "2 blocks are fewer than 4", "tied embedding")
    assert all(part in message for part in parts), message
    assert message.startswith("training: 7 things cannot work.")


def test_a_recipe_of_ones_own_is_held_to_what_its_class_defines():
    training = spec().model_copy(update={"recipe": RecipeSpec(name="mine:Own"), "parallel": fast(tensor=2, pipeline=2)})
    with pytest.raises(ConfigError, match=r"mine:Own brings no tensor_plan.*no inputs, which pipeline 2 needs"):
        require(training, methods={"build", "stages"})
    require(training, methods={"tensor_plan", "stages", "inputs"})
    require(training, methods=None)


def test_a_recipe_that_does_not_read_what_the_encoder_makes_is_refused_with_those_that_do():
    training = spec().model_copy(update={"recipe": RecipeSpec(name="image-classifier"), "parallel": fast()})
    with pytest.raises(ConfigError, match=r"does not read what the encoder byte-pair makes.*Use language-model"):
        require(training)
    too_deep = spec().model_copy(update={"recipe": RecipeSpec(name="image-classifier", model={"stages": 4})})
    with pytest.raises(ConfigError, match=r"images of 8 x 8 cannot be halved 4 times: 8 < 2\^4\. Use at most 3"):
        require(too_deep, ImageEncoderSpec(pixels=("picture",), shape=(8, 8)))


def test_a_recipe_without_a_plan_is_refused_where_one_is_needed_and_welcome_elsewhere():
    training = spec().model_copy(update={"recipe": RecipeSpec(name="image-classifier")})
    pictures = ImageEncoderSpec(pixels=("picture",), shape=(8, 8))
    require(training.model_copy(update={"parallel": fast(shard=2)}), pictures)
    with pytest.raises(ConfigError, match=r"image-classifier brings no tensor_plan, .*replicate and shard"):
        require(training.model_copy(update={"parallel": fast(tensor=2)}), pictures)


def test_a_pipeline_file_with_an_impossible_mesh_is_refused_when_it_is_read(tmp_path):
    path = Path(__file__).parents[3] / "deployments" / "stdlib-lm.yaml"
    text = path.read_text() + "\n"
    assert "training:\n" in text
    changed = tmp_path / "pipeline.yaml"
    changed.write_text(text.replace("training:\n", "training:\n  parallel: {mode: fast, tensor: 3}\n"))
    with pytest.raises(ConfigError, match=r"tensor 3 = 3 ranks, and the world has"):
        load_pipeline(changed)


def test_schedules_run_every_micro_batch_forth_and_back_and_hold_few():
    for kind, stages, count in product(("gpipe", "1f1b"), (1, 2, 4), (4, 5, 8)):
        for stage in range(stages):
            order = list(passes(kind, num_micro_batches=count, stage=stage, num_stages=stages))
            assert sorted(order) == sorted(Pass(way, index) for way in (True, False) for index in range(count))
            held = [sum(1 if done.is_forward else -1 for done in order[: end + 1]) for end in range(len(order))]
            assert min(held) >= 0
            assert max(held) == (count if kind == "gpipe" else min(count, stages - stage))
