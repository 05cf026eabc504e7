"""What a model said of each row: seen while it is measured, whole on any number of ranks, and within bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from headway.training.config.shapes import TabularShape
from headway.training.evaluation import outputs as kept
from headway.training.evaluation.continuations import continuations
from headway.training.evaluation.importance import num_rows_for, permutation_importance
from headway.training.evaluation.outputs import OutputCapture, Outputs, joined, stride_of
from headway.training.evaluation.scorers import BLOCK_BYTES, BLOCK_ROWS, RowScorer, score_all
from headway.training.programs.evaluation import prediction
from headway.training.recipes.load import load_recipe

NUM_ROWS = 2 * BLOCK_ROWS + 5
SHAPE = TabularShape(num_numeric=2, cardinalities=(), num_classes=3)


class Reader:
    split = "heldout"
    num_rows = NUM_ROWS
    row_bytes = BLOCK_BYTES // BLOCK_ROWS

    def gather(self, rows):
        numeric = np.stack((rows / NUM_ROWS, (rows * 7 % 11) / 11), axis=1)
        return {"label": (rows[:, None] % 3).astype(np.int32), "numeric": numeric.astype(np.float32)}


def classifier():
    torch.manual_seed(0)
    recipe = load_recipe("tabular-classifier", {"width": 8, "depth": 1}, SHAPE)
    model = recipe.build()
    nn.init.normal_(model.head.weight)
    return recipe, model.eval()


def captured(world_size: int, stride: int = 1):
    recipe, model = classifier()
    parts = []
    for rank in range(world_size):
        scorer = RowScorer(Reader())
        capture = OutputCapture(prediction(recipe, model), model, 3, scorer.block_rows, stride)
        own = range(rank, scorer.num_blocks, world_size)
        score_all(scorer, own, capture.predict, on_block=lambda: None, of_block=capture.of_block)
        assert capture.reason == ""
        parts.append(capture.tensors())
    return joined(parts)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_outputs_are_those_of_the_model_row_by_row_on_any_number_of_ranks(world_size):
    found = captured(world_size)
    _, model = classifier()
    with torch.inference_mode():
        expected = torch.softmax(model(torch.from_numpy(Reader().gather(np.arange(NUM_ROWS))["numeric"])), dim=1)
    assert found.label.tolist() == [row % 3 for row in range(NUM_ROWS)]
    assert np.allclose(found.probability, expected.numpy(), atol=1e-6)
    assert found.predicted.tolist() == expected.argmax(dim=1).tolist()
    assert found.to_bytes() == captured(1).to_bytes()


def test_probabilities_are_kept_of_so_many_rows_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr(kept, "MAX_PROBABILITIES", 40)
    found = captured(2, stride_of(NUM_ROWS, 3))
    assert found.probability.shape == (13, 3) and found.probability_rows.tolist() == list(range(0, NUM_ROWS, 3))
    assert len(found.label) == len(found.confidence) == NUM_ROWS
    some = found.only([6, 7, 3])
    assert some.label.tolist() == found.label[[6, 7, 3]].tolist()
    assert some.probability_rows.tolist() == [0, 2]
    assert np.array_equal(some.probability, found.probability[[2, 1]])
    again = Outputs.from_bytes(some.to_bytes())
    assert np.array_equal(again.probability, some.probability) and again.label.tolist() == some.label.tolist()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (lambda logits: logits * 2, "is not what its recipe measures"),
        (lambda logits: logits[:, :2], "is not what its recipe measures"),
        (lambda logits: logits * float("nan"), "not finite"),
    ],
)
def test_a_model_whose_output_is_something_else_leaves_a_reason_and_no_outputs(output, reason):
    recipe, model = classifier()

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, records):
            return output(self.model(records))

    other = Other()
    predict = prediction(recipe, model)

    def measured_otherwise(columns):
        with torch.inference_mode():
            other(torch.from_numpy(columns["numeric"]))
        return predict(columns)

    capture = OutputCapture(measured_otherwise, other, 3, BLOCK_ROWS, 1)
    capture.of_block(0)(Reader().gather(np.arange(BLOCK_ROWS)))
    assert reason in capture.reason and capture.tensors() == {}


def test_rows_that_are_missing_are_an_error_and_never_fewer_outputs():
    recipe, model = classifier()
    capture = OutputCapture(prediction(recipe, model), model, 3, BLOCK_ROWS, 1)
    capture.of_block(1)(Reader().gather(np.arange(BLOCK_ROWS, 2 * BLOCK_ROWS)))
    with pytest.raises(ValueError, match="whole split"):
        joined([capture.tensors()])


def test_what_an_input_is_worth_shows_and_an_input_that_nobody_reads_is_worth_nothing():
    def predict(columns):
        return {"squared_error": np.square(columns["numeric"][:, :1] - Reader().gather(ROWS)["numeric"][:, :1])}

    ROWS = np.arange(NUM_ROWS)
    made = permutation_importance(Reader(), ("numeric",), predict, num_trained_rows=10**6, seed=0, on_part=lambda: None)
    assert made["importance_rows"].tolist() == ROWS.tolist()
    read, unread = made["importance"].mean(axis=1).tolist()
    assert read > 0.05 and unread == 0.0
    again = permutation_importance(
        Reader(), ("numeric",), predict, num_trained_rows=10**6, seed=0, on_part=lambda: None
    )
    assert np.array_equal(again["importance"], made["importance"])


@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "num_trained_rows", "expected"),
    [
        (10**9, 10, 10**9, 1024),
        (10**9, 1000, 10**9, 262),
        (10, 1000, 10**9, 10),
        (10**9, 32, 300 * 256, 300),  # 9,600 rows scored for 76,800 trained on
        (10**9, 32, 1, 256),
        (10**9, 1000, 1, 64),
    ],
)
def test_importance_costs_a_small_share_of_what_training_did(num_rows, num_inputs, num_trained_rows, expected):
    assert num_rows_for(num_rows, num_inputs, num_trained_rows) == expected


class Repeating(nn.Module):
    """Sure that the next token is the one before plus one."""

    def forward(self, tokens):
        return 100.0 * nn.functional.one_hot((tokens + 1) % 12, 12).float()


def test_a_text_is_continued_from_its_own_beginning_until_a_document_ends():
    class Tokens:
        split, num_rows = "heldout", 2

        def gather(self, rows):
            tokens = np.array([[2, 3, 4, 5, 2, 2, 2, 2, 2], [8, 9, 10, 11, 2, 2, 2, 2, 2]], dtype=np.uint16)
            return {"tokens": tokens[rows], "document": np.zeros((len(rows), 1), dtype=np.int32)}

    model = Repeating()

    def predict(columns):
        model(torch.from_numpy(columns["tokens"].astype(np.int64))[:, :-1])
        return {"nats": np.zeros(1)}

    table = [b"", b"", *(bytes([97 + number]) for number in range(10))]
    made = continuations(Tokens(), model, predict, table, count=3, seed=0, on_part=lambda: None)
    assert made == [{"row": 0, "prompt": "abcd", "text": "efgh"}, {"row": 1, "prompt": "ghij", "text": ""}]
