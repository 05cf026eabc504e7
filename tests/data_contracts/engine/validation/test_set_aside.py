"""A few rows that break a quarantine rule are quarantined; what such a rule cannot judge is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headway.data_contracts.rules.contract import parse_contract
from tests.data_contracts.engine.validation.conftest import (
    MIDDLE,
    NUM_ROWS,
    SECRET,
    TEXT,
    Validate,
    clean_columns,
    failures,
    plant,
    verdict,
)
from tests.data_contracts.local_rows import listed_rows


def test_a_few_bad_rows_are_set_aside_and_the_rest_is_judged(judge: Validate, tmp_path: Path) -> None:
    columns = clean_columns()
    for row in (1, MIDDLE, 2999):
        columns["is_clean"][row] = False
        columns["score"][row] = -1.0
    receipt = judge(columns)
    assert failures(receipt) == {}
    assert receipt.passed
    assert receipt.num_rows == NUM_ROWS - 3
    assert receipt.num_quarantined == 3
    assert listed_rows(tmp_path / "left-out.parquet", 10) == [
        ("rows.parquet", 1, ("clean",)),
        ("rows.parquet", MIDDLE, ("clean",)),
        ("rows.parquet", 2999, ("clean",)),
    ]
    assert verdict(receipt, "clean").observed == "3 of 3,000 rows quarantined"
    assert receipt.metrics["num_quarantined"] == 3


def test_a_row_that_breaks_two_rules_is_listed_once_with_both(judge: Validate, tmp_path: Path) -> None:
    rules = "rules:\n  - {id: tiny, column: size_bytes, min: 2, max: 100, action: quarantine}\n"
    contract = parse_contract(TEXT.replace("rules:\n", rules).replace("0.001", "1"), where="events.yaml")
    columns = plant("is_clean", False, row=100)
    receipt = judge(columns, contract)
    rules_of = {row.row: row.rule_ids for row in listed_rows(tmp_path / "left-out.parquet", NUM_ROWS)}
    assert rules_of[100] == ("clean", "tiny")
    assert len(rules_of) == receipt.num_quarantined == receipt.metrics["num_quarantined"] == NUM_ROWS // 100


def test_too_large_a_quarantine_refuses_the_data(judge: Validate) -> None:
    columns = clean_columns()
    for row in range(4):
        columns["is_clean"][row] = False
    receipt = judge(columns)
    assert failures(receipt) == {"quarantine": "4 of 3,000 rows, 3 allowed; `quarantine_limit_ratio: 0.0014` is enough"}
    assert not receipt.passed


def test_a_quarantine_rule_that_cannot_be_judged_fails_and_sets_nothing_aside(judge: Validate) -> None:
    rows = pa.table(clean_columns())
    wrong = pa.array([SECRET] * NUM_ROWS)
    receipt = judge(table=rows.set_column(rows.schema.get_field_index("is_clean"), "is_clean", wrong))
    assert not receipt.passed
    assert failures(receipt)["clean"] == "it is string, not bool"
    assert (receipt.quarantine, receipt.num_quarantined) == (None, 0)


def test_a_quarantine_rule_that_cannot_be_judged_refuses_whatever_its_severity(judge: Validate) -> None:
    """The rows that it would have quarantined are not known, so that they would be trained on."""
    lenient = TEXT.replace("is_clean: {type: bool}", "is_clean: {type: bool, severity: warning}")
    lenient = lenient.replace("action: quarantine}", "action: quarantine, severity: warning}")
    rows = pa.table(clean_columns())
    wrong = pa.array([SECRET] * NUM_ROWS)
    table = rows.set_column(rows.schema.get_field_index("is_clean"), "is_clean", wrong)
    receipt = judge(table=table, contract=parse_contract(lenient, where="events.yaml"))
    assert [each.rule_id for each in receipt.verdicts if not each.passed and each.severity == "critical"] == ["clean"]
    assert not receipt.passed
