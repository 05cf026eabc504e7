"""Every shipped recipe's evaluation counts each target once, where neither blocks nor ranks divide the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.data_contracts.store.digests import canonical_json
from headway.training.config.shapes import DataShape, ImageShape, TabularNumberShape, TabularShape
from headway.training.config.shards import HELDOUT
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.run_documents import data_shape
from headway.training.evaluation.scorers import BLOCK_BYTES, BLOCK_ROWS, RowScorer, score_all
from headway.training.programs.evaluation import merge, part_name, prediction, scorer_of
from headway.training.recipes.built_in import BUILT_IN
from headway.training.recipes.load import load_recipe

NUM_ROWS = 2 * BLOCK_ROWS + 5
WORLDS = (1, 2, 3, 4, 7)
SHAPES: dict[str, DataShape] = {
    "gradient-boosting": TabularShape(num_numeric=2, cardinalities=(4,), num_classes=3),
    "image-classifier": ImageShape(channels=1, height=4, width=4, num_classes=3),
    "tabular-classifier": TabularShape(num_numeric=2, cardinalities=(4,), num_classes=3),
    "tabular-regressor": TabularNumberShape(num_numeric=2, cardinalities=(4,), mean=5.0, deviation=2.0),
}


class Reader:
    """Made-up rows of every kind."""

    split, num_rows, row_bytes = HELDOUT, NUM_ROWS, BLOCK_BYTES // BLOCK_ROWS

    def __init__(self, number_to_predict: bool) -> None:
        draw = np.random.default_rng(3)
        label = (
            draw.normal(size=(NUM_ROWS, 1)).astype(np.float32)
            if number_to_predict
            else draw.integers(3, size=(NUM_ROWS, 1))
        )
        self._columns = {
            "label": label,
            "image": draw.integers(256, size=(NUM_ROWS, 1, 4, 4)).astype(np.uint8),
            "numeric": draw.normal(size=(NUM_ROWS, 2)).astype(np.float32),
            "categorical": draw.integers(4, size=(NUM_ROWS, 1)),
        }

    def gather(self, rows):
        return {name: values[rows] for name, values in self._columns.items()}


def restless(model: torch.nn.Module) -> torch.nn.Module:
    """As after training: no output is the same for all rows."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def merged(scorer, predict, folder, world_size):
    folder.mkdir()
    for rank in range(world_size):
        blocks = score_all(scorer, range(rank, scorer.num_blocks, world_size), predict, on_block=lambda: None)
        part = {"num_blocks": scorer.num_blocks, "blocks": blocks, "baselines": {}}
        (folder / part_name(rank)).write_bytes(canonical_json(part))
    return merge(folder, world_size)


def test_there_is_a_case_for_every_recipe():
    assert {*SHAPES, "language-model"} == set(BUILT_IN)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_rows_are_counted_once_on_any_number_of_ranks(name, tmp_path):
    recipe = load_recipe(name, {}, SHAPES[name])
    torch.manual_seed(0)
    predict = prediction(recipe, restless(recipe.build()))
    reader = Reader(number_to_predict=name == "tabular-regressor")
    alone = predict(reader.gather(np.arange(NUM_ROWS)))
    found = [merged(RowScorer(reader), predict, tmp_path / str(world), world) for world in WORLDS]
    assert all(NUM_ROWS % (world * BLOCK_ROWS) for world in WORLDS)
    for scores in found:
        assert len(scores.examples) == NUM_ROWS == len(set(scores.examples))
        assert set(scores.sums["targets"]) == {1.0}
        for sum_name, values in alone.items():
            np.testing.assert_allclose(scores.sums[sum_name], values[:, 0], rtol=1e-4, atol=1e-6)
            assert scores.sums[sum_name].tolist() == found[0].sums[sum_name].tolist(), "not the same bits"


def test_tokens_are_counted_once_on_any_number_of_ranks(shared_project, tmp_path):
    project = shared_project
    reader = ShardReader(project.workspace, project.manifest, HELDOUT)
    recipe = load_recipe("language-model", {"width": 16, "heads": 2}, data_shape(project.manifest, project.fitted))
    torch.manual_seed(0)
    predict = prediction(recipe, restless(recipe.build()))
    scorer = scorer_of(project.workspace, project.manifest, reader)
    alone = predict(reader.gather(np.arange(reader.num_rows)))
    found = [merged(scorer, predict, tmp_path / str(world), world) for world in WORLDS]
    assert reader.num_rows > BLOCK_ROWS and all(reader.num_rows % (world * BLOCK_ROWS) for world in WORLDS)
    for scores in found:
        assert sum(scores.sums["targets"]) == np.count_nonzero(alone["nats"])
        assert sum(scores.sums["nats"]) == pytest.approx(alone["nats"].sum(), rel=1e-5)
        assert all(values.tolist() == found[0].sums[name].tolist() for name, values in scores.sums.items())
