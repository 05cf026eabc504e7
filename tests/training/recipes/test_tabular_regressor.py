"""A number is predicted in its own unit, and learnt in nats of what it was in training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.shapes import TabularNumberShape, TabularShape
from headway.training.recipes.load import load_recipe
from headway.training.recipes.protocol import Recipe

SHAPE = TabularNumberShape(num_numeric=3, cardinalities=(5,), mean=150.0, deviation=70.0)


@pytest.fixture
def recipe() -> Recipe:
    torch.manual_seed(0)
    return load_recipe("tabular-regressor", {"width": 16, "dropout": 0.0}, SHAPE)


@pytest.fixture
def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    numeric = torch.randn((32, 3), generator=generator)
    ids = torch.randint(5, (32, 1), generator=generator)
    label = 150 + 40 * numeric[:, :1] + 30 * (ids - 2)
    return {"numeric": numeric, "categorical": ids, "label": label}


def test_a_new_model_says_the_mean_and_is_charged_as_a_unit_gaussian_is(recipe, batch) -> None:
    model = recipe.build()
    losses = recipe.losses(model, batch)
    assert losses.nats.shape == losses.valid.shape == (32, 1)
    expected = ((batch["label"] - 150) / 70).square() / 2 + math.log(2 * math.pi) / 2
    torch.testing.assert_close(losses.nats, expected)
    assert model(recipe.example_input()).tolist() == [[150.0], [150.0]]


def test_it_learns_what_can_be_told_in_the_unit_of_the_data(recipe, batch) -> None:
    model = recipe.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        recipe.losses(model, batch).nats.mean().backward()
        optimizer.step()
    measured = recipe.measures(model.eval(), batch)
    assert set(measured) == {"squared_error"} and measured["squared_error"].dtype == torch.float64
    assert float(measured["squared_error"].mean().detach()) < 0.05 * float(batch["label"].var())


def test_low_precision_does_not_reach_the_unit_of_the_data(recipe, batch) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert recipe.build()(recipe.inputs(batch)).dtype == torch.float32


def test_a_class_and_a_number_are_not_taken_for_each_other() -> None:
    classes = TabularShape(num_numeric=3, cardinalities=(), num_classes=4)
    with pytest.raises(ConfigError, match="reads records of a number each, and the shards hold records of a class"):
        load_recipe("tabular-regressor", {}, classes)
    with pytest.raises(ConfigError, match="reads records of a class each, and the shards hold records of a number"):
        load_recipe("tabular-classifier", {}, SHAPE)


ENSEMBLE = {"width": 16, "dropout": 0.0, "members": 4, "frequencies": 8}


def test_each_member_of_an_ensemble_learns_by_its_own_loss_and_their_mean_is_what_it_says(batch) -> None:
    torch.manual_seed(0)
    recipe = load_recipe("tabular-regressor", ENSEMBLE, SHAPE)
    model = recipe.build()
    assert model(recipe.inputs(batch)).shape == (32, 4, 1)
    assert recipe.losses(model, batch).nats.shape == (32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(100):
        optimizer.zero_grad()
        recipe.losses(model, batch).nats.mean().backward()
        optimizer.step()
    members = model(recipe.inputs(batch)).detach()
    assert float(members.std(dim=1).max()) > 0, "members differ"
    together = model.eval()(recipe.inputs(batch)).detach()
    torch.testing.assert_close(together, members.mean(dim=1))
    assert float(recipe.measures(model, batch)["squared_error"].mean().detach()) < 0.1 * float(batch["label"].var())


def test_an_ensembles_logits_are_those_of_the_mean_probability(batch) -> None:
    torch.manual_seed(0)
    shape = TabularShape(num_numeric=3, cardinalities=(5,), num_classes=4)
    recipe = load_recipe("tabular-classifier", ENSEMBLE, shape)
    model = recipe.build()
    torch.nn.init.normal_(model.head.weight)
    given = {**batch, "label": torch.arange(32)[:, None] % 4}
    members = torch.softmax(model(recipe.inputs(given)), dim=2)
    together = torch.softmax(model.eval()(recipe.inputs(given)), dim=1)
    torch.testing.assert_close(together, members.mean(dim=1))
    own = -members[torch.arange(32), :, given["label"][:, 0]].log().mean(dim=1, keepdim=True)
    torch.testing.assert_close(recipe.losses(model.train(), given).nats, own)
    alone = model.eval()(recipe.inputs(given)[:1])
    torch.testing.assert_close(alone, model(recipe.inputs(given))[:1])


def test_waves_and_members_take_no_draw_from_a_model_that_has_none() -> None:
    built = []
    for fields in ({"width": 16}, {"width": 16, "members": 1, "frequencies": 0}):
        torch.manual_seed(0)
        built.append(load_recipe("tabular-regressor", fields, SHAPE).build().state_dict())
    assert list(built[0]) == list(built[1])
    assert all(torch.equal(built[0][name], built[1][name]) for name in built[0])
    assert not [name for name in built[0] if name.startswith(("waves", "scales"))]
