"""A check passes when everybody who judged it says so, and nobody failed to."""

from __future__ import annotations

import pytest

from headway.data_contracts.engine.quarantine import Quarantine
from headway.data_contracts.engine.verdicts import (
    CheckEvidence,
    is_accepted,
    quarantine_verdict,
    snapshot_verdict,
    verdict_of,
    with_first_row,
)
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.store.documents import ExpectationVerdict, RowName, Severity

NOBODY = Quarantine(num_rows=100, num_quarantined=0, num_allowed=1, num_by_check={}, raised={})
NOT_NULL = Check(rule_id="a.not_null", description="a is never null", severity="critical", kind="not_null", column="a")
FINITE = Check(rule_id="a.finite", description="a is finite", severity="critical", kind="finite", column="a")


@pytest.mark.parametrize(
    ("check", "evidence", "passed"),
    [
        (NOT_NULL, CheckEvidence(expectation_passed=True, num_evaluated=100, num_broken=0), True),
        (NOT_NULL, CheckEvidence(expectation_passed=True, num_evaluated=100), False),
        (NOT_NULL, CheckEvidence(expectation_passed=False, num_evaluated=100, num_broken=3), False),
        (NOT_NULL, CheckEvidence(expectation_passed=True, num_evaluated=100, num_broken=3), False),
        (NOT_NULL, CheckEvidence(expectation_passed=False, num_evaluated=100, num_broken=0), False),
        (NOT_NULL, CheckEvidence(expectation_passed=True, num_evaluated=100, num_broken=0, raised="Error"), False),
        (FINITE, CheckEvidence(num_evaluated=100, num_broken=0), True),
        (FINITE, CheckEvidence(num_evaluated=100, num_broken=None), False),
        (FINITE, CheckEvidence(num_evaluated=100, num_broken=1), False),
    ],
)
def test_a_verdict_needs_every_judge(check: Check, evidence: CheckEvidence, passed: bool) -> None:
    assert verdict_of(check, evidence, NOBODY).passed is passed


def test_judges_that_disagree_are_said_to() -> None:
    found = verdict_of(NOT_NULL, CheckEvidence(expectation_passed=False, num_evaluated=100, num_broken=0), NOBODY)
    assert found.observed == "Great Expectations says no, though the exact count finds none"


def verdict(severity: Severity, passed: bool) -> ExpectationVerdict:
    return ExpectationVerdict(rule_id="a", description="", severity=severity, passed=passed, observed="")


@pytest.mark.parametrize(
    ("severity", "passed", "accepted"),
    [("critical", False, False), ("critical", True, True), ("warning", False, True), ("info", False, True)],
)
def test_only_a_critical_failure_refuses_the_data(severity: Severity, passed: bool, accepted: bool) -> None:
    assert is_accepted([verdict("critical", True), verdict(severity, passed)]) is accepted


@pytest.mark.parametrize(("num_quarantined", "passed"), [(0, True), (1, True), (2, False)])
def test_the_quarantine_limit_is_inclusive(num_quarantined: int, passed: bool) -> None:
    quarantine = Quarantine(num_rows=100, num_quarantined=num_quarantined, num_allowed=1, num_by_check={}, raised={})
    found = quarantine_verdict(quarantine, 0.01)
    assert found.passed is passed
    assert found.description == "At most 1 % of the rows are quarantined"
    enough = "" if passed else "; `quarantine_limit_ratio: 0.02` is enough"
    assert found.observed == f"{num_quarantined} of 100 rows, 1 allowed{enough}"


@pytest.mark.parametrize(("num_different", "passed"), [(0, True), (1, False), (None, False)])
def test_rows_must_be_the_snapshots(num_different: int | None, passed: bool) -> None:
    assert snapshot_verdict(num_different, 10).passed is passed


def test_one_file_is_no_plural() -> None:
    assert (snapshot_verdict(0, 1).observed, snapshot_verdict(0, 2).observed) == (
        "the file agrees",
        "all 2 files agree",
    )


def test_where_a_rule_is_broken_first_stands_behind_what_was_observed() -> None:
    held = ExpectationVerdict(rule_id="a", description="", severity="critical", passed=True, observed="all 5 rows hold")
    assert with_first_row(held) == "all 5 rows hold"
    rows = (RowName(path="day=1/a\n.csv", row=1234), RowName(path="b.csv", row=0))
    broken = held.model_copy(update={"passed": False, "observed": "2 of 5 rows break it", "broken_rows": rows})
    assert with_first_row(broken) == "2 of 5 rows break it, the first in day=1/a\\n.csv, row 1,234"
