"""What is told of the source's files, and what their columns are."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import DataError
from headway.tasks.stages.snapshot import snapshot
from headway.training.observe.ledger import Event

pytestmark = pytest.mark.process


def test_one_file_of_one_row_is_told_in_the_singular_and_more_in_the_plural(context, tmp_path: Path) -> None:
    told: list[Event] = []
    contract = tmp_path / "contract.yaml"
    contract.write_text("name: any\nversion: 1.0.0\ncolumns: {x: {type: int64}}\n")
    context.ledger.listeners.append(told.append)
    for name, rows, message in (
        ("one", "x\n1\n", "1 row of 1 column"),
        ("two", "x,y\n1,2\n3,4\n", "2 rows of 2 columns"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.csv").write_text(rows)
        source = SourceSpec(format="csv", uri=str(tmp_path / name), include=["*.csv"])
        snapshot.fn(context, str(contract), source)
        shown = next(str(event["shown"]) for event in reversed(told) if "shown" in event)
        assert shown.startswith("1 file   ") and shown.endswith(message), shown


def test_columns_are_texts_where_the_contract_says_so_and_else_what_their_values_are(context, tmp_path: Path) -> None:
    contract = tmp_path / "contract.yaml"
    contract.write_text(
        "name: any\nversion: 1.0.0\ncolumns: {code: {type: string}, n: {type: double}, gone: {type: string}}\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "codes.csv").write_text("code,n,other\n107,1,x\n")
    link = snapshot.fn(context, str(contract), SourceSpec(format="csv", uri=str(tmp_path / "data")))
    columns = context.workspace.load(link, Snapshot).columns
    assert columns == {"code": "string", "n": "int64", "other": "string"}


def test_what_earlier_retrains_made_is_no_data_and_the_advice_leaves_it_out(context, tmp_path: Path) -> None:
    contract = tmp_path / "contract.yaml"
    contract.write_text("name: any\nversion: 1.0.0\ncolumns: {x: {type: int64}}\n")
    made = context.workspace.local_root / "shards" / "part.csv"
    for file in (tmp_path / "data.csv", made):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("x\n1\n")
    source = SourceSpec(format="csv", uri=str(tmp_path), include=["**/*.csv"])
    inside = context.workspace.local_root.relative_to(tmp_path).as_posix()
    with pytest.raises(DataError, match="takes in 1 file of the workspace") as refused:
        snapshot.fn(context, str(contract), source)
    advised = f"{inside}/**"
    assert f"`{advised}`" in refused.value.advice
    link = snapshot.fn(context, str(contract), source.model_copy(update={"exclude": (advised,)}))
    assert [file.path for file in context.workspace.load(link, Snapshot).files] == ["data.csv"]
