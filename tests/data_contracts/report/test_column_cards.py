"""A card says the shares, the drift and the breaks of its own column, and names no value that the contract does not."""

from __future__ import annotations

from typing import Any

import pytest

from headway.data_contracts.report.column_cards import column_cards
from headway.data_contracts.report.columns import ColumnCard
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.scans.drift import jensen_shannon, population_stability_index
from headway.data_contracts.store.documents import ContractReceipt, Distribution, ExpectationVerdict, Link, StoredFile

CONTRACT = parse_contract(
    """
name: orders
version: 1.0.0
columns:
  amount: {type: double}
  country: {type: string, in: [DE, FR]}
  note: {type: string, nullable: true}
drift:
  - {id: drift, columns: [amount, country], max_psi: 0.2, max_js: 0.1}
  - {id: stricter, columns: [amount], max_psi: 0.1}
  - {id: lengths, columns: [note], of: lengths, max_js: 0.3}
""",
    where="c.yaml",
)
EDGES = (1.0, 20.0, 300.0)


def distribution(**changes: Any) -> Distribution:
    given = {
        "column": "amount",
        "of": "values",
        "edges": EDGES,
        "num_requested": 20,
        "counts": (10, 20, 30, 40),
        "num_nulls": 25,
        "num_nans": 0,
        "baseline_counts": (25, 25, 25, 25),
        "baseline_num_nulls": 0,
        "baseline_num_nans": 100,
        **changes,
    }
    return Distribution(**given)


def card(found: Distribution, *verdicts: ExpectationVerdict) -> ColumnCard:
    receipt = ContractReceipt(
        contract=StoredFile(path="c.yaml", size_bytes=1, sha256="0" * 64),
        contract_name="orders",
        contract_version="1.0.0",
        snapshot=Link(kind="snapshot", sha256="1" * 64),
        passed=True,
        num_rows=100,
        num_quarantined=0,
        quarantine=None,
        verdicts=verdicts,
        metrics={},
        distributions=(found,),
    )
    (made,) = column_cards(receipt, CONTRACT)
    return made


def verdict(rule_id: str, *, passed: bool, severity: Any = "critical") -> ExpectationVerdict:
    return ExpectationVerdict(
        rule_id=rule_id, description=rule_id, severity=severity, passed=passed, observed="7 rows break it"
    )


def test_shares_are_of_the_rows_with_a_value_and_nulls_of_all_rows() -> None:
    found = card(distribution())
    assert [bar.share for bar in found.bars] == [0.1, 0.2, 0.3, 0.4]
    assert [bar.baseline_share for bar in found.bars] == [0.25] * 4
    assert (found.null_share, found.baseline_null_share) == (0.2, 0.0)


def test_bins_are_named_by_their_bounds() -> None:
    assert [bar.label for bar in card(distribution()).bars] == [
        *("up to 1", "above 1 to 20", "above 20 to 300", "above 300")
    ]
    assert card(distribution()).ends == ("≤ 1", "20", "> 300")


def test_drift_counts_nulls_and_nan_and_stands_beside_the_strictest_limit() -> None:
    before, now = [25, 25, 25, 25, 0, 100], [10, 20, 30, 40, 25, 0]
    found = {figure.measure: figure for figure in card(distribution()).drift}
    assert found["PSI"].value == population_stability_index(before, now)
    assert found["JS"].value == jensen_shannon(before, now)
    assert (found["PSI"].limit, found["JS"].limit) == (0.1, 0.1)


def test_without_an_accepted_snapshot_there_is_no_drift() -> None:
    found = card(distribution(baseline_counts=None, baseline_num_nulls=None, baseline_num_nans=None))
    assert (found.drift, found.baseline_null_share) == ((), None)
    assert {bar.baseline_share for bar in found.bars} == {None}


def test_categories_of_the_contract_are_named_and_any_other_is_not() -> None:
    found = card(
        distribution(column="country", edges=(), categories=("DE", "FR"), counts=(3, 1, 0), baseline_counts=(2, 2, 0))
    )
    assert not found.is_numeric
    assert [(bar.label, bar.share) for bar in found.bars] == [("DE", 0.75), ("FR", 0.25), ("other", 0.0)]


def test_the_worst_break_of_the_column_decides_its_state_and_other_columns_do_not() -> None:
    broken, remark = verdict("drift.amount", passed=False), verdict("stricter", passed=False, severity="warning")
    assert card(distribution(), verdict("amount.type", passed=True)).state == "good"
    assert card(distribution(), remark).state == "warn"
    assert card(distribution(), remark, broken).state == "bad"
    assert card(distribution(), broken).problems == ("drift.amount: 7 rows break it",)
    assert card(distribution(), verdict("country.one_of", passed=False)).state == "good"


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (0, 0, 0, 1)])
def test_few_rows_and_none_make_a_card(counts: tuple[int, ...]) -> None:
    assert card(distribution(counts=counts, num_nulls=0)).null_share == 0.0
