"""A classifier's examples are its rows: each counted once, on any number of ranks, with the class as its slice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import ShardGroup
from headway.training.config.shapes import ImageShape, TabularShape
from headway.training.evaluation.baselines import prior_of
from headway.training.evaluation.measures import CLASSES
from headway.training.evaluation.scorers import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    MAX_BLOCK_ROWS,
    Measured,
    RowScorer,
    documents_of,
    folder_of,
    score_all,
)
from headway.training.programs.evaluation import merge, part_name, prediction
from headway.training.recipes.load import load_recipe

NUM_ROWS = 2 * BLOCK_ROWS + 5


class Reader:
    """Rows whose class is their number modulo 3."""

    split = "heldout"
    num_rows = NUM_ROWS
    row_bytes = BLOCK_BYTES // BLOCK_ROWS

    def gather(self, rows):
        return {"label": (rows[:, None] % 3).astype(np.int32), "features": rows[:, None].astype(np.float32)}


def first_guess(columns) -> Measured:
    """Sure of class 0, at a price that differs from row to row."""
    return {"nats": columns["features"].astype(np.float64) / 7, "correct": (columns["label"] == 0).astype(float)}


def merged(folder, world_size):
    scorer = RowScorer(Reader())
    folder.mkdir()
    prior = prior_of(np.array([[0], [0], [1]]), np.arange(NUM_ROWS)[:, None] % 3)
    for rank in range(world_size):
        blocks = score_all(scorer, range(rank, scorer.num_blocks, world_size), first_guess, on_block=lambda: None)
        baselines = score_all(scorer, range(scorer.num_blocks), prior, on_block=lambda: None)
        part = {"num_blocks": scorer.num_blocks, "blocks": blocks}
        part["baselines"] = {"class prior": baselines} if rank == 0 else {}
        (folder / part_name(rank)).write_bytes(canonical_json(part))
    return merge(folder, world_size)


@pytest.mark.parametrize(
    ("row_bytes", "expected"), [(1, MAX_BLOCK_ROWS), (528, BLOCK_BYTES // 528), (150_528, BLOCK_ROWS)]
)
def test_small_rows_are_scored_many_at_a_time_and_large_ones_by_few(row_bytes, expected):
    reader = Reader()
    reader.row_bytes, reader.num_rows = row_bytes, 3 * MAX_BLOCK_ROWS
    scorer = RowScorer(reader)
    assert scorer.block_rows == len(scorer.score(0, first_guess)["examples"]) == expected
    names = [name for block in range(scorer.num_blocks) for name in scorer.score(block, first_guess)["examples"]]
    assert names == [f"row {row:09d}" for row in range(reader.num_rows)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_row_is_an_example_of_its_own_on_any_number_of_ranks(tmp_path, world_size):
    scores = merged(tmp_path / "scores", world_size)
    assert len(scores.examples) == NUM_ROWS == len(set(scores.examples))
    assert scores.sums["nats"].tolist() == (np.arange(NUM_ROWS, dtype=np.float32).astype(np.float64) / 7).tolist()
    assert scores.sums["correct"].tolist() == [float(row % 3 == 0) for row in range(NUM_ROWS)]
    assert scores.slices == tuple(f"class {row % 3}" for row in range(NUM_ROWS))
    assert set(scores.sums["targets"]) == {1.0}


def test_a_slice_is_named_as_the_source_names_its_class_and_two_classes_never_share_a_name():
    classes = ("yes", "x" * 70 + "1", "x" * 70 + "2")
    slices = RowScorer(Reader(), classes).score(0, first_guess)["slices"]
    assert slices[0] == "class yes" and slices[1].startswith("class xxxx") and slices[:3] == slices[3:6]
    assert len(set(slices)) == 3 and all(len(name) < 100 for name in slices)


def test_the_class_prior_is_scored_on_the_same_rows(tmp_path):
    scores = merged(tmp_path / "scores", 1)
    log_loss, accuracy = CLASSES.measures
    share = {0: 3 / 6, 1: 2 / 6, 2: 1 / 6}
    expected = [-np.log(share[row % 3]) for row in range(NUM_ROWS)]
    assert log_loss.value(scores.baselines["class prior"]) == pytest.approx(np.mean(expected))
    assert accuracy.value(scores.baselines["class prior"]) == np.mean([row % 3 == 0 for row in range(NUM_ROWS)])


@pytest.mark.parametrize("name", ["image-classifier", "tabular-classifier"])
def test_a_classifiers_recipe_measures_what_the_yardstick_asks_for(name):
    torch.manual_seed(0)
    columns = {
        "label": np.arange(5)[:, None] % 3,
        "image": np.zeros((5, 1, 4, 4), dtype=np.uint8),
        "numeric": np.ones((5, 2), dtype=np.float32),
    }
    shapes = {
        "image-classifier": ImageShape(channels=1, height=4, width=4, num_classes=3),
        "tabular-classifier": TabularShape(num_numeric=2, cardinalities=(), num_classes=3),
    }
    recipe = load_recipe(name, {}, shapes[name])
    measured = prediction(recipe, recipe.build().eval())(columns)
    assert {measure.numerator for measure in CLASSES.measures} == set(measured)
    assert {values.shape for values in measured.values()} == {(5, 1)}


def test_documents_that_share_a_file_are_told_apart_by_their_number():
    group = ShardGroup(
        group=0, split="heldout", num_rows=1, num_samples=3, documents=("a.txt", "b.parquet", "c"), shards=(),
        samples_by_document=(1, 2, 0),
    )  # fmt: skip
    names = [document.name for document in documents_of(group)]
    assert names == ["a.txt", "b.parquet #000000000", "b.parquet #000000001"]
    assert [document.path for document in documents_of(group)] == ["a.txt", "b.parquet", "b.parquet"]


def test_a_documents_slice_is_its_top_level_folder():
    assert [folder_of(path) for path in ("a/b/c.py", "a/d.py", "e.py")] == ["a/", "a/", "(top level)"]
