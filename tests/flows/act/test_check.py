"""`headway contract check` needs neither workspace nor training, and tells what breaks a contract first."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.data_contracts.foreign_files import damaged_page
from tests.flows.act.conftest import Headway
from tests.flows.act.orders import EMAIL, NUM_ROWS, orders, write_parquet

pytestmark = pytest.mark.process


def test_codes_that_are_digits_are_the_texts_that_the_contract_says(headway: Headway, tmp_path: Path) -> None:
    for name, code in (("a", "107"), ("b", "007")):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.csv").write_text(f"number,code\n1,{code}\n2,\n")
    columns = "  number: {type: int64}\n  code: {type: string, nullable: true, in: ['107', '007']}\n"
    (tmp_path / "codes.yaml").write_text(f"name: codes\nversion: 1.0.0\nrows: {{min: 4}}\ncolumns:\n{columns}")
    assert headway("contract", "check", "codes.yaml", "data").code == 0
    (tmp_path / "codes.pipeline.yaml").write_text(
        "pipeline: codes\nsource: {format: csv, uri: data}\ncontract: codes.yaml\n"
        "shards: {encoder: {kind: tabular, numeric: [number], categorical: [code]}}\n"
        "training: {recipe: {name: tabular-classifier}, max_steps: 1}\nregistry: {model: codes}\n"
    )
    assert headway("contract", "check", "codes.pipeline.yaml").code == 0


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


def test_a_report_takes_the_place_of_a_link_and_waits_for_no_reader_of_a_pipe(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "r.html").symlink_to("kept")
    assert headway("contract", "check", "orders.pipeline.yaml", "--report", "r.html").code == 0
    assert (tmp_path / "kept").read_text() == "mine" and "<h1>Passed</h1>" in (tmp_path / "r.html").read_text()
    os.mkfifo(tmp_path / "pipe")
    answer = headway("contract", "check", "orders.pipeline.yaml", "--report", "pipe")
    assert answer.code == 8 and "it is no file, and is not replaced" in answer.err


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


def write_csv(folder: Path) -> None:
    folder.mkdir()
    pa.csv.write_csv(orders(), folder / "a.csv")


def write_bad_csv(folder: Path) -> None:
    write_csv(folder)
    path = folder / "a.csv"
    lines = path.read_text().splitlines()
    lines[100], lines[200] = lines[100].replace(",", ",much", 1), "1,2"
    path.write_text("\n".join(lines) + "\n")


def test_rows_that_cannot_be_read_are_quarantined_where_the_contract_says_so(headway: Headway, tmp_path: Path) -> None:
    write_csv(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    shutil.rmtree(tmp_path / "data")
    write_bad_csv(tmp_path / "data")
    refused = headway("contract", "check", "orders.pipeline.yaml")
    assert refused.code == 3
    assert re.search(r"Of 600 rows, 2 cannot be read: rows 101 \(`amount`\), 201\.", refused.err), refused.err
    assert "unparsable_rows: quarantine" in refused.err
    contract = tmp_path / "orders.contract.yaml"
    contract.write_text(contract.read_text() + "unparsable_rows: quarantine\n")
    for requested in (["orders.pipeline.yaml"], ["orders.contract.yaml", "data"]):
        answer = headway("contract", "check", *requested, "--json", "--report", "r.html")
        found = json.loads(answer.out)
        assert answer.code == 0, answer.out
        assert (found["num_rows"], found["num_quarantined"]) == (598, 2)
        assert found["num_quarantined_by_rule"] == {"unparsable": 2}
        assert [(row["path"], row["row"]) for row in found["quarantined"]] == [("a.csv", 99), ("a.csv", 199)]
        assert "<code>unparsable</code>" in (tmp_path / "r.html").read_text()
        assert "much" not in answer.out + (tmp_path / "r.html").read_text()
    contract.write_text(contract.read_text() + "quarantine_limit_ratio: 0.002\n")
    over = headway("contract", "check", "orders.pipeline.yaml")
    assert over.code == 4
    assert "2 of 600 rows, 1 allowed; `quarantine_limit_ratio: 0.0034` is enough" in over.out


def test_a_damaged_page_is_the_file_s_fault_and_not_each_rule_s(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    (tmp_path / "data" / "b.parquet").write_bytes(damaged_page(orders(), "amount"))
    answer = headway("contract", "check", "orders.contract.yaml", "data")
    assert (answer.code, "b.parquet: column `amount` cannot be read" in answer.err) == (3, True), answer.err


def test_a_bad_contract_is_told_by_file_line_key_and_nearest_name(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    (tmp_path / "c.yaml").write_text("name: x\nversion: 1.0.0\ncolumns:\n  id: {type: int64, nulable: true}\n")
    answer = headway("contract", "check", "c.yaml", "data")
    assert answer.code == 2
    for message in ("c.yaml", "line 4", "columns.id.nulable", "`nullable`"):
        assert message in answer.err


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


def test_an_input_that_tells_the_label_is_named_and_refuses_nothing(headway: Headway, tmp_path: Path) -> None:
    tells = [number % 3 for number in range(300)]
    rows = [
        f"{number},{each},{0 if number % 100 == 1 else each},{'yes' if each else 'no'}"
        for number, each in enumerate(tells)
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("\n".join(["age,outcome,fee,left", *rows]) + "\n")
    columns = "  age: {type: int64}\n  outcome: {type: int64}\n  fee: {type: int64}\n  left: {type: string}\n"
    (tmp_path / "leak.yaml").write_text(f"name: leak\nversion: 1.0.0\ncolumns:\n{columns}")
    (tmp_path / "leak.pipeline.yaml").write_text(
        "pipeline: leak\nsource: {format: csv, uri: data}\ncontract: leak.yaml\n"
        "shards: {encoder: {kind: tabular, numeric: [age, outcome, fee], label: left}}\n"
        "training: {recipe: {name: tabular-classifier}, max_steps: 1}\nregistry: {model: leak}\n"
    )
    answer = headway("contract", "check", "leak.pipeline.yaml")
    assert answer.code == 0
    assert answer.out.splitlines()[3].split()[:3] == ["!", "warning", "label-leak"]
    assert "`outcome` alone tells `left`" in answer.out
    assert answer.out.splitlines()[4].split()[:3] == ["!", "warning", "likely-label-leak"]
    assert "`fee` alone nearly tells `left`" in answer.out
