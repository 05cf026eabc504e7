"""A contract is checked when it is read, before anything is spent on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from data_contracts import contract as contract_module
from data_contracts.contract import Contract, load_contract, parse_contract
from data_contracts.errors import ConfigError

SHIPPED = Path(contract_module.__file__).parent / "contracts" / "python-sources.yaml"
HEAD = "name: events\nversion: 1.2.3\n"
COLUMNS = "columns:\n  id: {type: int64, unique: true}\n  label: {type: string, in: [a, b]}\n"


def test_the_shipped_contract_is_one() -> None:
    contract = load_contract(SHIPPED)
    assert (contract.name, contract.version) == ("python-sources", "1.0.0")
    assert [rule.id for rule in contract.rules if rule.action == "quarantine"] == ["utf-8"]


def test_a_contract_says_what_each_column_must_be() -> None:
    contract = parse_contract(HEAD + COLUMNS, where="c.yaml")
    assert contract.columns["id"].unique
    assert contract.columns["label"].one_of == ("a", "b")
    assert not contract.columns["label"].nullable


def test_values_keep_the_type_they_were_written_in() -> None:
    text = HEAD + "columns: {a: {type: bool, in: [true, 1, 1.5, '1']}}\n"
    values = parse_contract(text, where="c.yaml").columns["a"].one_of
    assert values is not None
    assert [type(value) for value in values] == [bool, int, float, str]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + "colums: {}", "Did you mean `columns`?"),
        (HEAD + "columns: {id: {type: int64, uniqe: true}}", "columns.id.uniqe (line 3): unknown key `uniqe`"),
        (HEAD + "columns: {id: {type: int46}}", "Did you mean `int64`?"),
        (HEAD + "columns: {}", "columns (line 3)"),
        (HEAD.replace("1.2.3", "1.2") + COLUMNS, "version (line 2): Input should be a valid string, given 1.2"),
        (HEAD.replace("1.2.3", "one") + COLUMNS, "version (line 2)"),
        (HEAD + "columns: {id: {type: int64, min: 3, max: 2}}", "the lower bound 3 is above the upper bound 2"),
        (HEAD + "columns: {id: {type: string, pattern: '('}}", "not a regular expression"),
        (HEAD + COLUMNS + "rules: [{id: a, column: id}]", "the rule asks nothing"),
        (HEAD + COLUMNS + "rules: [{id: a, column: idd, min: 1}]", "`idd`, which is no column"),
        (
            HEAD + COLUMNS + "rules: [{id: a, column: id, min: 1}, {id: a, column: id, max: 1}]",
            "two rules are called a",
        ),
        (HEAD + COLUMNS + "rules: [{id: a, column: id, min: 1, action: drop}]", "'fail' or 'quarantine'"),
        (
            HEAD + COLUMNS + "rules: [{id: a, column: id, min: 1, action: quarantine, max_failed_ratio: 0.1}]",
            "quarantine_limit_ratio",
        ),
        (HEAD + COLUMNS + "rules: [{id: a, column: id, min: 1, severity: fatal}]", "'critical', 'warning' or 'info'"),
        (HEAD + COLUMNS + "statistics: [{id: a, column: id, statistic: mean}]", "the rule asks nothing"),
        (HEAD + COLUMNS + "quarantine_limit_ratio: 1.5", "quarantine_limit_ratio (line 6)"),
    ],
)
def test_a_contract_that_cannot_be_meant_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        parse_contract(text, where="c.yaml")
    assert caught.value.where.startswith("c.yaml")


def test_a_contract_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: the contract cannot be read \(No such file"):
        load_contract(tmp_path / "gone.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ConfigError, match=r"latin\.yaml: the contract cannot be read \(not UTF-8\)"):
        load_contract(tmp_path / "latin.yaml")


def test_every_field_of_a_contract_is_described() -> None:
    models = (
        Contract,
        contract_module.Column,
        contract_module.Rule,
        contract_module.RowCount,
        contract_module.Statistic,
    )
    undescribed = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert undescribed == []
