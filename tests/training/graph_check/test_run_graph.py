"""A graph that is run operator by operator: what it takes, and what becomes of one that does not fit together."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway.data_contracts.store.errors import IntegrityError
from headway.training.graph_check.check import check_graph
from headway.training.graph_check.run_graph import GraphModel, Unsupported
from headway.training.graph_check.safe_graph import load_graph
from headway.training.programs.export import GRAPH, write_graph
from tests.training.graph_check.altered_graphs import PROGRAM, edit, records_of, write

Json = dict[str, Any]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    write_graph(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval(), torch.randn(5, 4), folder)
    return folder / GRAPH


def changed(graph: Path, change: Callable[[Json], None], out: Path) -> bytes:
    """The graph with another description, which the check lets through."""
    records = records_of(graph)
    edit(records, PROGRAM, lambda program: change(program["graph_module"]["graph"]))
    data = write(records, out).read_bytes()
    check_graph(data)
    return data


def test_any_number_of_rows_is_taken_and_another_width_is_refused_by_name(graph: Path) -> None:
    model = GraphModel(graph.read_bytes())
    with torch.inference_mode():
        for rows in (0, 1, 2, 9):
            assert model(torch.randn(rows, 4)).shape == (rows, 2)
        for given, message in (
            (torch.randn(2, 5), "dimension 1 of input .* is 4, and is given 5"),
            (torch.randn(4), "has 2 dimensions, and is given 1"),
        ):
            with pytest.raises(ValueError, match=message):
                model(given)
        with pytest.raises(ValueError, match="takes 1 tensors, and is given 2"):
            model(torch.randn(2, 4), torch.randn(2, 4))


def test_what_it_is_made_in_and_called_in_changes_no_bit(graph: Path) -> None:
    given = torch.randn(3, 4)
    with torch.inference_mode():
        inside = GraphModel(graph.read_bytes())
        expected = torch.export.load(io.BytesIO(graph.read_bytes())).module()(given)
        assert torch.equal(inside(given), expected)
    assert torch.equal(inside(given).detach(), expected)
    assert next(inside.parameters()).device == torch.device("cpu")


def read_before_it_is_made(graph: Json) -> None:
    graph["nodes"].reverse()


def hands_out_what_nobody_makes(graph: Json) -> None:
    graph["nodes"].pop()


def lacks_the_description_of_its_input(graph: Json) -> None:
    graph["tensor_values"].clear()


@pytest.mark.parametrize(
    "change", [read_before_it_is_made, hands_out_what_nobody_makes, lacks_the_description_of_its_input]
)
def test_a_graph_that_does_not_fit_together_is_refused_and_is_no_error_of_ours(
    graph: Path, change: Callable[[Json], None], tmp_path: Path
) -> None:
    data = changed(graph, change, tmp_path / "changed.pt2")
    with pytest.raises(Unsupported):
        GraphModel(data)
    with pytest.raises(IntegrityError, match="torch cannot load the graph"):
        load_graph(data, "model.pt2")


def test_sizes_of_inputs_that_are_calculated_are_for_torch_and_found_before_any_call(
    graph: Path, tmp_path: Path
) -> None:
    def doubled(graph: Json) -> None:
        size = graph["tensor_values"]["input"]["sizes"][0]["as_expr"]
        size["expr_str"] = f"Mul(Integer(2), {size['expr_str']})"

    data = changed(graph, doubled, tmp_path / "doubled.pt2")
    with pytest.raises(Unsupported, match="a size that is calculated"):
        GraphModel(data)
