"""A contract compiles to a flat list of checks, each under a name of its own."""

from __future__ import annotations

import pytest

from headway.data_contracts.engine.suite import expectation_of
from headway.data_contracts.rules.checks import Check, compile_checks
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.store.errors import ConfigError

CONTRACT = parse_contract(
    """
name: events
version: 1.0.0
columns:
  id: {type: int64, unique: true, min: 1}
  score: {type: double, nullable: true, min: 0, max: 1, severity: warning}
  label: {type: string, in: [a, b], pattern: '[a-z]', max_length: 9}
rules:
  - {id: short, column: label, min_length: 1, max_length: 3, pattern: x+, action: quarantine}
  - {id: high, column: score, min: 0.5, max_failed_ratio: 0.1, severity: info, description: Most are good.}
statistics:
  - {id: average, column: score, statistic: mean, min: 0.4}
""",
    where="events.yaml",
)
CHECKS = {check.rule_id: check for check in compile_checks(CONTRACT)}


def test_every_constraint_becomes_one_check() -> None:
    assert list(CHECKS) == [
        "columns",
        "rows",
        "id.type",
        "id.not_null",
        "id.unique",
        "id.between",
        "score.type",
        "score.finite",
        "score.between",
        "label.type",
        "label.not_null",
        "label.one_of",
        "label.pattern",
        "label.length",
        "short.pattern",
        "short.length",
        "high",
        "average",
    ]
    assert len(compile_checks(CONTRACT)) == len(CHECKS)


def test_a_check_carries_what_its_rule_says() -> None:
    assert CHECKS["score.between"].severity == "warning"
    assert CHECKS["short.pattern"].quarantine_rule == CHECKS["short.length"].quarantine_rule == "short"
    assert CHECKS["high"].description == "Most are good: score is at least 0.5"
    assert (CHECKS["high"].severity, CHECKS["high"].max_failed_ratio) == ("info", 0.1)


@pytest.mark.parametrize("version", ["1.0", "1.0.x", f"1.0.{'9' * 5000}", "\u0661.0.0"])
def test_a_version_is_of_three_numbers_that_can_be_compared(version: str) -> None:
    with pytest.raises(ConfigError, match="version"):
        parse_contract(f'name: a\nversion: "{version}"\ncolumns: {{id: {{type: int64}}}}', where="a")


def test_a_bound_that_a_double_cannot_hold_is_not_left_to_great_expectations() -> None:
    assert CHECKS["id.between"].has_expectation
    text = f"name: a\nversion: 1.0.0\ncolumns: {{id: {{type: int64, max: {2**53 + 1}}}}}"
    (between,) = (check for check in compile_checks(parse_contract(text, where="a")) if check.kind == "between")
    assert not between.has_expectation


@pytest.mark.parametrize(
    "check",
    [check for check in CHECKS.values() if check.kind not in ("type", "unique", "finite")],
    ids=lambda c: c.rule_id,
)
def test_every_other_check_has_an_expectation(check: Check) -> None:
    assert check.has_expectation
    class_name, arguments = expectation_of(check)
    assert class_name.startswith("Expect")
    assert arguments


def test_a_pattern_is_for_the_whole_text() -> None:
    assert expectation_of(CHECKS["label.pattern"])[1]["regex"] == r"\A(?:[a-z])\z"


@pytest.mark.parametrize(
    ("ratio", "num_evaluated", "expected"), [(0.0, 10, 0), (0.1, 30, 3), (0.29, 100, 29), (0.5, 3, 1)]
)
def test_a_tolerated_share_is_counted_without_rounding_errors(ratio: float, num_evaluated: int, expected: int) -> None:
    check = Check(rule_id="a", description="", severity="info", kind="not_null", max_failed_ratio=ratio)
    assert check.num_tolerated(num_evaluated) == expected


@pytest.mark.parametrize("num_rows", [3, 7, 10, 20, 100, 1000])
def test_great_expectations_tolerates_as_many_rows_as_we_do(num_rows: int) -> None:
    for number in range(num_rows):
        ratio = number / num_rows
        check = Check(rule_id="a", description="", severity="info", kind="not_null", column="a", max_failed_ratio=ratio)
        mostly = expectation_of(check)[1]["mostly"]
        assert (num_rows - number) / num_rows >= mostly > (num_rows - number - 1) / num_rows
