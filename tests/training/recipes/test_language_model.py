"""The language model."""

from __future__ import annotations

import math

import pytest
import torch

from headway.training.config.recipe_specs import LanguageModelSpec
from headway.training.config.shapes import TokenShape
from headway.training.recipes.language_model import LanguageModel, rotate

SHAPE = TokenShape(vocab_size=64, context_tokens=32)


@pytest.fixture
def recipe() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelSpec(width=32, depth=2, heads=2, hidden=48), SHAPE)


@pytest.fixture
def model(recipe):
    """With every projection away from zero, as after training."""
    model = recipe.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def tokens(rows: int = 3, length: int = 33) -> torch.Tensor:
    return torch.randint(2, 64, (rows, length), generator=torch.Generator().manual_seed(1))


def test_a_new_model_knows_nothing_and_says_so(recipe):
    losses = recipe.losses(recipe.build(), {"tokens": tokens()})
    assert float(losses.nats.detach().mean()) == pytest.approx(math.log(64), rel=0.05)


def test_no_position_sees_what_comes_after_it(model):
    with torch.no_grad():
        before = model(tokens(length=32))
        changed = tokens(length=32)
        changed[:, 20:] = 5
        after = model(changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_every_position_sees_what_comes_before_it(model):
    changed = tokens(length=32)
    changed[:, 0] = 5
    with torch.no_grad():
        assert not torch.allclose(model(tokens(length=32))[:, -1], model(changed)[:, -1])


def test_padding_has_no_loss_and_gives_no_gradient(recipe, model):
    padded = tokens()
    padded[:, 20:] = 1
    losses = recipe.losses(model, {"tokens": padded})
    assert int(losses.valid.sum()) == 3 * 19
    assert torch.all(losses.nats[:, 19:] == 0)
    cut = recipe.losses(model, {"tokens": padded[:, :20]})
    torch.testing.assert_close(losses.nats.sum(), cut.nats.sum())


def test_rotation_depends_on_distance_alone():
    angles = torch.outer(torch.arange(12.0), torch.tensor([1.0, 0.1]))
    query, key = torch.randn(4), torch.randn(4)

    def score(i: int, j: int) -> float:
        return float(rotate(query, angles[i].cos(), angles[i].sin()) @ rotate(key, angles[j].cos(), angles[j].sin()))

    assert score(7, 3) == pytest.approx(score(11, 7), abs=1e-5)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-3)


def test_tied_embeddings_share_one_matrix():
    tied = LanguageModel(LanguageModelSpec(width=32, heads=2, tied_embeddings=True), SHAPE).build()
    assert tied.head.weight is tied.embedding.weight


def test_hidden_matrices_are_those_of_the_blocks_alone(recipe):
    names = recipe.hidden_matrices(recipe.build())
    assert len(names) == 2 * 4
    assert all(name.startswith("blocks.") and name.endswith("weight") for name in names)


@pytest.mark.process  # for what it takes of the processor
def test_it_exports_with_batch_and_sequence_left_free(recipe, model):
    example = recipe.example_input()
    free = dict.fromkeys(range(2), torch.export.Dim.AUTO)
    exported = torch.export.export(model, (example,), dynamic_shapes=(free,)).module()
    for rows, length in ((1, 5), (4, 32), (3, 2)):
        given = tokens(rows, length)
        with torch.no_grad():
            torch.testing.assert_close(exported(given), model(given), rtol=1e-4, atol=1e-5)
