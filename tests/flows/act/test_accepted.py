"""A check compares with the data that were accepted last, and with their contract, as the gate does."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.publication import Workspace
from headway.flows.act.contract_check import check, resolve_request
from headway.tasks.rows.acceptance import accepted_ref
from tests.flows.act.conftest import Answer, Headway

pytestmark = pytest.mark.process

COMPARED = """
name: sales
version: 1.0.0
columns:
  amount: {type: double}
volume: {min_ratio: 0.5, max_ratio: 1.5}
drift: [{id: steady, columns: [amount], max_psi: 0.2}]
"""


def write_amounts(folder: Path, *, shift: float, num_rows: int) -> None:
    folder.mkdir(exist_ok=True)
    chance = random.Random(num_rows)
    pq.write_table(pa.table({"amount": [chance.gauss(50 + shift, 10) for _ in range(num_rows)]}), folder / "a.parquet")


def accept_what_lies_there(folder: Path, workspace_name: str = "workspace") -> None:
    """Accept the data of `sales.yaml` as the gate does."""
    checked = check(resolve_request("sales.yaml", ""), now_unix_s=0.0)
    workspace = Workspace.create(str(folder / workspace_name))
    workspace.publish(checked.receipt.contract.path, (folder / "contract.yaml").read_bytes())
    if checked.receipt.suite is not None:
        workspace.publish(checked.receipt.suite.path, (folder / checked.receipt.suite.path).read_bytes())
    link = workspace.publish_document(checked.receipt)
    refs.move(workspace, accepted_ref("sales"), link, expected=None, reason="the data passed the gate")


def marks(answer: Answer) -> dict[str, str]:
    """The mark of every rule in the table."""
    pattern = re.compile(r"^(✔ held|✖ broken|– not evaluated|! \w+) +(\S+)", re.MULTILINE)
    return {rule: mark for mark, rule in pattern.findall(answer.out)}


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    """A pipeline of 600 amounts whose contract compares with what was accepted."""
    (tmp_path / "contract.yaml").write_text(COMPARED)
    (tmp_path / "sales.yaml").write_text(
        "pipeline: sales\nsource: {format: parquet, uri: data}\ncontract: contract.yaml\nregistry: {model: sales}\n"
    )
    write_amounts(tmp_path / "data", shift=0, num_rows=600)
    return tmp_path


def test_volume_and_drift_are_held_against_the_accepted_snapshot_or_not_judged(headway: Headway, sales: Path) -> None:
    first = headway("contract", "check", "sales.yaml", "--report", "r.html")
    assert first.code == 0, first.err
    assert {marks(first)[rule] for rule in ("volume", "steady")} == {"– not evaluated"}
    assert "no accepted snapshot" in first.out
    assert "<h2>Not evaluated" in (sales / "r.html").read_text()
    assert not (sales / "workspace").exists()

    accept_what_lies_there(sales)
    write_amounts(sales / "data", shift=1, num_rows=700)
    assert {marks(headway("contract", "check", "sales.yaml"))[rule] for rule in ("volume", "steady")} == {"✔ held"}
    write_amounts(sales / "data", shift=30, num_rows=1000)
    broken = headway("contract", "check", "sales.yaml")
    assert broken.code == 4
    assert {marks(broken)[rule] for rule in ("volume", "steady")} == {"✖ broken"}
    alone = headway("contract", "check", "contract.yaml", "data")
    assert {marks(alone)[rule] for rule in ("volume", "steady")} == {"– not evaluated"}


def test_many_rules_that_compare_with_nothing_yet_are_named_in_one_line(headway: Headway, sales: Path) -> None:
    drifts = ", ".join(f"{{id: steady-{number}, columns: [amount], max_psi: 0.2}}" for number in range(6))
    (sales / "contract.yaml").write_text(f"{COMPARED.partition('drift')[0]}drift: [{drifts}]\n")
    answer = headway("contract", "check", "sales.yaml")
    assert "– not evaluated: no accepted snapshot, for volume, steady-0 and 5 more: a retrain" in answer.out
    assert "steady-5" not in answer.out and answer.code == 0


def test_a_breaking_change_is_refused_by_the_check_as_by_the_gate(headway: Headway, sales: Path) -> None:
    accept_what_lies_there(sales)
    (sales / "contract.yaml").write_text(COMPARED.replace("double}", "double, min: -1000}"))
    answer = headway("contract", "check", "sales.yaml")
    assert answer.code == 2
    assert "version 1.0.0 breaks what 1.0.0 accepted: columns.amount.min" in answer.err


def test_the_accepted_data_of_another_workspace_are_compared_with_where_it_is_named(
    headway: Headway, sales: Path
) -> None:
    accept_what_lies_there(sales, "elsewhere")
    write_amounts(sales / "data", shift=0, num_rows=2000)
    assert headway("contract", "check", "sales.yaml").code == 0
    named = headway("contract", "check", "sales.yaml", "--workspace", str(sales / "elsewhere"))
    assert (named.code, marks(named)["volume"]) == (4, "✖ broken")
    alone = headway("contract", "check", "contract.yaml", "data", "-w", "elsewhere")
    assert alone.code == 2 and "--workspace: goes with a pipeline file" in alone.err


def test_an_accepted_contract_that_cannot_be_read_is_told_beside_the_verdict(headway: Headway, sales: Path) -> None:
    accept_what_lies_there(sales)
    assert "cannot be read" not in headway("contract", "check", "sales.yaml").out
    (sales / "workspace" / "contract.yaml").write_text("name: other\n")
    (sales / "contract.yaml").write_text(COMPARED.replace("double}", "double, min: -1000}"))
    answer = headway("contract", "check", "sales.yaml")
    assert answer.code == 0 and "✔ passed" in answer.out
    assert "! the contract that the last data were accepted under cannot be read (contract.yaml: " in answer.out
    machine = json.loads(headway("contract", "check", "sales.yaml", "--json").out)
    assert "cannot be read" in machine["warning"]


def test_a_suite_that_asks_more_is_refused_by_the_check_as_by_the_gate(headway: Headway, sales: Path) -> None:
    expectation = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "max_value": 1000}}
    (sales / "suite.json").write_text(json.dumps({"expectations": [expectation]}))
    (sales / "contract.yaml").write_text(COMPARED + "suite: suite.json\n")
    accept_what_lies_there(sales)
    assert headway("contract", "check", "sales.yaml").code == 0
    expectation["kwargs"]["max_value"] = 999
    (sales / "suite.json").write_text(json.dumps({"expectations": [expectation]}))
    answer = headway("contract", "check", "sales.yaml")
    assert answer.code == 2
    assert "version 1.0.0 breaks what 1.0.0 accepted: suite.1" in answer.err
