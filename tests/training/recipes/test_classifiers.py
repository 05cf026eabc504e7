"""The shipped classifiers: what holds for both, and what each refuses."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.shapes import ImageShape, TabularShape, TokenShape
from headway.training.recipes.load import load_recipe
from headway.training.recipes.protocol import Recipe

IMAGES = ImageShape(channels=1, height=8, width=8, num_classes=4)
RECORDS = TabularShape(num_numeric=3, cardinalities=(5, 2), num_classes=4)
NUMBERS_ALONE = TabularShape(num_numeric=3, cardinalities=(), num_classes=4)


def batch_of(shape: ImageShape | TabularShape, rows: int = 16) -> dict[str, Tensor]:
    """Rows whose class can be told from their content."""
    generator = torch.Generator().manual_seed(1)
    label = torch.randint(4, (rows, 1), generator=generator)
    if isinstance(shape, ImageShape):
        image = torch.randint(64, (rows, 1, 8, 8), generator=generator)
        image[torch.arange(rows), 0, 2 * label[:, 0]] = 255
        return {"image": image, "label": label}
    numeric = torch.randn((rows, 3), generator=generator)
    numeric[:, :1] += label
    ids = torch.cat([label, label % 2], dim=1)
    return {"numeric": numeric, "label": label} | ({"categorical": ids} if shape.cardinalities else {})


@pytest.fixture(params=[IMAGES, RECORDS, NUMBERS_ALONE], ids=["images", "records", "numbers-alone"])
def case(request) -> tuple[Recipe, Mapping[str, Tensor]]:
    torch.manual_seed(0)
    name = "image-classifier" if isinstance(request.param, ImageShape) else "tabular-classifier"
    return load_recipe(name, {"width": 16, "dropout": 0.0}, request.param), batch_of(request.param)


def test_a_new_model_knows_nothing_and_says_so(case):
    recipe, batch = case
    losses = recipe.losses(recipe.build(), batch)
    assert losses.nats.shape == losses.valid.shape == (16, 1)
    assert losses.nats.flatten().tolist() == pytest.approx([math.log(4)] * 16, rel=1e-6)


def test_it_learns_what_can_be_told(case):
    recipe, batch = case
    model = recipe.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(150):
        optimizer.zero_grad()
        recipe.losses(model, batch).nats.mean().backward()
        optimizer.step()
    measured = recipe.measures(model.eval(), batch)
    assert float(measured["correct"].mean()) == 1.0
    assert float(measured["nats"].detach().mean()) < 0.1


def test_an_examples_loss_does_not_depend_on_its_neighbours(case):
    recipe, batch = case
    model = recipe.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        whole = recipe.losses(model, batch).nats
        alone = torch.cat(
            [
                recipe.losses(model, {name: each[row : row + 1] for name, each in batch.items()}).nats
                for row in range(16)
            ]
        )
    torch.testing.assert_close(whole, alone)


def test_the_example_input_is_what_the_model_is_called_with(case):
    recipe, _ = case
    assert recipe.build()(recipe.example_input()).shape == (2, 4)


def test_matrices_for_an_orthogonalising_optimizer_are_matrices_between_hidden_layers(case):
    recipe, _ = case
    model = recipe.build()
    parameters = dict(model.named_parameters())
    hidden = recipe.hidden_matrices(model)
    assert all(parameters[name].ndim == 2 and "head" not in name and "input" not in name for name in hidden)


def test_images_that_are_too_small_are_refused_with_the_number_that_fits():
    with pytest.raises(ConfigError, match=r"8 x 8 cannot be halved 4 times.*at most 3"):
        load_recipe("image-classifier", {"stages": 4}, IMAGES)


def test_data_of_another_kind_are_refused_by_name():
    with pytest.raises(ConfigError, match="reads images, and the shards hold token sequences"):
        load_recipe("image-classifier", {}, TokenShape(vocab_size=300, context_tokens=16))
