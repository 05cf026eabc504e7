"""`headway contract`: a first contract in one command, and a check that needs neither workspace nor training."""

from __future__ import annotations

import datetime
import json
import random
import re
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from data_contracts import refs
from data_contracts.contract import load_contract
from data_contracts.publication import Workspace
from flows.command_line import run as run_command
from flows.contract_check import check, what_is_asked
from flows.pipeline_spec import load_pipeline
from tasks.acceptance import accepted_ref

NUM_ROWS = 600
EMAIL = "ada.lovelace@example.org"


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Headway = Callable[..., Answer]


@pytest.fixture
def headway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headway:
    """The command, run in a folder of its own; a terminal wide enough not to fold words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    for name in ("HEADWAY_PROJECT", "HEADWAY_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)

    def ask(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["headway", *arguments])
        code = run_command()
        return Answer(code, *capsys.readouterr())

    return ask


def orders() -> pa.Table:
    chance, numbers = random.Random(0), range(NUM_ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "amount": pa.array([round(chance.gauss(50, 10), 2) for _ in numbers]),
            "country": pa.array([chance.choice(["DE", "FR", "US"]) for _ in numbers]),
            "label": pa.array([chance.randrange(10) for _ in numbers], pa.int64()),
            "contact": pa.array([f"{number}.{EMAIL}" for number in numbers]),
            "discount": pa.array([None if number % 7 else 0.5 * number for number in numbers]),
        }
    )


def write_parquet(folder: Path, table: pa.Table | None = None) -> None:
    folder.mkdir()
    whole = orders() if table is None else table
    pq.write_table(whole.slice(0, NUM_ROWS // 2), folder / "a.parquet")
    pq.write_table(whole.slice(NUM_ROWS // 2), folder / "b.parquet")


def test_a_draft_passes_on_its_own_data_at_once_and_asks_what_to_decide(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    drafted = headway("contract", "init", "data", "--name", "orders")
    assert drafted.code == 0, drafted.err
    assert "may hold personal data: contact" in drafted.out
    assert "headway contract check orders.pipeline.yaml" in drafted.out
    text = (tmp_path / "orders.contract.yaml").read_text()
    assert "DECIDE" in text
    assert EMAIL not in text
    checked = headway("contract", "check", "orders.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
    assert "✔ passed orders 1.0.0" in checked.out
    assert "600 rows in 2 files" in checked.out


def write_csv(folder: Path) -> None:
    folder.mkdir()
    pa.csv.write_csv(orders(), folder / "a.csv")


def write_tabs(folder: Path) -> None:
    folder.mkdir()
    pa.csv.write_csv(orders(), folder / "a.tsv", pa.csv.WriteOptions(delimiter="\t"))


def write_json_lines(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in orders().to_pylist()))


def write_partitions(folder: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        (folder / f"day={day}").mkdir(parents=True)
        pq.write_table(orders(), folder / f"day={day}" / "part.parquet")


FORMATS = {"csv": write_csv, "tsv": write_tabs, "json-lines": write_json_lines, "partitions": write_partitions}


@pytest.mark.parametrize("written", FORMATS)
def test_tables_of_every_format_pass_their_own_draft(headway: Headway, tmp_path: Path, written: str) -> None:
    FORMATS[written](tmp_path / "data")
    drafted = headway("contract", "init", "data", "--name", "orders")
    assert drafted.code == 0, drafted.err
    contract = load_contract(tmp_path / "orders.contract.yaml")
    assert contract.columns["id"].type == "int64"
    assert contract.columns["country"].one_of == ("DE", "FR", "US")
    assert contract.columns["discount"].nullable
    for asked in (["orders.pipeline.yaml"], ["orders.contract.yaml", "data"]):
        checked = headway("contract", "check", *asked)
        assert checked.code == 0, checked.out + checked.err


def test_types_that_files_do_not_carry_are_pinned_in_the_pipeline(headway: Headway, tmp_path: Path) -> None:
    write_csv(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    types = load_pipeline(tmp_path / "orders.pipeline.yaml").source.column_types
    assert types == {
        name: column.type for name, column in load_contract(tmp_path / "orders.contract.yaml").columns.items()
    }


def test_what_breaks_a_contract_is_told_first_with_exit_code_4(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    bad = orders().set_column(2, "country", pa.array(["XX", *orders()["country"].to_pylist()[1:]]))
    write_parquet(tmp_path / "new", bad)
    answer = headway("contract", "check", "orders.contract.yaml", "new")
    assert answer.code == 4
    assert "✖ REFUSED orders 1.0.0" in answer.out
    first = answer.out.splitlines()[3]
    assert first.split()[:3] == ["✖", "broken", "country.one_of"]
    assert "1 of 600 rows break it" in first
    assert "XX" not in answer.out


def test_machines_read_json_and_nothing_else(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    answer = headway("contract", "check", "orders.contract.yaml", "data", "--json")
    found = json.loads(answer.out)
    assert (answer.code, found["passed"], found["num_rows"], found["num_files"]) == (0, True, NUM_ROWS, 2)
    assert {"rule_id", "severity", "passed", "observed", "description"} <= set(found["verdicts"][0])


def test_a_check_leaves_nothing_behind_but_the_report_that_was_asked_for(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    before = set(tmp_path.rglob("*"))
    assert "`--report FILE` writes it" in headway("contract", "check", "orders.pipeline.yaml").out
    assert set(tmp_path.rglob("*")) == before
    checked = headway("contract", "check", "orders.pipeline.yaml", "--report", "out/report.html")
    assert (checked.code, checked.out.splitlines()[-1]) == (0, "report  out/report.html")
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "out", tmp_path / "out" / "report.html"}
    assert "<h1>Passed</h1>" in (tmp_path / "out" / "report.html").read_text()


def test_rows_set_aside_are_named_and_their_values_are_not(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    (tmp_path / "c.yaml").write_text(
        "name: orders\nversion: 1.0.0\nextra_columns: true\nquarantine_limit_ratio: 0.1\n"
        "columns: {contact: {type: string}}\n"
        "rules: [{id: odd-contact, column: contact, pattern: '[1-9].*', action: quarantine}]\n"
    )
    answer = headway("contract", "check", "c.yaml", "data", "--json", "--report", "r.html")
    found = json.loads(answer.out)
    assert answer.code == 0
    assert found["num_quarantined_by_rule"] == {"odd-contact": 1}
    assert found["quarantined"] == [{"path": "a.parquet", "row": 0, "rule_ids": ["odd-contact"]}]
    assert "odd-contact" in (tmp_path / "r.html").read_text()
    assert EMAIL not in answer.out + (tmp_path / "r.html").read_text()


def test_a_bad_contract_is_told_by_file_line_key_and_nearest_name(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    (tmp_path / "c.yaml").write_text("name: x\nversion: 1.0.0\ncolumns:\n  id: {type: int64, nulable: true}\n")
    answer = headway("contract", "check", "c.yaml", "data")
    assert answer.code == 2
    for said in ("c.yaml", "line 4", "columns.id.nulable", "`nullable`"):
        assert said in answer.err


def test_a_contract_without_data_is_told_apart_from_a_pipeline(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("name: x\nversion: 1.0.0\ncolumns: {id: {type: int64}}\n")
    answer = headway("contract", "check", "c.yaml")
    assert answer.code == 2
    assert "headway contract check c.yaml DATA" in answer.err


def test_files_that_are_not_there_are_refused_by_name(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    missing = headway("contract", "check", "missing.yaml", "data")
    assert (missing.code, "missing.yaml" in missing.err) == (2, True)
    assert headway("contract", "check", "missing").code == 2


def test_data_behind_a_uri_are_drafted_and_checked(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "local")
    uri = f"memory://{uuid.uuid4().hex}/orders"
    fsspec.filesystem("memory").put(str(tmp_path / "local"), uri, recursive=True)
    drafted = headway("contract", "init", uri)
    assert drafted.code == 0, drafted.err
    assert load_pipeline(tmp_path / "orders.pipeline.yaml").source.uri == uri
    checked = headway("contract", "check", "orders.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
    assert "600 rows in 2 files" in checked.out


@pytest.mark.parametrize("existing", ["orders.contract.yaml", "orders.pipeline.yaml"])
def test_nothing_is_overwritten(headway: Headway, tmp_path: Path, existing: str) -> None:
    write_parquet(tmp_path / "data")
    (tmp_path / existing).write_text("mine")
    answer = headway("contract", "init", "data", "--name", "orders")
    assert answer.code == 2
    assert "exists already" in answer.err
    assert (tmp_path / existing).read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"data", existing}


def test_no_files_and_no_rows_are_refused_and_write_nothing(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert headway("contract", "init", "empty").code == 3
    pq.write_table(orders().slice(0, 0), tmp_path / "empty" / "a.parquet")
    answer = headway("contract", "init", "empty")
    assert answer.code == 3
    assert "no rows" in answer.err
    assert headway("contract", "init", "nowhere").code == 3
    assert {path.name for path in tmp_path.iterdir()} == {"empty"}


@pytest.mark.parametrize("name", ["Orders", "a b", "-x", "é"])
def test_a_name_that_cannot_be_one_is_refused_with_one_that_can(headway: Headway, tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path / "data")
    assert headway("contract", "init", "data", f"--name={name}").code == 2


def test_a_draft_may_lie_anywhere_and_its_pipeline_finds_the_data(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    assert headway("contract", "init", "data/a.parquet", "--out", "deep/er/mine.yaml").code == 0
    pipeline = load_pipeline(tmp_path / "deep" / "er" / "mine.pipeline.yaml")
    assert pipeline.contract == "mine.yaml"
    assert pipeline.source.include == ("a.parquet",)
    assert load_contract(tmp_path / "deep" / "er" / "mine.yaml").name == "a"
    checked = headway("contract", "check", "deep/er/mine.pipeline.yaml")
    assert checked.code == 0
    assert "300 rows in 1 file" in checked.out


def test_one_file_names_its_draft_and_the_label_left_open_is_told_with_what_it_takes(
    headway: Headway, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    rows = "".join(f"{number % 90},{'no' if number % 3 else 'yes'}\n" for number in range(NUM_ROWS))
    (tmp_path / "data" / "Churn of 2026.csv").write_text(f"age,churned\n{rows}")
    assert headway("contract", "init", "data").code == 0
    assert load_contract(tmp_path / "churn-of-2026.contract.yaml").name == "churn-of-2026"
    path = tmp_path / "churn-of-2026.pipeline.yaml"
    drafted = path.read_text()
    assert load_pipeline(path).registry.model == "churn-of-2026"
    assert "DECIDE: `label: COLUMN`, the column to predict (`churned`, perhaps)" in drafted
    assert "Take it out of `numeric` or `categorical`" in drafted
    assert headway("contract", "check", path.name).code == 0
    assert "no column to predict" in headway("plan", path.name).err
    path.write_text(drafted.replace("  encoder:", "  encoder:\n    label: churned", 1))
    twice = headway("plan", path.name)
    assert twice.code == 2 and "`churned` in `categorical` and in `label`" in twice.err
    path.write_text(path.read_text().replace("categorical: [churned]", "categorical: []"))
    assert headway("plan", path.name).code == 0


def test_text_files_are_drafted_with_bytes_of_unknown_meaning_set_aside(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(300):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number}\n" * (1 + number % 5))
    (tmp_path / "texts" / "bad.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "texts" / "note.md").write_text("left out")
    drafted = headway("contract", "init", "texts")
    assert drafted.code == 0, drafted.err
    assert "1 file of another kind" in drafted.out
    assert load_pipeline(tmp_path / "texts.pipeline.yaml").shards.encoder.kind == "byte-pair"
    checked = headway("contract", "check", "texts.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
    assert "300 rows in 301 files, 1 set aside" in checked.out


def test_a_plan_reads_the_drafted_pipeline_of_a_table(headway: Headway, tmp_path: Path) -> None:
    write_partitions(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    shards = load_pipeline(tmp_path / "orders.pipeline.yaml").shards
    assert (shards.group_by, shards.split_by) == ("folder", "row")
    answer = headway("plan", "orders.pipeline.yaml")
    assert answer.code == 0, answer.err
    assert "2 files" in answer.out


def test_a_key_decides_the_split_of_a_table(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    shards = load_pipeline(tmp_path / "orders.pipeline.yaml").shards
    assert (shards.split_by, shards.split_key) == ("key", "id")


def test_a_key_that_is_null_in_a_row_or_binary_is_not_drafted_as_what_decides_the_split(
    headway: Headway, tmp_path: Path
) -> None:
    """Sharding would refuse the one at its first null, the other by its type."""
    numbers = range(NUM_ROWS)
    gaps = pa.array([None, *numbers[1:]], pa.int64())
    digests = pa.array([b"%06d" % number for number in numbers])
    write_parquet(tmp_path / "data", pa.table({"gaps": gaps, "digest": digests}))
    headway("contract", "init", "data", "--name", "gaps")
    columns = load_contract(tmp_path / "gaps.contract.yaml").columns
    assert columns["gaps"].unique and columns["digest"].unique
    assert load_pipeline(tmp_path / "gaps.pipeline.yaml").shards.split_by == "row"
    write_parquet(tmp_path / "more", pa.table({"gaps": gaps, "digest": digests, "name": digests.cast(pa.string())}))
    headway("contract", "init", "more", "--name", "more")
    assert load_pipeline(tmp_path / "more.pipeline.yaml").shards.split_key == "name"


def test_leakage_is_judged_by_the_pipeline_s_own_split(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(200):
        (tmp_path / "texts" / f"{number}.txt").write_text("the same text\n")
    headway("contract", "init", "texts")
    with (tmp_path / "texts.contract.yaml").open("a") as stream:
        stream.write("leakage: [{id: same-text, columns: [text]}]\n")
    answer = headway("contract", "check", "texts.pipeline.yaml")
    assert answer.code == 4, answer.err
    assert answer.out.splitlines()[3].split()[:3] == ["✖", "broken", "same-text"]
    alone = headway("contract", "check", "texts.contract.yaml", "texts")
    assert alone.code == 2
    assert "which split a row is in" in alone.err


@pytest.mark.parametrize(
    ("split", "leaks"),
    [("split_by: file", False), ("split_by: row", True), ("split_by: key, split_key: text", False)],
)
def test_leakage_of_a_table_is_judged_by_the_split_that_sharding_will_make(headway, tmp_path, split, leaks) -> None:
    (tmp_path / "data").mkdir()
    texts = [f"text {number // 2}" for number in range(400)]
    for part in range(2):
        pq.write_table(pa.table({"text": texts[200 * part : 200 * part + 200]}), tmp_path / "data" / f"{part}.parquet")
    (tmp_path / "contract.yaml").write_text(
        "name: texts\nversion: 1.0.0\ncolumns: {text: {type: string, nullable: true}}\n"
        "leakage: [{id: same-text, columns: [text]}]\n"
    )
    (tmp_path / "texts.yaml").write_text(
        "pipeline: texts\nsource: {format: parquet, uri: data}\ncontract: contract.yaml\n"
        f"shards: {{heldout_fraction: 0.5, {split}}}\nregistry: {{model: texts}}\n"
    )
    answer = headway("contract", "check", "texts.yaml")
    assert answer.code == (4 if leaks else 0), answer.out + answer.err
    assert ("are shared by two splits" in answer.out) == leaks


def test_a_great_expectations_suite_beside_the_contract_is_held_as_well(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    expectation = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "amount", "min_value": 1000},
        "severity": "critical",
    }
    (tmp_path / "suite.json").write_text(json.dumps({"name": "theirs", "expectations": [expectation]}))
    with (tmp_path / "orders.contract.yaml").open("a") as stream:
        stream.write("suite: suite.json\n")
    answer = headway("contract", "check", "orders.pipeline.yaml")
    assert answer.code == 4, answer.err
    broken = [line for line in answer.out.splitlines() if "✖ broken" in line]
    assert len(broken) == 1, answer.out
    assert "amount" in broken[0]


def test_rows_that_came_too_late_are_refused_by_the_clock(headway: Headway, tmp_path: Path) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=30)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"at": pa.array([yesterday], pa.timestamp("us", tz="UTC"))}), tmp_path / "data/a.parquet")
    for max_age_h, code in ((48, 0), (24, 4)):
        (tmp_path / "c.yaml").write_text(
            "name: x\nversion: 1.0.0\ncolumns: {at: {type: 'timestamp[us, tz=UTC]'}}\n"
            f"freshness: [{{id: fresh, column: at, max_age_h: {max_age_h}}}]\n"
        )
        answer = headway("contract", "check", "c.yaml", "data", "--report", "r.html")
        assert answer.code == code, answer.out
        assert "the newest row is 30.0 hours old" in answer.out
        assert f"<h1>{'Refused' if code else 'Passed'}</h1>" in (tmp_path / "r.html").read_text()


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
    checked = check(what_is_asked("sales.yaml", ""), now_unix_s=0.0)
    workspace = Workspace.create(str(folder / workspace_name))
    workspace.publish(checked.receipt.contract.path, (folder / "contract.yaml").read_bytes())
    if checked.receipt.suite is not None:
        workspace.publish(checked.receipt.suite.path, (folder / checked.receipt.suite.path).read_bytes())
    link = workspace.publish_document(checked.receipt)
    refs.move(workspace, accepted_ref("sales"), link, expected=None, reason="the data passed the gate")


def marks(answer: Answer) -> dict[str, str]:
    """The mark of every rule in the table."""
    pattern = re.compile(r"^(✔ held|✖ broken|– not judged|! \w+) +(\S+)", re.MULTILINE)
    return {rule: mark for mark, rule in pattern.findall(answer.out)}


def test_volume_and_drift_are_held_against_the_accepted_snapshot_or_not_judged(
    headway: Headway, tmp_path: Path
) -> None:
    (tmp_path / "contract.yaml").write_text(COMPARED)
    (tmp_path / "sales.yaml").write_text(
        "pipeline: sales\nsource: {format: parquet, uri: data}\ncontract: contract.yaml\nregistry: {model: sales}\n"
    )
    write_amounts(tmp_path / "data", shift=0, num_rows=600)
    first = headway("contract", "check", "sales.yaml", "--report", "r.html")
    assert first.code == 0, first.err
    assert {marks(first)[rule] for rule in ("volume", "steady")} == {"– not judged"}
    assert "no accepted snapshot" in first.out
    assert "<h2>Not judged" in (tmp_path / "r.html").read_text()
    assert not (tmp_path / "workspace").exists()

    accept_what_lies_there(tmp_path)
    write_amounts(tmp_path / "data", shift=1, num_rows=700)
    assert {marks(headway("contract", "check", "sales.yaml"))[rule] for rule in ("volume", "steady")} == {"✔ held"}
    write_amounts(tmp_path / "data", shift=30, num_rows=1000)
    broken = headway("contract", "check", "sales.yaml")
    assert broken.code == 4
    assert {marks(broken)[rule] for rule in ("volume", "steady")} == {"✖ broken"}
    alone = headway("contract", "check", "contract.yaml", "data")
    assert {marks(alone)[rule] for rule in ("volume", "steady")} == {"– not judged"}


def test_a_breaking_change_is_refused_by_the_check_as_by_the_gate(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "contract.yaml").write_text(COMPARED)
    (tmp_path / "sales.yaml").write_text(
        "pipeline: sales\nsource: {format: parquet, uri: data}\ncontract: contract.yaml\nregistry: {model: sales}\n"
    )
    write_amounts(tmp_path / "data", shift=0, num_rows=600)
    accept_what_lies_there(tmp_path)
    (tmp_path / "contract.yaml").write_text(COMPARED.replace("double}", "double, min: -1000}"))
    answer = headway("contract", "check", "sales.yaml")
    assert answer.code == 2
    assert "version 1.0.0 breaks what 1.0.0 accepted: columns.amount.min" in answer.err


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    """A pipeline of 600 amounts whose contract compares with what was accepted."""
    (tmp_path / "contract.yaml").write_text(COMPARED)
    (tmp_path / "sales.yaml").write_text(
        "pipeline: sales\nsource: {format: parquet, uri: data}\ncontract: contract.yaml\nregistry: {model: sales}\n"
    )
    write_amounts(tmp_path / "data", shift=0, num_rows=600)
    return tmp_path


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


def test_a_draft_of_live_data_asks_for_fresh_rows_and_passes(headway: Headway, tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    moments = [now - datetime.timedelta(hours=hours) for hours in range(200)]
    (tmp_path / "data").mkdir()
    table = pa.table({"at": pa.array(moments, pa.timestamp("us", tz="UTC")), "x": [float(n % 50) for n in range(200)]})
    pq.write_table(table, tmp_path / "data/a.parquet")
    headway("contract", "init", "data", "--name", "live")
    contract = load_contract(tmp_path / "live.contract.yaml")
    assert [rule.column for rule in contract.freshness] == ["at"]
    assert [rule.columns for rule in contract.drift] == [("x",)]
    checked = headway("contract", "check", "live.contract.yaml", "data")
    assert checked.code == 0, checked.out + checked.err


def test_kinds_of_every_type_pass_their_own_draft(headway: Headway, tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 1, 12, 30)
    columns: dict[str, Any] = {
        "flag": pa.array([True, False, None] * 40),
        "small": pa.array([-5, 5, None] * 40, pa.int8()),
        "big": pa.array([2**63, 2**64 - 1, 7] * 40, pa.uint64()),
        "low": pa.array([-(2**63), 2**63 - 1, 0] * 40),
        "half": pa.array([0.1, float("nan"), float("-inf")] * 40, pa.float32()),
        "tiny": pa.array([5e-324, -1.5e308, 1.5e308] * 40),
        "bytes": pa.array([b"\x00", b"", None] * 40),
        "day": pa.array([moment.date()] * 120),
        "naive": pa.array([moment] * 120, pa.timestamp("us")),
        "zoned": pa.array([moment] * 120, pa.timestamp("ns", tz="Europe/Berlin")),
        "time": pa.array([moment.time()] * 120, pa.time64("us")),
        "price": pa.array([Decimal("-1.25"), Decimal("99999999.99"), None] * 40, pa.decimal128(18, 2)),
        "digest": pa.array([b"0123456789abcdef"] * 120, pa.binary(16)),
        "tokens": pa.array([[1, 50256], [], None] * 40, pa.list_(pa.int32())),
        "holes": pa.array([[1, None], [2], [3]] * 40, pa.large_list(pa.int64())),
        "vector": pa.array([[0.5, float("nan")]] * 120, pa.list_(pa.float32(), 2)),
        "words": pa.array([["a", "b"], ["c"], []] * 40, pa.list_(pa.string())),
        "coded": pa.array(["x", "y", "z"] * 40).dictionary_encode(),
        "text": pa.array(["", "é", "a,\"b'\n"] * 40),
        "odd: #name": pa.array([f"{number}" for number in range(120)]),
        "nothing": pa.array([None] * 120, pa.string()),
    }
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "data" / "a.parquet")
    assert headway("contract", "init", "data", "--name", "kinds").code == 0
    checked = headway("contract", "check", "kinds.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
