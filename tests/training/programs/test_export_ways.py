"""A graph has one way through `forward`: where the model has others, no answer is another than the model's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.graph_check.safe_graph import load_graph
from headway.training.programs.export import GRAPH, write_graph


class Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Counting(nn.Module):
    """It keeps something from call to call, and so no answer is as the one before."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * self.calls if x.shape[0] % 2 == 0 else x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if x.shape[0] % 2 == 0 else x * 3,
        lambda x: x * 2 if x.shape[0] != 7 else x * 3,
        lambda x: x * 2 if x.shape[0] > 1 else x * 3,
        lambda x: x * 2 if x.shape[0] > 1 else x[0],
        lambda x: torch.stack([part.sum() for part in x.split(2)]),
    ],
    ids=["even", "seven", "one", "one of another shape", "as many parts as there are pairs"],
)
def test_a_model_that_goes_another_way_for_other_rows_is_refused(
    function: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"other answers than the model for an input of \d row") as refused:
        write_graph(Of(function), torch.randn(6, 4), tmp_path)
    assert "test_export_ways.py" in refused.value.where


def test_a_length_that_decides_the_way_is_fixed_and_another_is_refused_by_name(tmp_path: Path) -> None:
    model = Of(lambda x: x * 2 if x.shape[1] % 2 == 0 else x * 3)
    write_graph(model, torch.randn(6, 4), tmp_path)
    graph = load_graph((tmp_path / GRAPH).read_bytes(), GRAPH)
    for rows in (1, 5, 9):
        given = torch.randn(rows, 4)
        assert torch.equal(graph(given), model(given))
    with pytest.raises(ValueError, match="dimension 1 of input x is 4, and is given 5"):
        graph(torch.randn(2, 5))


def test_of_a_length_that_is_treated_otherwise_where_it_is_one_the_others_stay(tmp_path: Path) -> None:
    model = Of(lambda x: x * 2 if x.shape[1] > 1 else x * 3)
    write_graph(model, torch.randn(6, 4), tmp_path)
    graph = load_graph((tmp_path / GRAPH).read_bytes(), GRAPH)
    for length in (3, 4, 9):
        given = torch.randn(2, length)
        assert torch.equal(graph(given), model(given))
    with pytest.raises(ValueError, match="dimension 1 of input x is at least 3, and is given 1"):
        graph(torch.randn(2, 1))


@pytest.mark.parametrize(
    "model",
    [
        Of(lambda x: x.view(-1, 2, 4).sum(1)),
        Of(lambda x: x + x.T),
        Of(lambda x: torch.stack([part.sum() for part in x.chunk(2)])),
        Counting(),
    ],
    ids=["pairs of rows", "square", "parts", "counting"],
)
def test_a_model_that_refuses_some_lengths_or_keeps_something_is_exported(model: nn.Module, tmp_path: Path) -> None:
    write_graph(model, torch.randn(4, 4), tmp_path)
    assert load_graph((tmp_path / GRAPH).read_bytes(), GRAPH)
