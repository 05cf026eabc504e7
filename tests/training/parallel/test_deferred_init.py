"""Weights drawn one at a time are those of the model built at once, bit for bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.parallel import ParallelSpec
from headway.training.config.shapes import ImageShape, TabularShape, TokenShape
from headway.training.config.training_spec import TrainingSpec
from headway.training.parallel.deferred_init import DeferredModel
from headway.training.parallel.parallelize import uninitialised
from headway.training.recipes.load import load_recipe

RECIPES = {
    "language-model": (
        {"width": 32, "depth": 3, "heads": 2, "tied_embeddings": True},
        TokenShape(vocab_size=50, context_tokens=16),
    ),
    "image-classifier": ({}, ImageShape(channels=3, height=16, width=16, num_classes=4)),
    "tabular-classifier": ({}, TabularShape(num_numeric=3, cardinalities=(7, 4), num_classes=3)),
}


def both(build) -> tuple[nn.Module, DeferredModel, dict[str, torch.Tensor]]:
    torch.manual_seed(5)
    eager = build()
    deferred = DeferredModel(build)
    torch.manual_seed(5)
    return eager, deferred, dict(deferred.draw())


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_is_drawn_to_the_same_bits(name):
    fields, shape = RECIPES[name]
    eager, deferred, drawn = both(load_recipe(name, fields, shape).build)
    expected = {**dict(eager.named_parameters()), **dict(eager.named_buffers())}
    assert drawn.keys() == expected.keys()
    assert all(parameter.is_meta for parameter in deferred.model.parameters())
    for key, value in expected.items():
        assert torch.equal(drawn[key], value), key


class Unusual(nn.Module):
    """Draws in ways that overwrite in part, read what was drawn, and use constants."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4, padding_idx=2)
        self.orthogonal = nn.Linear(5, 5)
        nn.init.orthogonal_(self.orthogonal.weight)
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(3, 3), std=0.5))
        self.scaled = nn.Parameter(torch.randn(4, 4).mul_(0.3) + torch.tensor([1.0, 2.0, 3.0, 4.0]))
        with torch.no_grad():
            self.orthogonal.bias[1:3] = 7.0
            self.scaled[0] = self.embedding.weight[3]
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("slopes", torch.linspace(0, 1, 5), persistent=False)


def test_partial_writes_reads_and_constants_are_kept_too():
    eager, _, drawn = both(Unusual)
    for key, value in {**dict(eager.named_parameters()), **dict(eager.named_buffers())}.items():
        assert torch.equal(drawn[key], value), key


def test_no_two_finished_weights_are_held_at_once():
    sizes = []

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(8))
            for layer in self.layers:
                nn.init.normal_(layer.weight)

    deferred = DeferredModel(Wide)
    replay = deferred._replay

    def watched(step, now):
        replay(step, now)
        sizes.append(len(now))

    deferred._replay = watched
    assert len(dict(deferred.draw())) == 8
    assert max(sizes) == 1


def test_a_model_that_looks_at_its_draws_is_told_how_to_be_built():
    def build() -> nn.Module:
        model = nn.Linear(2, 2)
        if float(model.weight.sum()) > 0:
            nn.init.zeros_(model.weight)
        return model

    with pytest.raises(ConfigError, match=r"one at a time.*deferred_init: false"):
        DeferredModel(build)


def test_an_initialiser_that_would_silently_do_nothing_is_refused():
    imported_by_name = nn.init.trunc_normal_

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 3))
            imported_by_name(self.weight)

    with pytest.raises(ConfigError, match=r"trunc_normal_ must be called as torch.nn.init.trunc_normal_"):
        DeferredModel(Named)
    assert nn.init.trunc_normal_ is imported_by_name


def test_what_a_recipe_draws_by_numpy_or_random_is_the_same_on_every_rank():
    class Drawn:
        def build(self):
            model = nn.Linear(3, 1, bias=False)
            with torch.no_grad():
                model.weight.copy_(torch.from_numpy(np.random.randn(1, 3) + random.random()))
            return model

    def rank() -> torch.Tensor:
        np.random.seed()
        random.seed()
        (_, weight), *_ = uninitialised(Drawn(), TrainingSpec(parallel=ParallelSpec(mode="fast")))[1]()
        return weight

    assert torch.equal(rank(), rank())
