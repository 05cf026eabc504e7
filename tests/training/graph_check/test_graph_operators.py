"""A graph may call the operators of a pinned list: what models are made of passes, and whatever else is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.shapes import DataShape, ImageShape, TabularNumberShape, TabularShape, TokenShape
from headway.training.graph_check.check import check_graph_file
from headway.training.graph_check.operators import ATEN
from headway.training.graph_check.run_graph import GraphModel, Unsupported
from headway.training.programs.export import GRAPH, write_graph
from headway.training.recipes.load import load_recipe
from tests.training.graph_operators import allowed

SEQUENCES, IMAGES, TOKENS = torch.randn(2, 8, 16), torch.rand(2, 3, 16, 16), torch.arange(16).reshape(2, 8)


def test_the_pinned_list_is_what_torch_says_today() -> None:
    """Of another torch `python -m tests.training.graph_operators` prints the list; read what is new in it."""
    pinned, now = set(ATEN.split()), allowed()
    assert (sorted(now - pinned), sorted(pinned - now)) == ([], []), "(came, went)"


class Of(nn.Module):
    """A function of the input and of layers."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


def written_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 0.0
    y[..., 1:3] = x[..., 1:3] * 2
    return y.add_(1).mul_(2).clamp_(0, 9).masked_fill_(x > 0, 1).relu_()


def in_another_precision(x: Tensor, linear: nn.Module) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return linear(x).float()


MODELS: dict[str, tuple[nn.Module, Tensor]] = {
    "conv net": (
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.Dropout2d(), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Dropout(), nn.Linear(8, 4), nn.LogSoftmax(-1)),
        ),
        IMAGES,
    ),
    "autoencoder": (
        nn.Sequential(
            *(nn.Conv2d(3, 4, 2, stride=2), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU()),
            *(nn.ConvTranspose2d(4, 3, 2, stride=2), nn.Sigmoid()),
        ),
        IMAGES,
    ),
    "LSTM": (Of(lambda x, layer: layer(x)[0], nn.LSTM(16, 8, batch_first=True, bidirectional=True)), SEQUENCES),
    "GRU": (Of(lambda x, layer: layer(x)[0][:, -1], nn.GRU(16, 8, batch_first=True)), SEQUENCES),
    "cells": (Of(lambda x, a, b: a(x[:, 0])[0] + b(x[:, 1]), nn.LSTMCell(16, 8), nn.GRUCell(16, 8)), SEQUENCES),
    "attention": (Of(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), SEQUENCES),
    "multi-head": (Of(lambda x, layer: layer(x, x, x)[0], nn.MultiheadAttention(16, 2, batch_first=True)), SEQUENCES),
    "transformer": (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1, enable_nested_tensor=False),
        SEQUENCES,
    ),
    "embedding": (nn.Sequential(nn.Embedding(20, 16, padding_idx=0), nn.LayerNorm(16), nn.Linear(16, 4)), TOKENS),
    "bag": (nn.EmbeddingBag(20, 16), TOKENS),
    "norms": (nn.Sequential(nn.RMSNorm(16), nn.GELU(), nn.Softplus(), nn.PReLU(), nn.GLU(), nn.Softmax(-1)), SEQUENCES),
    "einsum": (Of(lambda x: torch.einsum("bij,bkj->bik", x, x) + torch.baddbmm(x @ x.mT, x, x.mT)), SEQUENCES),
    "scatter": (Of(lambda x: torch.zeros(x.shape[0], 20).scatter_add(1, x, torch.ones(x.shape))), TOKENS),
    "choices": (
        Of(lambda x: F.one_hot(x.argmax(-1), 16)[..., :3] + x.topk(3).values + x.sort(-1).values[..., :3]),
        SEQUENCES,
    ),
    "gather": (Of(lambda x: x.gather(-1, x.argsort(-1)) + x.index_select(-1, torch.arange(16))), SEQUENCES),
    "interpolation": (
        Of(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") + F.interpolate(x, scale_factor=2)),
        IMAGES,
    ),
    "patches": (Of(lambda x: F.fold(F.unfold(F.pad(x, (1, 1, 1, 1)), 3), (16, 16), 3, padding=1)), IMAGES),
    "figures": (
        Of(lambda x: torch.stack([x.mean(-1), x.std(-1), x.norm(dim=-1), x.amax(-1), x.logsumexp(-1)])),
        SEQUENCES,
    ),
    "choosing": (Of(lambda x: torch.where(x > 0, x, -x).masked_fill(x.isnan(), 0).tril().cumsum(-1)), SEQUENCES),
    "spectrum": (Of(lambda x: torch.fft.rfft(x).abs()), SEQUENCES),
    "in place": (Of(written_in_place), SEQUENCES),
    "bfloat16": (Of(in_another_precision, nn.Linear(16, 4)), SEQUENCES),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(16, 4)), SEQUENCES),
}


LARGE = ("LSTM", "GRU", "conv net", "multi-head", "transformer")
"""Torch takes about a second of the processor to export each."""


TORCH_LOADS = ("bfloat16",)
"""It has graphs within the graph."""

AT_LENGTH = ("multi-head",)
"""For `make soak`: the transformer goes the same way."""


def _marked(name: str) -> Any:
    marks = pytest.mark.soak if name in AT_LENGTH else pytest.mark.process if name in LARGE else ()
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", map(_marked, MODELS))
def test_what_models_are_made_of_passes_and_is_the_model(name: str, tmp_path: Path) -> None:
    model, example = MODELS[name]
    write_graph(model.eval(), example, tmp_path)
    check_graph_file(tmp_path / GRAPH)
    loaded = torch.export.load(io.BytesIO((tmp_path / GRAPH).read_bytes())).module()
    with torch.inference_mode():
        torch.testing.assert_close(loaded(example), model(example))
        if name in TORCH_LOADS:
            with pytest.raises(Unsupported):
                GraphModel((tmp_path / GRAPH).read_bytes())
        else:
            require_same_bits(GraphModel((tmp_path / GRAPH).read_bytes()), loaded, example)


def require_same_bits(ours: nn.Module, torchs: nn.Module, example: Tensor) -> None:
    """Of an example, of one more row and of one alone, again and again."""
    for given in (example, torch.cat((example, example[:1])), example[:1], example):
        made, expected = ours(given), torchs(given)
        assert made.dtype == expected.dtype and made.shape == expected.shape
        assert made.numpy().tobytes() == expected.numpy().tobytes()


RECIPES: dict[str, tuple[str, DataShape]] = {
    "trees": ("gradient-boosting", TabularShape(num_numeric=3, cardinalities=(5, 2), num_classes=4)),
    "text": ("language-model", TokenShape(vocab_size=40, context_tokens=16)),
    "images": ("image-classifier", ImageShape(channels=1, height=8, width=8, num_classes=4)),
    "classes": ("tabular-classifier", TabularShape(num_numeric=3, cardinalities=(5, 2), num_classes=4)),
    "numbers": ("tabular-regressor", TabularNumberShape(num_numeric=3, cardinalities=(), mean=1.0, deviation=2.0)),
}


@pytest.mark.process
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_of_headways_exports_a_graph_that_passes(name: str, tmp_path: Path) -> None:
    recipe_name, shape = RECIPES[name]
    recipe = load_recipe(recipe_name, {"depth": 1} if name == "text" else {}, shape)  # a block is traced as the others
    write_graph(recipe.build().eval(), recipe.example_input(), tmp_path)
    check_graph_file(tmp_path / GRAPH)
    with torch.inference_mode():
        require_same_bits(
            GraphModel((tmp_path / GRAPH).read_bytes()),
            torch.export.load(io.BytesIO((tmp_path / GRAPH).read_bytes())).module(),
            recipe.example_input(),
        )


def test_another_operator_is_refused_by_name_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"torch\.ops\.aten\.randn_like\.default") as refused:
        write_graph(Of(lambda x: x + torch.randn_like(x)), SEQUENCES, tmp_path)
    assert "forward" in refused.value.advice and "graph_check/operators.py" in refused.value.advice
