"""A folder of an exported model proves itself by digests of its own: whoever wrote it may have written anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import Link, Registration, StoredFile
from headway.data_contracts.store.errors import HeadwayError, IntegrityError
from headway.tasks.serving.exported_model import FILE, ExportedModel
from headway.tasks.serving.prediction import TableModel, load_exported_table_model
from headway.training.programs.export import GRAPH, write_graph
from tests.tasks.table_model import COLUMNS, STATISTICS

pytestmark = pytest.mark.process

ENCODER = {"kind": "tabular", "numeric": ["age"], "categorical": ["grade", "plan"], "label": "out"}
CONFIG = {
    "format": "headway-model",
    "model": {
        "recipe": "tabular-classifier",
        "fields": {"width": 8, "depth": 1},
        "data": {},
        "encoder": {
            "kind": "tabular",
            "spec": ENCODER,
            "fitted": {**STATISTICS, "label": {"column": "out", "values": ["no", "yes"]}},
        },
    },
}


class Answers(nn.Module):
    """So many for each row of three columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, width))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.weight


@pytest.fixture(scope="module")
def graph_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], bytes]:
    @cache
    def made(width: int) -> bytes:
        folder = tmp_path_factory.mktemp("graph")
        write_graph(Answers(width), torch.zeros(2, 3), folder)
        return (folder / GRAPH).read_bytes()

    return made


def written(folder: Path, graph: bytes, config: bytes) -> Path:
    """A folder in which each digest is right."""
    folder.mkdir()
    files = {f"m/artifacts/{GRAPH}": graph, "m/weights/config.json": config}
    artifacts = tuple(
        StoredFile(path=path, size_bytes=len(data), sha256=sha256_bytes(data)) for path, data in files.items()
    )
    links = {kind: Link(kind=kind, sha256="0" * 64) for kind in ("run", "checkpoint", "evaluation")}
    registration = Registration(model="toy", artifacts=artifacts, **links)
    for path, data in {**files, FILE: ExportedModel(version="1", registration=registration).to_bytes()}.items():
        (folder / path.rpartition("/")[2]).write_bytes(data)
    return folder


def asked(folder: Path) -> TableModel:
    model = load_exported_table_model(folder)
    model._repr_html_()
    assert model.predict(COLUMNS)["prediction"].to_pylist()
    return model


NASTY = (None, [], {}, -1, 10**30, 1e300, "x", True, [[]], [1, "a", None])


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*at, key))


def altered(value: Any, at: tuple[Any, ...], new: Any, *, is_deleted: bool = False) -> Any:
    if not at:
        return new
    made = deepcopy(value)
    around = made
    for key in at[:-1]:
        around = around[key]
    if is_deleted:
        del around[at[-1]]
    else:
        around[at[-1]] = new
    return made


def test_a_description_that_is_none_is_refused_whatever_its_digest(
    tmp_path: Path, graph_of: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = asked(written(tmp_path / "good", graph_of(2), json.dumps(CONFIG).encode()))
    monkeypatch.setattr("headway.tasks.serving.prediction.load_graph", lambda *_: model.graph)  # it takes a while
    found = [*places(CONFIG["model"], ("model",))]
    # Three of the values for each place, in turn.
    cases = [(at, NASTY[(3 * place + more) % len(NASTY)], False) for place, at in enumerate(found) for more in range(3)]
    cases += [(at, None, True) for at in found]
    num_refused = 0
    for number, (at, new, is_deleted) in enumerate([((), each, False) for each in NASTY] + cases):
        data = json.dumps(altered(CONFIG, at, new, is_deleted=is_deleted)).encode()
        try:
            asked(written(tmp_path / str(number), graph_of(2), data))
        except HeadwayError:
            num_refused += 1
        except Exception as error:
            raise AssertionError((at, new, is_deleted)) from error
    assert num_refused > len(cases) // 2


@pytest.mark.parametrize("values", [[3, 1], [1, 1], [0, 5, 3], [1 << 63], ["b", "a"]])
def test_categories_out_of_order_would_be_other_numbers_and_are_refused(
    tmp_path: Path, graph_of: Callable[[int], bytes], values: list[Any]
) -> None:
    at = ("model", "encoder", "fitted", "categorical", 0, "values")
    with pytest.raises(IntegrityError):
        asked(written(tmp_path / "of", graph_of(2), json.dumps(altered(CONFIG, at, values)).encode()))


@pytest.mark.parametrize("width", [1, 3])
def test_a_graph_whose_answers_are_not_the_encoders_classes_is_refused(
    tmp_path: Path, graph_of: Callable[[int], bytes], width: int
) -> None:
    with pytest.raises(IntegrityError, match="does not belong to the encoder"):
        asked(written(tmp_path / "of", graph_of(width), json.dumps(CONFIG).encode()))


def test_a_graph_that_cannot_take_the_encoders_rows_is_refused(
    tmp_path: Path, graph_of: Callable[[int], bytes]
) -> None:
    of_one = altered(CONFIG, ("model", "encoder", "spec", "categorical"), [])
    of_one = altered(of_one, ("model", "encoder", "fitted", "categorical"), [])
    with pytest.raises(IntegrityError, match="does not belong to the encoder"):
        asked(written(tmp_path / "of", graph_of(2), json.dumps(of_one).encode()))


@pytest.mark.parametrize("name", [FILE, "config.json", GRAPH])
def test_a_file_with_a_hole_of_terabytes_is_not_read(
    tmp_path: Path, graph_of: Callable[[int], bytes], name: str
) -> None:
    folder = written(tmp_path / "of", graph_of(2), json.dumps(CONFIG).encode())
    os.truncate(folder / name, 1 << 43)
    with pytest.raises(HeadwayError):
        asked(folder)
