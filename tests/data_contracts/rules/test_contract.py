"""A contract is checked when it is read, before anything is spent on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.data_contracts.rules import contract as contract_module
from headway.data_contracts.rules.contract import Contract, load_contract, parse_contract
from headway.data_contracts.rules.set_rules import Balance, Drift, Freshness, Key, Leakage, Ordering, Splits, VolumeRule
from headway.data_contracts.store.errors import ConfigError

SET_RULES = (Key, Ordering, Balance, Leakage, Drift, Freshness)
SHIPPED = Path(contract_module.__file__).parents[1] / "contracts" / "python-sources.yaml"
HEAD = "name: events\nversion: 1.2.3\n"
COLUMNS = "columns:\n  id: {type: int64, unique: true}\n  label: {type: string, in: [a, b]}\n"


def test_the_shipped_contract_is_one() -> None:
    contract = load_contract(SHIPPED)
    assert (contract.name, contract.version) == ("python-sources", "1.0.0")
    assert [rule.id for rule in contract.rules if rule.action == "quarantine"] == ["utf-8"]


def test_the_reference_shows_every_key_there_is() -> None:
    shown = load_contract(SHIPPED.with_name("reference.yaml"))
    given = {name for name in Contract.model_fields if name in shown.model_fields_set}
    assert given == set(Contract.model_fields) - {"suite"}  # a file of its own
    assert "suite:" in SHIPPED.with_name("reference.yaml").read_text()
    columns, rules = set[str](), set[str]()
    for column in shown.columns.values():
        columns |= column.model_fields_set
    for rule in (*shown.rules, *shown.statistics, *shown.set_rules):
        rules |= {f"{type(rule).__name__}.{name}" for name in rule.model_fields_set}
    asked = {f"{model.__name__}.{name}" for model in SET_RULES for name in model.model_fields}
    assert columns == set(contract_module.Column.model_fields)
    assert {name.partition(".")[2] for name in asked - rules} <= {"description", "severity"}


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
        (HEAD + "columns: {id: {type: int46}}", "'int46' is no column type. Did you mean `int64`?"),
        (HEAD + "columns: {id: {type: int}}", "Did you mean `int64`?"),
        (HEAD + "columns: {id: {type: float64}}", "Did you mean `double`?"),
        (HEAD + "columns: {id: {type: str}}", "Did you mean `string`?"),
        (HEAD + "columns: {id: {type: datetime}}", "Did you mean `timestamp[us]`?"),
        (HEAD + "columns: {}", "columns (line 3)"),
        (HEAD.replace("1.2.3", "1.2") + COLUMNS, "version (line 2): must be text, given 1.2"),
        (HEAD.replace("1.2.3", "one") + COLUMNS, "version (line 2)"),
        (HEAD + "columns: {id: {type: int64, min: 3, max: 2}}", "the lower bound 3 is above the upper bound 2"),
        (HEAD + "columns: {id: {type: string, pattern: '('}}", "not a regular expression of RE2 (missing ): ()"),
        (HEAD + "columns: {id: {type: string, pattern: '(?!test).*'}}", "of RE2 (invalid perl operator: (?!)"),
        (
            HEAD + COLUMNS + r"rules: [{id: a, column: label, pattern: '(a)\1'}]",
            r"of RE2 (invalid escape sequence: \1)",
        ),
        (HEAD + r"columns: {id: {type: string, pattern: '\Qa'}}", "not a regular expression of RE2"),
        (HEAD + COLUMNS + "rules: [{id: a, column: id}]", "the rule asks nothing"),
        (HEAD + COLUMNS + "rules: [{id: a, column: idd, min: 1}]", "`idd`, which is no column"),
        (
            HEAD + COLUMNS + "rules: [{id: a, column: id, min: 1}, {id: a, column: id, max: 1}]",
            "two rules are called a",
        ),
        (HEAD + COLUMNS + "rules: [{id: a, column: id, min: 1, action: drop}]", "one of fail, quarantine"),
        (
            HEAD + COLUMNS + "rules: [{id: a, column: id, min: 1, action: quarantine, max_failed_ratio: 0.1}]",
            "quarantine_limit_ratio",
        ),
        (HEAD + COLUMNS + "rules: [{id: a, column: id, min: 1, severity: fatal}]", "one of critical, warning, info"),
        (HEAD + COLUMNS + "statistics: [{id: a, column: id, statistic: mean}]", "the rule asks nothing"),
        (HEAD + COLUMNS + "quarantine_limit_ratio: 1.5", "quarantine_limit_ratio (line 6)"),
        (HEAD + "columns: {id: {type: bool, min: 1}}", "min and max go with numbers, dates and times, not with bool"),
        (HEAD + "columns: {id: {type: int64, min: a}}", "'a' is no number"),
        (HEAD + "columns: {id: {type: int64, pattern: a}}", "pattern and no_pii go with string"),
        (HEAD + "columns: {id: {type: int64, no_pii: [email]}}", "pattern and no_pii go with string"),
        (HEAD + "columns: {id: {type: string, in: [1, 2]}}", "`in` holds 1, which is no text: put it in quotes"),
        (HEAD + "columns: {id: {type: string, in: ['1', true]}}", "`in` holds true, which is no text"),
        (HEAD + "columns: {id: {type: int64, max_length: 1}}", "min_length and max_length go with string"),
        (HEAD + "columns: {id: {type: int64, elements: {max: 1}}}", "elements go with lists"),
        (HEAD + "columns: {id: {type: 'list<string>', elements: {max: 1}}}", "go with lists of numbers"),
        (HEAD + "columns: {id: {type: 'date32[day]', min: soon}}", "'soon' is no date such as"),
        (
            HEAD + "columns: {id: {type: 'timestamp[us, tz=UTC]', min: 2026-01-01T00:00:00}}",
            "needs its offset from UTC",
        ),
        (HEAD + "columns: {id: {type: 'decimal128(9, 2)', min: 'x'}}", "'x' is no decimal number"),
        (HEAD + "columns: {id: {type: 'decimal128(9, 2)', min: '10', max: '5'}}", "the lower bound 10 is above"),
        (HEAD + "columns: {id: {type: double, min: 1, max: 0.5}}", "the lower bound 1 is above the upper bound 0.5"),
        (
            HEAD + "columns: {id: {type: 'timestamp[us]', min: '2026-01-01', max: '2026-01-02T00:00Z'}}",
            "cannot be compared",
        ),
        (HEAD + COLUMNS + "keys: [{id: k, columns: [id, gone]}]", "`gone`, which is no column"),
        (HEAD + COLUMNS + "freshness: [{id: f, column: id, max_age_h: 1}]", "dates and timestamps, not with int64"),
        (HEAD + COLUMNS + "drift: [{id: d, columns: [id]}]", "give max_psi or max_js"),
        (HEAD + COLUMNS + "drift: [{id: d, columns: [id], of: lengths, max_js: 0.1}]", "lengths go with string"),
        (HEAD + COLUMNS + "balance: [{id: b, column: label}]", "give min_share or max_share"),
        (HEAD + COLUMNS + "splits: {sql: a, column: id}", "give either column or sql"),
        (HEAD + COLUMNS + "leakage: [{id: l, columns: [id], compare: similar}]", "one column of type string"),
        (HEAD + COLUMNS + "keys: [{id: rows, columns: [id]}]", "two rules are called rows"),
        (HEAD + COLUMNS + "rows: {min: 9, max: 3}", "rows (line 6): min 9 is above max 3"),
        (
            HEAD + COLUMNS + "statistics: [{id: a, column: id, statistic: mean, min: 2, max: 1}]",
            "statistics[0] (line 6): min 2 is above max 1",
        ),
        (
            HEAD + COLUMNS + "keys:\n  - {id: k, columns: [id]}\n  - {id: l, columns: [lable]}",
            "keys[1] (line 8): rule l speaks of `lable`, which is no column of the contract. Did you mean `label`?",
        ),
        (
            HEAD + COLUMNS + "keys: [{id: k, columns: ['{location}']}]",
            "keys[0] (line 6): rule k speaks of `{location}`, which is no column",
        ),
        (HEAD + COLUMNS + "splits: {column: part}", "splits.column (line 6): splits speaks of `part`"),
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
    with pytest.raises(
        ConfigError, match=r"latin\.yaml: is not text in UTF-8 \(byte 0x.. in line \d+\)\. Save it as UTF-8"
    ):
        load_contract(tmp_path / "latin.yaml")


def test_every_field_of_a_contract_is_described() -> None:
    models = (
        Contract,
        contract_module.Column,
        contract_module.Rule,
        contract_module.RowCount,
        contract_module.Statistic,
        *SET_RULES,
        Splits,
        VolumeRule,
    )
    undescribed = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert undescribed == []


def test_numbers_with_an_exponent_and_dates_mean_what_they_look_like() -> None:
    text = HEAD + "columns: {a: {type: double, max: 1e6}, b: {type: 'date32[day]', min: 2026-01-31}}\n"
    columns = parse_contract(text, where="c.yaml").columns
    assert columns["a"].max == 1e6
    assert columns["b"].min == "2026-01-31"


def test_bounds_given_as_text_are_in_order_as_values_of_their_column() -> None:
    columns = (
        "{a: {type: 'decimal128(10, 2)', min: '5', max: '10'}, "
        "b: {type: 'timestamp[us, tz=UTC]', min: '2026-01-01T13:00:00+02:00', max: '2026-01-01T12:00:00+00:00'}}"
    )
    assert set(parse_contract(HEAD + f"columns: {columns}\n", where="c.yaml").columns) == {"a", "b"}
