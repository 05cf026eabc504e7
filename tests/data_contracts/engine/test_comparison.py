"""Volume and drift are judged against the last accepted snapshot; freshness, by the gate's clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine.validation import ValidationContext, validate
from headway.data_contracts.engine.verdicts import NOT_EVALUATED
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.scans.file_states import FileStates
from headway.data_contracts.scans.freshness import evaluate_freshness
from headway.data_contracts.store.documents import ContractReceipt, Distribution, Snapshot, StoredFile
from tests.data_contracts.local_rows import of_parquet

TEXT = """
name: events
version: 1.0.0
columns:
  amount: {type: double, nullable: true, finite: false}
  count: {type: int32}
  label: {type: string, in: [cat, dog]}
  city: {type: string}
  is_new: {type: bool}
  tokens: {type: 'list<int32>'}
  at: {type: 'timestamp[us, tz=UTC]'}
volume: {min_ratio: 0.8, max_ratio: 1.5}
drift:
  - {id: steady, columns: [amount, count, label, city, is_new], max_psi: 0.1, max_js: 0.05, num_bins: 10}
  - {id: lengths, columns: [tokens], of: lengths, max_psi: 0.1}
freshness:
  - {id: fresh, column: at, max_age_h: 26, max_ahead_h: 1}
"""
CONTRACT = parse_contract(TEXT, where="events.yaml")
NUM_ROWS = 4000
SECRET_CITY = "Unterstinkenbrunn"
Columns = dict[str, Any]


def sample(seed: int, num_rows: int = NUM_ROWS) -> Columns:
    random = np.random.default_rng(seed)
    return {
        "amount": pa.array(random.lognormal(size=num_rows), mask=random.random(num_rows) < 0.1),
        "count": pa.array(random.poisson(3, num_rows), pa.int32()),
        "label": random.choice(["cat", "dog"], num_rows).tolist(),
        "city": random.choice([SECRET_CITY, *(f"city {number}" for number in range(20))], num_rows).tolist(),
        "is_new": (random.random(num_rows) < 0.3).tolist(),
        "tokens": pa.array([[1] * size for size in random.integers(1, 9, num_rows)], pa.list_(pa.int32())),
        "at": pa.array(np.arange(num_rows) * 1_000_000, pa.timestamp("us", tz="UTC")),
    }


def judge(folder: Path, columns: Columns, baseline: ContractReceipt | None = None, **given: Any) -> ContractReceipt:
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=700)
    rows = of_parquet(folder / "rows.parquet")
    snapshot = Snapshot(format="parquet", columns=dict(rows.columns), num_rows=1, files=rows.files)
    stored = StoredFile(path="contract.yaml", size_bytes=1, sha256="ab" * 32)
    states = FileStates(rows, "basis") if given.pop("with_states", False) else None
    surroundings = ValidationContext(baseline=baseline, states=states)
    excluded = folder / "left-out.parquet"
    return validate(CONTRACT, stored, snapshot, rows, folder, quarantine_file=excluded, surroundings=surroundings)


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> ContractReceipt:
    """The first snapshot's, which was held against nothing."""
    return judge(tmp_path_factory.mktemp("accepted"), sample(0))


def failures(receipt: ContractReceipt) -> set[str]:
    return {each.rule_id for each in receipt.verdicts if not each.passed}


def found(receipt: ContractReceipt, column: str) -> Distribution:
    return next(each for each in receipt.distributions if each.column == column)


def test_the_first_snapshot_has_nothing_to_drift_from_and_says_so(accepted: ContractReceipt) -> None:
    receipt = accepted
    assert receipt.passed
    assert receipt.baseline is None
    observed = {each.rule_id: each.observed for each in receipt.verdicts}
    assert observed["steady.amount"] == NOT_EVALUATED
    assert NOT_EVALUATED in observed["volume"]
    for each in receipt.distributions:
        assert sum(each.counts) + each.num_nulls + each.num_nans == NUM_ROWS
        assert each.baseline_counts is None
    amounts = found(receipt, "amount")
    assert len(amounts.edges) == 9
    assert max(amounts.counts) < 2 * min(amounts.counts)


def test_another_sample_of_the_same_population_is_no_drift(tmp_path: Path, accepted: ContractReceipt) -> None:
    receipt = judge(tmp_path, sample(1), accepted)
    assert failures(receipt) == set()
    assert receipt.baseline == accepted.link
    for before, now in zip(accepted.distributions, receipt.distributions, strict=True):
        assert (now.edges, now.baseline_counts) == (before.edges, before.counts)


@pytest.mark.parametrize(
    ("column", "change", "rule"),
    [
        ("amount", lambda old: pa.array([None if v is None else v * 1.5 for v in old.to_pylist()]), "steady.amount"),
        (
            "amount",
            lambda old: pa.array([v if i % 3 else None for i, v in enumerate(old.to_pylist())]),
            "steady.amount",
        ),
        (
            "amount",
            lambda old: pa.array([v if i % 5 else float("nan") for i, v in enumerate(old.to_pylist())]),
            "steady.amount",
        ),
        ("count", lambda old: pa.array([v + 2 for v in old.to_pylist()], pa.int32()), "steady.count"),
        ("label", lambda old: ["cat" if i % 3 else "dog" for i in range(len(old))], "steady.label"),
        ("city", lambda old: [SECRET_CITY if i % 3 == 0 else v for i, v in enumerate(old)], "steady.city"),
        ("is_new", lambda old: [not v for v in old], "steady.is_new"),
        ("tokens", lambda old: pa.array([v + v for v in old.to_pylist()], pa.list_(pa.int32())), "lengths"),
    ],
)
def test_a_shift_of_any_kind_of_column_is_found_and_nothing_else(
    tmp_path: Path, accepted: ContractReceipt, column: str, change: Any, rule: str
) -> None:
    columns = sample(1)
    columns[column] = change(columns[column])
    receipt = judge(tmp_path, columns, accepted)
    assert failures(receipt) == {rule}
    assert SECRET_CITY.encode() not in receipt.to_bytes()


@pytest.mark.parametrize(("num_rows", "passed"), [(3200, True), (3199, False), (6000, True), (6001, False)])
def test_volume_is_held_against_the_accepted_one(
    tmp_path: Path, accepted: ContractReceipt, num_rows: int, passed: bool
) -> None:
    assert ("volume" in failures(judge(tmp_path, sample(0, num_rows), accepted))) is not passed


def test_bins_stay_those_of_the_first_snapshot_so_that_files_need_no_second_count(
    tmp_path: Path, accepted: ContractReceipt
) -> None:
    first = accepted
    second = judge(tmp_path, sample(1), first)
    third = judge(tmp_path, sample(2), second, with_states=True)
    assert [each.edges for each in third.distributions] == [each.edges for each in first.distributions]
    assert third.to_bytes() == judge(tmp_path, sample(2), second).to_bytes()


def grown(share: float) -> Columns:
    """Amounts of which a share lies beyond all that were there at first."""
    columns = sample(3)
    random = np.random.default_rng(4)
    beyond = np.where(
        np.arange(NUM_ROWS) < share * NUM_ROWS, 1000 + random.random(NUM_ROWS), random.lognormal(size=NUM_ROWS)
    )
    return columns | {"amount": beyond}


def test_bins_of_which_one_holds_most_are_judged_by_a_last_time_and_then_cut_anew(
    tmp_path: Path, accepted: ContractReceipt
) -> None:
    first = accepted
    leap = judge(tmp_path, grown(0.7), first)
    assert failures(leap) == {"steady.amount"}
    assert found(leap, "amount").edges == found(first, "amount").edges, "what failed is shown beside the accepted"
    again = judge(tmp_path, grown(0.7), leap)
    amounts = found(again, "amount")
    observed = next(each.observed for each in again.verdicts if each.rule_id == "steady.amount")
    assert failures(again) == set() and observed.startswith("PSI 0, JS 0; one bin holds most")
    assert amounts.edges != found(first, "amount").edges and amounts.baseline_counts is None
    assert max(amounts.counts) < 0.15 * NUM_ROWS
    assert found(again, "count").edges == found(first, "count").edges
    inside = grown(0.7)
    inside["amount"] = np.where(inside["amount"] > 999, 1000 + (inside["amount"] - 1000) ** 3, inside["amount"])
    assert failures(judge(tmp_path, inside, leap)) == set(), "in the worn bins it goes unseen"
    assert failures(judge(tmp_path, inside, again)) == {"steady.amount"}


def test_bins_of_which_none_holds_most_stay(tmp_path: Path, accepted: ContractReceipt) -> None:
    first = accepted
    leap = judge(tmp_path, grown(0.4), first)
    again = judge(tmp_path, grown(0.4), leap)
    assert failures(again) == set()
    assert found(again, "amount").edges == found(first, "amount").edges


def test_bins_that_no_cut_would_even_out_stay(tmp_path: Path) -> None:
    mostly_zero = sample(0) | {"amount": np.where(np.arange(NUM_ROWS) % 10, 0.0, np.arange(NUM_ROWS) / 7)}
    first = judge(tmp_path, mostly_zero)
    second = judge(tmp_path, mostly_zero, first)
    assert failures(second) == set()
    assert found(second, "amount").baseline_counts == found(first, "amount").counts


@pytest.mark.parametrize(
    ("age_h", "passed", "observed"),
    [
        (26.0, True, "the newest row is 26.0 hours old"),
        (26.1, False, "the newest row is 26.1 hours old"),
        (-0.9, True, "the newest row lies 0.9 hours in the future"),
        (-1.1, False, "the newest row lies 1.1 hours in the future"),
    ],
)
def test_freshness_depends_on_the_clock_and_the_receipt_does_not(
    accepted: ContractReceipt, age_h: float, passed: bool, observed: str
) -> None:
    (newest,) = accepted.freshness
    assert newest.unix_s == NUM_ROWS - 1
    (verdict,) = evaluate_freshness(accepted.freshness, NUM_ROWS - 1 + age_h * 3600)
    assert (verdict.passed, verdict.observed) == (passed, observed)


def test_rows_that_do_not_say_when_they_are_of_are_not_fresh(tmp_path: Path) -> None:
    columns = sample(0)
    columns["at"] = pa.array([None] * NUM_ROWS, pa.timestamp("us", tz="UTC"))
    (verdict,) = evaluate_freshness(judge(tmp_path, columns).freshness, 0)
    assert not verdict.passed


def test_a_row_without_end_lies_in_the_future_and_one_without_beginning_is_no_newest_row(tmp_path: Path) -> None:
    """The largest number of a timestamp is infinity to the engine, which says no moment for it."""
    columns = sample(0)
    for place, (number, passed) in enumerate(((2**63 - 1, False), (-(2**63) + 1, True))):
        (tmp_path / str(place)).mkdir()
        moments = [number, *range(NUM_ROWS - 1)]
        columns["at"] = pa.array(moments, pa.timestamp("us", tz="UTC"))
        (verdict,) = evaluate_freshness(judge(tmp_path / str(place), columns).freshness, 0)
        assert verdict.passed == passed, verdict.observed
